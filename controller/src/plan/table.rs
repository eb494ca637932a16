//! Formats a plan as tables with 80 columns.

use std::collections::BTreeMap;

use berth_api::Bytes;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{line, printable, wrap};

use super::drain::Drain;
use super::enough::Added;
use super::placed::Placed;
use super::request::VmRequest;
use super::result::Plan;
use super::unplaced::Unplaced;
use super::usage::{HostUsage, Part};
use crate::fleet::{Created, Tenant};

const WIDTH: usize = 80;
const BAR_WIDTH: usize = 20;
/// Maximum number of lines of each list, unless the user requests all lines.
const MAX_LINES: usize = 40;

/// Formats the plan as text. If `all` is true, every host and VM is listed.
#[must_use]
pub fn render(plan: &Plan, style: Style, all: bool) -> String {
    let mut out = String::new();
    hosts(&mut out, plan, style, all);
    deployments(&mut out, plan, style);
    vms(&mut out, plan, style, all);
    for unplaced in &plan.unplaced {
        refused(&mut out, unplaced, style, "does not fit");
    }
    if let Some(drain) = &plan.drain {
        write_drain(&mut out, drain, style);
    }
    if let Some(added) = &plan.added {
        write_added(&mut out, added, style);
    }
    if !plan.problems.is_empty() {
        heading(&mut out, style, "Problems");
        for problem in &plan.problems {
            paragraph(&mut out, "  ", &style.warning("! "), 2, &problem.to_string());
        }
    }
    if !plan.ignored.is_empty() {
        let kinds: Vec<_> =
            plan.ignored.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let text = format!("Ignored: {}", kinds.join(", "));
        out.push('\n');
        paragraph(&mut out, "", "", 0, &text);
    }
    out
}

fn heading(out: &mut String, style: Style, text: &str) {
    if !out.is_empty() {
        out.push('\n');
    }
    line(out, &style.title(text), "");
}

/// Appends a wrapped text. The first line starts with `mark`, which is `width` columns wide; the other lines are
/// indented by as many columns.
fn paragraph(out: &mut String, indent: &str, mark: &str, width: usize, text: &str) {
    let room = WIDTH.saturating_sub(indent.len() + width);
    for (at, part) in wrap(&printable(text), room).iter().enumerate() {
        let first = if at == 0 { mark.to_owned() } else { " ".repeat(width) };
        line(out, &format!("{indent}{first}"), part);
    }
}

fn hosts(out: &mut String, plan: &Plan, style: Style, all: bool) {
    let sum = |of: fn(&HostUsage) -> Part| {
        plan.hosts.iter().map(of).fold(Part::default(), |sum, part| Part {
            used: sum.used.saturating_add(part.used),
            total: sum.total.saturating_add(part.total),
        })
    };
    let cpus = sum(|host| {
        host.zones.iter().map(|zone| zone.cpus).fold(Part::default(), |sum, zone| Part {
            used: sum.used + zone.used,
            total: sum.total + zone.total,
        })
    });
    let title = format!(
        "{} host{}; taken: {}/{} pinnable CPUs, {}/{} huge pages, {}/{} memory",
        plan.hosts.len(),
        if plan.hosts.len() == 1 { "" } else { "s" },
        cpus.used,
        cpus.total,
        bytes(sum(|host| host.hugepages).used),
        bytes(sum(|host| host.hugepages).total),
        bytes(sum(|host| host.memory).used),
        bytes(sum(|host| host.memory).total),
    );
    for part in wrap(&title, WIDTH) {
        line(out, &style.title(&part), "");
    }
    let shown = if all { plan.hosts.len() } else { plan.hosts.len().min(MAX_LINES) };
    let width =
        plan.hosts.iter().take(shown).map(|host| host.name.chars().count()).max().unwrap_or(4);
    let width = width.clamp(4, 24);
    if shown > 0 {
        let head =
            format!("  {:width$} {:>4}  {:30} {}", "HOST", "ZONE", "PINNED CPUS", "HUGE PAGES");
        line(out, &style.heading(head.trim_end()), "");
    }
    for host in plan.hosts.iter().take(shown) {
        let mut name = truncate(&host.name, width);
        for zone in &host.zones {
            let pages = match zone.hugepages {
                Some(pages) if pages.total > 0 => part_of(pages, style, bytes),
                Some(_) => "none".to_owned(),
                None if host.hugepages.total > 0 && !name.trim().is_empty() => {
                    format!("{} (host)", part_of(host.hugepages, style, bytes))
                }
                None => String::new(),
            };
            let cpus = if zone.cpus.total == 0 {
                "none".to_owned()
            } else {
                part_of(zone.cpus, style, |count| count.to_string())
            };
            let padding = " ".repeat(30_usize.saturating_sub(columns(&cpus)));
            line(out, &format!("  {name:width$} {:>4}  {cpus}{padding} ", zone.id), &pages);
            name = String::new();
        }
    }
    if shown < plan.hosts.len() {
        line(out, &format!("  and {} more; --all shows them", plan.hosts.len() - shown), "");
    }
}

/// Formats the used and the total amount of a resource with a bar, such as `#####----- 12/44`.
fn part_of(part: Part, style: Style, show: impl Fn(u64) -> String) -> String {
    let filled =
        part.used.min(part.total).saturating_mul(BAR_WIDTH as u64 / 2).div_ceil(part.total.max(1));
    let filled = usize::try_from(filled).unwrap_or(BAR_WIDTH / 2);
    let bar =
        format!("{}{}", "#".repeat(filled), "-".repeat((BAR_WIDTH / 2).saturating_sub(filled)));
    let bar =
        if part.used >= part.total { style.warning(&bar) } else { style.format_success(&bar) };
    format!("{bar} {}/{}", show(part.used), show(part.total))
}

/// Returns the number of columns that a text takes on a terminal; ANSI escape sequences take none.
fn columns(text: &str) -> usize {
    let mut count = 0;
    let mut inside = false;
    for letter in text.chars() {
        match letter {
            '\u{1b}' => inside = true,
            'm' if inside => inside = false,
            _ if !inside => count += 1,
            _ => {}
        }
    }
    count
}

fn bytes(count: u64) -> String {
    if count == 0 { "0".to_owned() } else { Bytes(count).human() }
}

fn truncate(text: &str, width: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= width {
        return text;
    }
    let start: String = text.chars().take(width.saturating_sub(2)).collect();
    format!("{start}..")
}

fn deployments(out: &mut String, plan: &Plan, style: Style) {
    if !plan.tenants.is_empty() {
        heading(out, style, "Tenants");
    }
    for tenant in &plan.tenants {
        let Tenant { name, namespace, network, vlan, vni, hosts } = tenant;
        let id =
            vlan.map(|vlan| format!("VLAN {vlan}")).or_else(|| vni.map(|vni| format!("VNI {vni}")));
        let text = match (network, id) {
            (Some(network), Some(id)) => {
                format!("{name}: namespace {namespace}, {id} of {network} on {hosts} hosts")
            }
            _ => format!("{name}: namespace {namespace}, no tenant network"),
        };
        paragraph(out, "  ", "", 0, &text);
    }
    if plan.machine_deployments.is_empty() {
        return;
    }
    heading(out, style, "Machines");
    for created in &plan.machine_deployments {
        let Created { machine_deployment, wanted, there, .. } = created;
        let text = match wanted.saturating_sub(*there) {
            0 => format!("{machine_deployment}: {there} of {wanted} there"),
            more => {
                format!("{machine_deployment}: {there} of {wanted} exist, {more} would be created")
            }
        };
        paragraph(out, "  ", "", 0, &text);
    }
}

fn vms(out: &mut String, plan: &Plan, style: Style, all: bool) {
    let mut text =
        format!("{} VM{} placed", plan.placed.len(), if plan.placed.len() == 1 { "" } else { "s" });
    for (count, what) in [(plan.running, "running already"), (plan.off, "switched off")] {
        if count > 0 {
            text = format!("{text}, {count} {what}");
        }
    }
    let count = plan.unplaced.len();
    text = match count {
        0 => text,
        1 => format!("{text}, 1 does not fit"),
        _ => format!("{text}, {count} do not fit"),
    };
    heading(out, style, &text);
    let shown = if all { plan.placed.len() } else { plan.placed.len().min(MAX_LINES) };
    if shown == 0 {
        return;
    }
    let head = format!("  {:30} {:>5} {:>14}  {:16} {}", "VM", "CPUS", "MEMORY", "HOST", "ZONE");
    line(out, &style.heading(&head), "");
    for placed in plan.placed.iter().take(shown) {
        placed_vm(out, placed);
    }
    if shown < plan.placed.len() {
        let mut rest: BTreeMap<&str, usize> = BTreeMap::new();
        for placed in plan.placed.iter().skip(shown) {
            *rest.entry(&placed.host).or_default() += 1;
        }
        let text = format!(
            "and {} more on {} hosts; --all shows them",
            plan.placed.len() - shown,
            rest.len()
        );
        paragraph(out, "  ", "", 0, &text);
    }
}

fn placed_vm(out: &mut String, placed: &Placed) {
    let zones: Vec<String> = placed.zones.iter().map(u32::to_string).collect();
    let zones = if zones.is_empty() { "any".to_owned() } else { zones.join(",") };
    let VmRequest { memory, hugepages, page_size, .. } = &placed.wants;
    let memory = match page_size {
        Some(size) => format!("{} in {size}", bytes(*hugepages)),
        None => bytes(*memory),
    };
    let text = format!(
        "  {:30} {:>5} {:>14}  {:16} {zones}",
        truncate(&placed.vm, 30),
        cpus(&placed.wants),
        memory,
        truncate(&placed.host, 16)
    );
    line(out, &text, "");
}

/// Formats the CPUs of a VM: the number of exclusive CPUs, or the request for shared CPUs if there are no exclusive
/// CPUs.
fn cpus(wants: &VmRequest) -> String {
    if wants.pinned_cpus > 0 {
        wants.pinned_cpus.to_string()
    } else if wants.cpu_millis.is_multiple_of(1000) {
        (wants.cpu_millis / 1000).to_string()
    } else {
        format!("{}m", wants.cpu_millis)
    }
}

fn refused(out: &mut String, unplaced: &Unplaced, style: Style, what: &str) {
    heading(out, style, &format!("{} {what}", printable(&unplaced.vm)));
    let wants = &unplaced.wants;
    let own = if wants.pinned_cpus > 0 { " exclusive" } else { "" };
    let text = match &wants.page_size {
        Some(size) => format!(
            "It requests {}{own} CPUs, {} in pages of {size} and {} of other memory.",
            cpus(wants),
            bytes(wants.hugepages),
            bytes(wants.memory)
        ),
        None => format!("It requests {}{own} CPUs and {}.", cpus(wants), bytes(wants.memory)),
    };
    paragraph(out, "  ", "", 0, &text);
    for one in &unplaced.refused {
        let hosts =
            if one.hosts == 1 { "1 host".to_owned() } else { format!("{} hosts", one.hosts) };
        let text = if one.hosts == 1 {
            format!("{}: {}", one.example, one.detail)
        } else {
            format!("{hosts}: {}. {}: {}", one.reason, one.example, one.detail)
        };
        paragraph(out, "  ", &style.format_failure("x "), 2, &text);
    }
    if !unplaced.remedy.is_empty() {
        paragraph(out, "  ", &style.format_success("> "), 2, &unplaced.remedy);
    }
}

fn write_drain(out: &mut String, drain: &Drain, style: Style) {
    let host = printable(&drain.host);
    if !drain.is_known {
        heading(out, style, &format!("there is no host {host}"));
        return;
    }
    let answer = if drain.is_possible() { "can be drained" } else { "cannot be drained" };
    heading(out, style, &format!("{host} {answer}"));
    let count = drain.moved.len();
    if count > 0 {
        let mut by_host: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for moved in &drain.moved {
            by_host.entry(&moved.host).or_default().push(&moved.vm);
        }
        for (host, vms) in by_host {
            paragraph(out, "  ", "", 0, &format!("to {host}: {}", vms.join(", ")));
        }
    } else if drain.is_possible() {
        line(out, "  no VM is on it", "");
    }
    for name in &drain.unknown {
        let text = format!(
            "{name} has CPUs or pages there, and is missing from the input: it cannot be moved"
        );
        paragraph(out, "  ", &style.format_failure("x "), 2, &text);
    }
    for stuck in &drain.stuck {
        refused(out, stuck, style, "cannot leave");
    }
}

fn write_added(out: &mut String, added: &Added, style: Style) {
    let Some(like) = &added.like else {
        heading(
            out,
            style,
            "Nothing was added: --add names neither a host nor a profile with hosts",
        );
        return;
    };
    let text = match (added.count, added.enough) {
        (_, Some(0)) => "Everything fits without more hosts".to_owned(),
        (_, Some(1)) => format!("1 more host like {like} is enough"),
        (_, Some(enough)) => format!("{enough} more hosts like {like} are enough"),
        (_, None) => format!("No number of hosts like {like} is enough"),
    };
    let counted = match added.count {
        0 => String::new(),
        1 => "  (shown with 1)".to_owned(),
        count => format!("  (shown with {count})"),
    };
    heading(out, style, &format!("{text}{counted}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_never_exceed_their_width() {
        let bar = |used, total| part_of(Part { used, total }, Style::Plain, |n| n.to_string());
        assert_eq!(bar(0, 44), "---------- 0/44");
        assert_eq!(bar(1, 44), "#--------- 1/44");
        assert_eq!(bar(44, 44), "########## 44/44");
        assert_eq!(bar(u64::MAX, 1), format!("########## {}/1", u64::MAX));
    }

    #[test]
    fn styled_text_is_as_wide_as_plain_text() {
        assert_eq!(columns(&Style::Coloured.format_success("abc")), 3);
        assert_eq!(columns("made"), 4);
    }
}
