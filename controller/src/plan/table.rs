//! Formats a plan as tables with 80 columns.

use std::collections::BTreeMap;

use berth_api::Bytes;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{push_line, replace_control_characters, wrap_text};

use super::addition::AdditionResult;
use super::drain::{DrainResult, MovedVm, ReplacedVm};
use super::drain_decisions::DrainDecision;
use super::placed_vm::PlacedVm;
use super::request::VmRequest;
use super::result::Plan;
use super::spread::ControlPlanes;
use super::unplaced::UnplacedVm;
use super::usage::{HostUsage, ResourceUsage};
use crate::evacuation::reason::EvacuationReason;
use crate::fleet::{MachineCounts, PlannedClone, PlannedTenant};

/// Number of columns of a line.
const LINE_WIDTH: usize = 80;
/// Number of columns of a bar that shows the usage of a resource.
const BAR_WIDTH: usize = 20;
/// Maximum number of lines of each list, unless the user requests all lines.
const MAX_LINES: usize = 40;

/// Formats the plan as text. If `all` is true, every host and VM is listed.
#[must_use]
pub fn render(plan: &Plan, style: Style, all: bool) -> String {
    let mut out = String::new();
    write_hosts(&mut out, plan, style, all);
    write_deployments(&mut out, plan, style);
    write_vms(&mut out, plan, style, all);
    if let Some(control_planes) = &plan.control_planes {
        write_control_planes(&mut out, control_planes, style, all);
    }
    for unplaced in &plan.unplaced {
        write_unplaced(&mut out, unplaced, style, "does not fit");
    }
    if let Some(drain) = &plan.drain {
        write_drain(&mut out, drain, style);
    }
    if let Some(added) = &plan.added {
        write_added(&mut out, added, style);
    }
    if !plan.problems.is_empty() {
        write_heading(&mut out, style, "Problems");
        for problem in &plan.problems {
            write_paragraph(&mut out, "  ", &style.format_warning("! "), 2, &problem.to_string());
        }
    }
    if !plan.ignored.is_empty() {
        let kinds: Vec<_> =
            plan.ignored.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let text = format!("Ignored: {}", kinds.join(", "));
        out.push('\n');
        write_paragraph(&mut out, "", "", 0, &text);
    }
    out
}

pub(super) fn write_heading(out: &mut String, style: Style, text: &str) {
    if !out.is_empty() {
        out.push('\n');
    }
    push_line(out, &style.format_title(text), "");
}

/// Appends a string, wrapped to the line width. The first line starts with `bullet`, which is `bullet_width` columns
/// wide. The other lines are indented by the same number of columns.
pub(super) fn write_paragraph(
    out: &mut String,
    indent: &str,
    bullet: &str,
    bullet_width: usize,
    text: &str,
) {
    let available_width = LINE_WIDTH.saturating_sub(indent.len() + bullet_width);
    for (at, part) in
        wrap_text(&replace_control_characters(text), available_width).iter().enumerate()
    {
        let first = if at == 0 { bullet.to_owned() } else { " ".repeat(bullet_width) };
        push_line(out, &format!("{indent}{first}"), part);
    }
}

fn write_hosts(out: &mut String, plan: &Plan, style: Style, all: bool) {
    let sum = |usage_of: fn(&HostUsage) -> ResourceUsage| {
        plan.hosts.iter().map(usage_of).fold(ResourceUsage::default(), |sum, part| ResourceUsage {
            used: sum.used.saturating_add(part.used),
            total: sum.total.saturating_add(part.total),
        })
    };
    let cpus = sum(|host| {
        host.zones.iter().map(|zone| zone.cpus).fold(ResourceUsage::default(), |sum, zone| {
            ResourceUsage { used: sum.used + zone.used, total: sum.total + zone.total }
        })
    });
    let title = format!(
        "{} host{}; in use: {}/{} pinnable CPUs, {}/{} huge pages, {}/{} memory",
        plan.hosts.len(),
        if plan.hosts.len() == 1 { "" } else { "s" },
        cpus.used,
        cpus.total,
        format_bytes(sum(|host| host.hugepages).used),
        format_bytes(sum(|host| host.hugepages).total),
        format_bytes(sum(|host| host.memory).used),
        format_bytes(sum(|host| host.memory).total),
    );
    for part in wrap_text(&title, LINE_WIDTH) {
        push_line(out, &style.format_title(&part), "");
    }
    let shown = if all { plan.hosts.len() } else { plan.hosts.len().min(MAX_LINES) };
    let width =
        plan.hosts.iter().take(shown).map(|host| host.name.chars().count()).max().unwrap_or(4);
    let width = width.clamp(4, 24);
    if shown > 0 {
        let head =
            format!("  {:width$} {:>4}  {:30} {}", "HOST", "ZONE", "PINNED CPUS", "HUGE PAGES");
        push_line(out, &style.format_heading(head.trim_end()), "");
    }
    for host in plan.hosts.iter().take(shown) {
        let mut name = truncate(&host.name, width);
        for zone in &host.zones {
            let pages = match zone.hugepages {
                Some(pages) if pages.total > 0 => format_usage(pages, style, format_bytes),
                Some(_) => "none".to_owned(),
                None if host.hugepages.total > 0 && !name.trim().is_empty() => {
                    format!("{} (host)", format_usage(host.hugepages, style, format_bytes))
                }
                None => String::new(),
            };
            let cpus = if zone.cpus.total == 0 {
                "none".to_owned()
            } else {
                format_usage(zone.cpus, style, |count| count.to_string())
            };
            let padding = " ".repeat(30_usize.saturating_sub(visible_width(&cpus)));
            push_line(out, &format!("  {name:width$} {:>4}  {cpus}{padding} ", zone.id), &pages);
            name = String::new();
        }
    }
    if shown < plan.hosts.len() {
        push_line(out, &format!("  and {} more; --all shows them", plan.hosts.len() - shown), "");
    }
}

/// Formats the used and the total amount of a resource with a bar, such as `#####----- 12/44`.
fn format_usage(part: ResourceUsage, style: Style, show: impl Fn(u64) -> String) -> String {
    let filled =
        part.used.min(part.total).saturating_mul(BAR_WIDTH as u64 / 2).div_ceil(part.total.max(1));
    let filled = usize::try_from(filled).unwrap_or(BAR_WIDTH / 2);
    let bar =
        format!("{}{}", "#".repeat(filled), "-".repeat((BAR_WIDTH / 2).saturating_sub(filled)));
    let bar = if part.used >= part.total {
        style.format_warning(&bar)
    } else {
        style.format_success(&bar)
    };
    format!("{bar} {}/{}", show(part.used), show(part.total))
}

/// Returns the number of columns that a string occupies on a terminal; ANSI escape sequences occupy no columns.
fn visible_width(text: &str) -> usize {
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

pub(super) fn format_bytes(count: u64) -> String {
    if count == 0 { "0".to_owned() } else { Bytes(count).to_human_readable() }
}

fn truncate(text: &str, width: usize) -> String {
    let text = replace_control_characters(text);
    if text.chars().count() <= width {
        return text;
    }
    let start: String = text.chars().take(width.saturating_sub(2)).collect();
    format!("{start}..")
}

fn write_deployments(out: &mut String, plan: &Plan, style: Style) {
    if !plan.tenants.is_empty() {
        write_heading(out, style, "Tenants");
    }
    for tenant in &plan.tenants {
        let PlannedTenant { name, namespace, network, vlan, vni, hosts } = tenant;
        let id =
            vlan.map(|vlan| format!("VLAN {vlan}")).or_else(|| vni.map(|vni| format!("VNI {vni}")));
        let text = match (network, id) {
            (Some(network), Some(id)) => {
                format!("{name}: namespace {namespace}, {id} of {network} on {hosts} hosts")
            }
            _ => format!("{name}: namespace {namespace}, no tenant network"),
        };
        write_paragraph(out, "  ", "", 0, &text);
    }
    if plan.machine_deployments.is_empty() {
        return;
    }
    write_heading(out, style, "Machines");
    for created in &plan.machine_deployments {
        let MachineCounts { machine_deployment, desired: wanted, existing, clones, .. } = created;
        let text = match wanted.saturating_sub(*existing) {
            0 => format!("{machine_deployment}: {existing} of {wanted} machines exist"),
            missing => {
                format!(
                    "{machine_deployment}: {existing} of {wanted} machines exist, {missing} would \
                     be created"
                )
            }
        };
        write_paragraph(out, "  ", "", 0, &text);
        for PlannedClone { image, message, .. } in clones {
            write_paragraph(out, "    ", "", 0, &format!("disks from {image}: {message}"));
        }
    }
}

fn write_vms(out: &mut String, plan: &Plan, style: Style, all: bool) {
    let mut text =
        format!("{} VM{} placed", plan.placed.len(), if plan.placed.len() == 1 { "" } else { "s" });
    for (count, state) in [(plan.running_count, "already running"), (plan.stopped_count, "stopped")]
    {
        if count > 0 {
            text = format!("{text}, {count} {state}");
        }
    }
    let count = plan.unplaced.len();
    text = match count {
        0 => text,
        1 => format!("{text}, 1 does not fit"),
        _ => format!("{text}, {count} do not fit"),
    };
    write_heading(out, style, &text);
    let shown = if all { plan.placed.len() } else { plan.placed.len().min(MAX_LINES) };
    if shown == 0 {
        return;
    }
    let head = format!("  {:30} {:>5} {:>14}  {:16} {}", "VM", "CPUS", "MEMORY", "HOST", "ZONE");
    push_line(out, &style.format_heading(&head), "");
    for placed in plan.placed.iter().take(shown) {
        write_placed_vm(out, placed);
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
        write_paragraph(out, "  ", "", 0, &text);
    }
}

fn write_control_planes(out: &mut String, planes: &ControlPlanes, style: Style, all: bool) {
    let heading = format!("Control-plane VMs by {}", planes.topology_key);
    write_heading(out, style, &truncate(&heading, LINE_WIDTH));
    let shown = if all { planes.domains.len() } else { planes.domains.len().min(MAX_LINES) };
    let head = format!("  {:40} {:>5} {:>7}", "DOMAIN", "VMS", "POINTS");
    push_line(out, &style.format_heading(&head), "");
    for domain in planes.domains.iter().take(shown) {
        let name = truncate(&domain.name, 40);
        push_line(out, &format!("  {name:40} {:>5} {:>7}", domain.vms, domain.points), "");
    }
    if shown < planes.domains.len() {
        let rest = planes.domains.len() - shown;
        push_line(out, &format!("  and {rest} more; --all shows them"), "");
    }
    if planes.hosts_without_label > 0 {
        let text = format!(
            "{} hosts do not have the label and get control-plane VMs last",
            planes.hosts_without_label
        );
        write_paragraph(out, "  ", &style.format_warning("! "), 2, &text);
    }
}

fn write_placed_vm(out: &mut String, placed: &PlacedVm) {
    let zones: Vec<String> = placed.zones.iter().map(u32::to_string).collect();
    let zones = if zones.is_empty() { "any".to_owned() } else { zones.join(",") };
    let VmRequest { memory, hugepages, page_size, .. } = &placed.request;
    let memory = match page_size {
        Some(size) => format!("{} in {size}", format_bytes(*hugepages)),
        None => format_bytes(*memory),
    };
    let text = format!(
        "  {:30} {:>5} {:>14}  {:16} {zones}",
        truncate(&placed.vm, 30),
        format_cpus(&placed.request),
        memory,
        truncate(&placed.host, 16)
    );
    push_line(out, &text, "");
}

/// Formats the CPUs of a VM: the number of exclusive CPUs, or the request for shared CPUs if there are no exclusive
/// CPUs.
pub(super) fn format_cpus(wants: &VmRequest) -> String {
    if wants.pinned_cpus > 0 {
        wants.pinned_cpus.to_string()
    } else if wants.cpu_millis.is_multiple_of(1000) {
        (wants.cpu_millis / 1000).to_string()
    } else {
        format!("{}m", wants.cpu_millis)
    }
}

pub(super) fn write_unplaced(out: &mut String, unplaced: &UnplacedVm, style: Style, verdict: &str) {
    write_heading(out, style, &format!("{} {verdict}", replace_control_characters(&unplaced.vm)));
    let wants = &unplaced.request;
    let exclusive = if wants.pinned_cpus > 0 { " exclusive" } else { "" };
    let text = match &wants.page_size {
        Some(size) => format!(
            "It requests {}{exclusive} CPUs, {} in pages of {size} and {} of other memory.",
            format_cpus(wants),
            format_bytes(wants.hugepages),
            format_bytes(wants.memory)
        ),
        None => format!(
            "It requests {}{exclusive} CPUs and {} of memory.",
            format_cpus(wants),
            format_bytes(wants.memory)
        ),
    };
    write_paragraph(out, "  ", "", 0, &text);
    for one in &unplaced.refusals {
        let hosts =
            if one.hosts == 1 { "1 host".to_owned() } else { format!("{} hosts", one.hosts) };
        let text = if one.hosts == 1 {
            format!("{}: {}", one.example, one.detail)
        } else {
            format!("{hosts}: {}. {}: {}", one.reason, one.example, one.detail)
        };
        write_paragraph(out, "  ", &style.format_failure("x "), 2, &text);
    }
    if !unplaced.remedy.is_empty() {
        write_paragraph(out, "  ", &style.format_success("> "), 2, &unplaced.remedy);
    }
}

pub(super) fn write_drain(out: &mut String, drain: &DrainResult, style: Style) {
    let host = replace_control_characters(&drain.host);
    if !drain.is_known {
        write_heading(out, style, &format!("the input contains no host {host}"));
        return;
    }
    let verdict = if drain.is_possible() { "can be drained" } else { "cannot be drained" };
    write_heading(out, style, &format!("{host} {verdict}"));
    let mut by_host: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for moved in &drain.moved_vms {
        by_host.entry(&moved.host).or_default().push(&moved.vm);
    }
    for (host, vms) in by_host {
        let text = format!("to be moved to {host}: {}", vms.join(", "));
        write_paragraph(out, "  ", "", 0, &text);
    }
    for ReplacedVm { vm, host, reason } in &drain.replaced_vms {
        let text = format!("to be replaced on {host}: {vm} ({}: {reason})", reason.as_str());
        write_paragraph(out, "  ", "", 0, &text);
    }
    for MovedVm { vm, host } in &drain.unmanaged_vms {
        let reason = EvacuationReason::NotManaged;
        let text = format!("fits on {host}: {vm} ({}: {reason})", reason.as_str());
        write_paragraph(out, "  ", "", 0, &text);
    }
    for DrainDecision { vm, reason, message, .. } in &drain.decisions {
        let text = format!("first reason during a drain: {vm} ({reason}: {message})");
        write_paragraph(out, "  ", "", 0, &text);
    }
    let is_empty = drain.moved_vms.is_empty()
        && drain.replaced_vms.is_empty()
        && drain.unmanaged_vms.is_empty();
    if is_empty && drain.is_possible() {
        push_line(out, "  no VM is on this host", "");
    }
    for name in &drain.unknown_pods {
        let text = format!(
            "{name} has CPUs or huge pages on this host, but is missing from the input: it cannot be \
             moved"
        );
        write_paragraph(out, "  ", &style.format_failure("x "), 2, &text);
    }
    for stuck in &drain.blocked_vms {
        write_unplaced(out, &stuck.unplaced, style, "cannot be moved");
        let text = format!("Reason during a drain: {}: {}", stuck.reason.as_str(), stuck.reason);
        write_paragraph(out, "  ", "", 0, &text);
    }
}

fn write_added(out: &mut String, added: &AdditionResult, style: Style) {
    let Some(template) = &added.template_host else {
        write_heading(
            out,
            style,
            "No host was added: --add must name a host, or a profile that selects hosts",
        );
        return;
    };
    let text = match (added.count, added.required_count) {
        (_, Some(0)) => "All VMs fit without additional hosts".to_owned(),
        (_, Some(1)) => format!("1 additional host like {template} is sufficient"),
        (_, Some(required)) => {
            format!("{required} additional hosts like {template} are sufficient")
        }
        (_, None) => format!("No number of additional hosts like {template} is sufficient"),
    };
    let shown_note = match added.count {
        0 => String::new(),
        1 => "  (this plan adds 1)".to_owned(),
        count => format!("  (this plan adds {count})"),
    };
    write_heading(out, style, &format!("{text}{shown_note}"));
}

#[cfg(test)]
mod tests {
    use super::super::spread::ControlPlaneDomain;
    use super::*;

    #[test]
    fn bars_never_exceed_their_width() {
        let bar = |used, total| {
            format_usage(ResourceUsage { used, total }, Style::Plain, |n| n.to_string())
        };
        assert_eq!(bar(0, 44), "---------- 0/44");
        assert_eq!(bar(1, 44), "#--------- 1/44");
        assert_eq!(bar(44, 44), "########## 44/44");
        assert_eq!(bar(u64::MAX, 1), format!("########## {}/1", u64::MAX));
    }

    #[test]
    fn control_planes_are_listed_by_domain() {
        let domain =
            |name: &str, vms, points| ControlPlaneDomain { name: name.to_owned(), vms, points };
        let planes = ControlPlanes {
            topology_key: "kubernetes.io/hostname".to_owned(),
            points_per_vm: 1000,
            domains: vec![domain("rack-a", 7, 1000), domain("rack-b", 6, 0)],
            hosts_without_label: 2,
        };
        let mut out = String::new();
        write_control_planes(&mut out, &planes, Style::Plain, false);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "Control-plane VMs by kubernetes.io/hostname");
        assert_eq!(lines[1], "  DOMAIN                                     VMS  POINTS");
        assert_eq!(lines[2], "  rack-a                                       7    1000");
        assert_eq!(lines[4], "  ! 2 hosts do not have the label and get control-plane VMs last");
        let many = (0..60).map(|number| domain(&number.to_string(), 1, 0)).collect();
        let planes = ControlPlanes { domains: many, hosts_without_label: 0, ..planes };
        let mut out = String::new();
        write_control_planes(&mut out, &planes, Style::Plain, false);
        assert!(out.ends_with("  and 20 more; --all shows them\n"), "{out}");
    }

    #[test]
    fn styled_text_is_as_wide_as_plain_text() {
        assert_eq!(visible_width(&Style::Coloured.format_success("abc")), 3);
        assert_eq!(visible_width("made"), 4);
    }
}
