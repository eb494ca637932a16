//! Formats the placement of one VM, and the drain check of one host, as text with 80 columns.

use berth_api::Problem;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::replace_control_characters;

use super::drain::DrainResult;
use super::placed_vm::PlacedVm;
use super::table::{
    format_bytes, format_cpus, write_drain, write_heading, write_paragraph, write_unplaced,
};
use super::unplaced::HostRefusal;
use super::why::{Chosen, Placement};

/// Formats the placement of a VM.
#[must_use]
pub fn render_placement(placement: &Placement, style: Style) -> String {
    let mut out = String::new();
    match placement {
        Placement::Placed(chosen) => {
            let host = &chosen.placed.host;
            write_chosen(&mut out, chosen, style, &format!("is on {host}"));
        }
        Placement::Pending(chosen) => {
            let host = &chosen.placed.host;
            let verdict = format!("has no host yet, and fits on {host}");
            write_chosen(&mut out, chosen, style, &verdict);
            let text = "if it stays pending, see the Events of its launcher pod, and check that the \
                        scheduler runs: kubectl berth check scheduler";
            write_paragraph(&mut out, "  ", &style.format_success("> "), 2, text);
        }
        Placement::Unplaced(unplaced) => {
            write_unplaced(&mut out, unplaced, style, "fits on no host");
        }
    }
    out
}

fn write_chosen(out: &mut String, chosen: &Chosen, style: Style, verdict: &str) {
    let Chosen { placed, ranked, accepting, refusals } = chosen;
    let PlacedVm { vm, request, zones, cpus, spread, .. } = placed;
    write_heading(out, style, &replace_control_characters(&format!("{vm} {verdict}")));
    let exclusive = if request.pinned_cpus > 0 { " exclusive" } else { "" };
    let pages = request
        .page_size
        .as_ref()
        .map(|size| format!("{} in pages of {size} and ", format_bytes(request.hugepages)));
    let text = format!(
        "It requests {}{exclusive} CPUs, {}{} of memory.",
        format_cpus(request),
        pages.unwrap_or_default(),
        format_bytes(request.memory)
    );
    write_paragraph(out, "  ", "", 0, &text);
    if !cpus.is_empty() {
        let zones: Vec<String> = zones.iter().map(u32::to_string).collect();
        let text = format!("Its CPUs are {cpus} in zone {}.", zones.join(" and "));
        write_paragraph(out, "  ", "", 0, &text);
    }
    if let Some(spread) = spread {
        let text = format!(
            "It is a control-plane VM: its domain {} has {} other control-plane VMs ({} points).",
            spread.name, spread.vms, spread.points
        );
        write_paragraph(out, "  ", "", 0, &text);
    }
    write_ranks(out, chosen, *accepting);
    if ranked.is_empty() && refusals.is_empty() {
        write_paragraph(out, "  ", "", 0, "No other host has reported.");
    }
    refusals.iter().for_each(|refusal| write_refusal(out, refusal, style));
}

/// Appends the hosts that accept the VM, with their points.
fn write_ranks(out: &mut String, chosen: &Chosen, accepting: usize) {
    let Some(best) = chosen.ranked.first() else { return };
    let hosts = if accepting == 1 {
        "1 host accepts".to_owned()
    } else {
        format!("{accepting} hosts accept")
    };
    let ranks: Vec<String> =
        chosen.ranked.iter().map(|one| format!("{} ({})", one.host, one.points)).collect();
    let rest = accepting.saturating_sub(chosen.ranked.len());
    let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let text = format!("{hosts} it now; fewer points are better: {}{rest}.", ranks.join(", "));
    write_paragraph(out, "  ", "", 0, &text);
    if best.host != chosen.placed.host {
        let text = format!(
            "{} would be chosen today: the free resources and the preferences have changed since the \
             VM was placed. Running VMs stay on their hosts.",
            best.host
        );
        write_paragraph(out, "  ", "", 0, &text);
    }
}

fn write_refusal(out: &mut String, refusal: &HostRefusal, style: Style) {
    let HostRefusal { reason, hosts, example, detail } = refusal;
    let text = match hosts {
        1 => format!("{example}: {detail}"),
        _ => format!("{hosts} hosts: {reason}. {example}: {detail}"),
    };
    write_paragraph(out, "  ", &style.format_failure("x "), 2, &text);
}

/// Formats the result of a drain check.
#[must_use]
pub fn render_drain(drain: &DrainResult, problems: &[Problem], style: Style) -> String {
    let mut out = String::new();
    write_drain(&mut out, drain, style);
    if !problems.is_empty() {
        write_heading(&mut out, style, "Problems");
        for problem in problems {
            let bullet = style.format_warning("! ");
            write_paragraph(&mut out, "  ", &bullet, 2, &problem.to_string());
        }
    }
    out
}
