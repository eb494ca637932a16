//! Renders findings as text: one line for each check, and for warnings and failures the evidence and the remedy.

use std::fmt::Write as _;

use super::definition::Check;
use super::findings::{Finding, Findings, Summary};
use super::outcome::Status;
use crate::cli::style::Style;
use crate::cli::text::{push_line, to_single_line, wrap_text};

/// Width of the lines, in columns: the default width of a terminal.
const TERMINAL_WIDTH: usize = 80;
/// Column in which the ID of a check begins, after the status.
const ID_COLUMN: usize = 6;
/// Column in which the message begins. The 29 columns between suffice for the longest ID of a check.
const MESSAGE_COLUMN: usize = 6 + 29;

/// Renders all findings, and the number of findings by status.
#[must_use]
pub fn render(findings: &Findings, style: Style) -> String {
    let mut out = String::new();
    let mut group = "";
    for finding in &findings.checks {
        let current_group = finding.id.split('.').next().unwrap_or_default();
        if !group.is_empty() && current_group != group {
            out.push('\n');
        }
        group = current_group;
        render_finding(&mut out, finding, style);
    }
    let Summary { pass, warn, fail, skip, unread } = findings.summary;
    let count = |n: usize, word: &str| format!("{n} {word}");
    // Writing to a String cannot fail.
    writeln!(
        out,
        "\n{}, {}, {}, {}",
        count(pass, "passed"),
        count(warn, if warn == 1 { "warning" } else { "warnings" }),
        count(fail, "failed"),
        count(skip, "skipped")
    )
    .unwrap_or_default();
    if unread > 0 {
        let checks = if unread == 1 { "check" } else { "checks" };
        push_line(
            &mut out,
            &count(unread, checks),
            " skipped because files or objects could not be read",
        );
    }
    out
}

fn render_finding(out: &mut String, finding: &Finding, style: Style) {
    let outcome = &finding.outcome;
    let word = match outcome.status {
        Status::Pass => style.format_success("PASS"),
        Status::Warn => style.format_warning("WARN"),
        Status::Fail => style.format_failure("FAIL"),
        Status::Skip => "SKIP".to_owned(),
    };
    let mut label = format!("{word}  {:<width$}", finding.id, width = MESSAGE_COLUMN - ID_COLUMN);
    // A line break in a message could make the rest of the message look like another check.
    let mut parts = wrap_text(&to_single_line(&outcome.message), TERMINAL_WIDTH - MESSAGE_COLUMN);
    if parts.is_empty() {
        parts.push(String::new());
    }
    for part in parts {
        push_line(out, &label, &part);
        label = " ".repeat(MESSAGE_COLUMN);
    }
    if !matches!(outcome.status, Status::Warn | Status::Fail) {
        return;
    }
    for evidence in &outcome.evidence {
        write_indented(out, "evidence", &format!("{}: {}", evidence.path, evidence.value), style);
    }
    if let Some(remedy) = &outcome.remedy {
        write_indented(out, "remedy", remedy, style);
    }
}

/// Writes the text on one line of any length, because a path or command that is wrapped here could not be copied. The
/// terminal wraps the line for display.
fn write_indented(out: &mut String, label: &str, text: &str, style: Style) {
    let label = style.format_heading(&format!("{label:<10}"));
    push_line(out, &format!("{}{label}", " ".repeat(ID_COLUMN)), &to_single_line(text));
}

/// Renders the titles and explanations of checks (`check --list`).
#[must_use]
pub fn render_list<F>(checks: &[Check<F>], style: Style) -> String {
    let mut out = String::new();
    for check in checks {
        push_line(&mut out, &format!("{:<30}", style.format_title(check.id)), check.title);
        for part in wrap_text(check.explanation, TERMINAL_WIDTH - 4) {
            push_line(&mut out, "    ", &part);
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::outcome::{Evidence, Outcome};
    use super::*;

    const STATUSES: [Status; 4] = [Status::Pass, Status::Warn, Status::Fail, Status::Skip];
    const WORDS: [&str; 4] = ["PASS", "WARN", "FAIL", "SKIP"];

    #[test]
    fn unread_checks_are_distinguished_from_those_that_do_not_apply() {
        let check =
            |id, outcome: fn() -> Outcome| Check { id, title: "", explanation: "", run: outcome };
        let render_with = |checks: &[Check<fn() -> Outcome>]| {
            let findings = Findings::collect(checks, |run| run());
            (render(&findings, Style::Plain), serde_json::to_string(&findings).unwrap())
        };
        let other = check("a.one", || Outcome::skip("does not apply"));
        let unread = check("a.two", || Outcome::unread("pods could not be read"));
        let (text, json) = render_with(&[other, unread]);
        assert!(
            text.ends_with(
                "2 skipped\n1 check skipped because files or objects could not be read\n"
            ),
            "{text}"
        );
        assert!(json.contains(r#""skip":2,"unread":1"#), "{json}");
        assert_eq!(json.matches(r#""unread":true"#).count(), 1, "{json}");
        let (text, json) = render_with(&[other]);
        assert!(text.ends_with("1 skipped\n"), "{text}");
        assert!(!json.contains("unread"), "{json}");
    }

    proptest! {
        #[test]
        fn text_of_an_object_cannot_imitate_a_check(
            status in prop::sample::select(STATUSES.to_vec()),
            texts in prop::array::uniform4("(PASS|FAIL|[a, \n\r\t\u{1b}\u{85}]){0,40}"),
        ) {
            let [message, path, value, remedy] = texts;
            let evidence = vec![Evidence { path, value }];
            let outcome = Outcome { status, message, evidence, remedy: Some(remedy), unread: false };
            let finding = |id| Finding { id, title: "", outcome: outcome.clone() };
            let checks = vec![finding("a.one"), finding("b.two")];
            let findings = Findings { summary: Summary::default(), checks };
            let text = render(&findings, Style::Plain);
            let lines: Vec<&str> = text.lines().collect();
            let (summary, lines) = lines.split_last().unwrap();
            prop_assert_eq!(*summary, "0 passed, 0 warnings, 0 failed, 0 skipped");
            let is_check = |line: &&&str| WORDS.iter().any(|word| line.starts_with(word));
            prop_assert_eq!(lines.iter().filter(is_check).count(), 2, "{}", text);
            let is_known = |line: &str| line.is_empty() || line.starts_with("      ");
            prop_assert!(lines.iter().all(|line| is_check(&line) || is_known(line)), "{}", text);
            prop_assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{:?}", text);
        }
    }
}
