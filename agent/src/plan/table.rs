//! Renders the plan as a table.

use super::change::{Change, ChangeReason, Disruption};
use super::model::Plan;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{push_line, replace_control_characters, wrap_text};

/// Width of a default terminal, in columns.
const TERMINAL_WIDTH: usize = 80;

/// Renders the whole plan: changes, notes, advice on the kubelet, and the number of changes.
#[must_use]
pub fn render_plan(plan: &Plan, style: Style) -> String {
    let mut out = String::new();
    for change in &plan.changes {
        render_change(&mut out, change, style);
    }
    if !plan.changes.is_empty() {
        out.push('\n');
    }
    for note in &plan.notes {
        write_paragraph(&mut out, "note: ", note);
    }
    if let Some(advice) = &plan.kubelet {
        render_advice(&mut out, advice, style);
    }
    let blocked = plan.blocked_changes();
    let possible = plan.changes.len() - blocked;
    let summary = match (possible, blocked) {
        (0, 0) => "nothing to do: the host matches the spec".to_owned(),
        (n, 0) => count_with_noun(n, "change"),
        (n, blocked) => format!("{}, {blocked} blocked", count_with_noun(n, "change")),
    };
    push_line(&mut out, &summary, "");
    out
}

/// Returns a count with its noun: `1 change`, `2 changes`.
pub(crate) fn count_with_noun(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// Renders a change: its description, and in indented lines below it drift, effect, removed objects, and the reason
/// if the change is blocked.
fn render_change(out: &mut String, change: &Change, style: Style) {
    let sign = if change.blocked.is_some() {
        style.format_failure("x")
    } else if change.why == ChangeReason::Restore {
        style.format_warning("<")
    } else {
        style.format_success("~")
    };
    let words = replace_control_characters(&change.description());
    let mut label = format!("{sign} ");
    for part in wrap_text(&words, TERMINAL_WIDTH - 2) {
        push_line(out, &label, &part);
        label = "    ".to_owned();
    }
    let mut details = Vec::new();
    if change.drift {
        details.push("another program changed the value after Berth had set it".to_owned());
    }
    if change.why == ChangeReason::Restore {
        details.push("no longer in the spec: the original value will be restored".to_owned());
    }
    if !change.effect.is_empty() {
        details.push(match change.disruption {
            Disruption::None => change.effect.clone(),
            Disruption::Low => format!("low disruption: {}", change.effect),
            Disruption::High => format!("HIGH disruption: {}", change.effect),
        });
    }
    if !change.removes.is_empty() {
        details.push(format!("removes {} first", change.removes.join(", ")));
    }
    for text in details {
        write_indented(out, &text);
    }
    if let Some(reason) = &change.blocked {
        write_indented(out, &format!("blocked: {reason}"));
    }
}

fn render_advice(out: &mut String, advice: &super::kubelet::advice::KubeletAdvice, style: Style) {
    push_line(out, &style.format_heading("Desired configuration of the kubelet"), "");
    for difference in &advice.differences {
        let current = if difference.actual.is_empty() { "unset" } else { &difference.actual };
        write_indented(out, &format!("{}: {current} -> {}", difference.field, difference.desired));
    }
    push_line(out, &style.format_heading("Steps"), "");
    for (index, step) in advice.steps.iter().enumerate() {
        push_line(out, &format!("  {}. ", index + 1), &replace_control_characters(step));
    }
    out.push('\n');
    for text in advice.configuration.lines() {
        push_line(out, "    ", text);
    }
    out.push('\n');
}

fn write_indented(out: &mut String, text: &str) {
    for part in wrap_text(&replace_control_characters(text), TERMINAL_WIDTH - 6) {
        push_line(out, "      ", &part);
    }
}

fn write_paragraph(out: &mut String, first: &str, text: &str) {
    let mut label = first.to_owned();
    for part in wrap_text(&replace_control_characters(text), TERMINAL_WIDTH - first.len()) {
        push_line(out, &label, &part);
        label = " ".repeat(first.len());
    }
}
