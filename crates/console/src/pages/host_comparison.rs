//! Hosts before and after a simulated change: sums, changed fields, and maps of CPUs.

use berth_api::infra_node::Zone;
use berth_views::Severity;
use maud::{Markup, html};

use super::cpu_map::{cpu_map, legend};
use super::parts::{
    badge, bytes, excerpt, host_link, host_path, limited_table, table, text_or_dash,
};
use crate::what_if::{FreeAmount, HostChange, HostEffect, HostMap, Totals};

/// Size of a CPU in the map, in pixels.
const CELL_PIXELS: usize = 8;

/// Returns the sums over all hosts.
pub(super) fn totals(before: &Totals, after: &Totals) -> Markup {
    let count = |count: u64| count.to_string();
    let of = |amount: FreeAmount, format: fn(u64) -> String| {
        format!("{} of {}", format(amount.free), format(amount.total))
    };
    let rows = [
        ("Hosts", before.hosts.to_string(), after.hosts.to_string()),
        ("VMs without a host", before.waiting.to_string(), after.waiting.to_string()),
        ("Free CPUs for pinning", of(before.cpus, count), of(after.cpus, count)),
        ("Free huge pages", of(before.hugepages, bytes), of(after.hugepages, bytes)),
        ("Free memory", of(before.memory, bytes), of(after.memory, bytes)),
    ];
    let rows: Vec<Markup> = rows
        .into_iter()
        .map(|(name, before, after)| {
            let is_changed = before != after;
            html! {
                tr {
                    th scope="row" { (name) }
                    td { (before) }
                    td { @if is_changed { strong { (after) } } @else { (after) } }
                }
            }
        })
        .collect();
    table("Before and after", &["Sum", "Before", "After"], &rows, "")
}

/// Returns the changed fields of hosts.
pub(super) fn changes(all: &[HostChange]) -> Markup {
    let row = |one: &HostChange| {
        let (severity, effect) = match one.effect {
            HostEffect::Immediate => (Severity::Ok, "While VMs run"),
            HostEffect::AfterDrain => {
                (Severity::Warning, "After a drain and a restart of the kubelet")
            }
            HostEffect::AfterLastVm => (Severity::Warning, "When the last VM has left the host"),
            HostEffect::InterruptsNetwork => {
                (Severity::Warning, "VMs lose their network for a time")
            }
            HostEffect::Unknown => (Severity::Warning, "Not simulated"),
        };
        let needs_drain = matches!(one.effect, HostEffect::AfterDrain | HostEffect::AfterLastVm);
        html! {
            tr {
                th scope="row" { (host_link(&one.host)) }
                td { (one.field) }
                td { (text_or_dash(&excerpt(&one.before))) }
                td { (text_or_dash(&excerpt(&one.after))) }
                td {
                    (badge(severity, effect))
                    @if needs_drain { " " a href={ (host_path(&one.host)) "/drain" } { "Simulate the drain of " (one.host) } }
                }
                td { (excerpt(&one.note)) }
            }
        }
    };
    let head = ["Host", "Field", "Before", "After", "Effective", "Note"];
    limited_table("Changes of hosts", &head, all, row, "")
}

/// Returns the CPUs of hosts. `more` is the number of further hosts.
pub(super) fn maps(maps: &[HostMap], more: usize) -> Markup {
    html! {
        @if !maps.is_empty() {
            section {
                h2 { "CPUs" }
                (legend())
                @for one in maps {
                    h3 { (one.host) }
                    div .columns {
                        @match &one.before {
                            Some(before) => { (map("Before", before)) }
                            None => { p { "Before: no such host" } }
                        }
                        (map("After", &one.after))
                    }
                }
                @if more > 0 { p { "And " (more) " more hosts." } }
            }
        }
    }
}

fn map(title: &str, zones: &[Zone]) -> Markup {
    let sum = |cpus: fn(&Zone) -> Option<usize>| zones.iter().filter_map(cpus).sum::<usize>();
    let pinned = sum(|zone| zone.pinned_cpus.as_ref().map(berth_api::CpuSet::len));
    let all = sum(|zone| zone.pinnable_cpus.as_ref().map(berth_api::CpuSet::len));
    html! {
        div {
            p { (title) ": " (pinned) " of " (all) " CPUs pinned" }
            (cpu_map(zones, CELL_PIXELS))
        }
    }
}
