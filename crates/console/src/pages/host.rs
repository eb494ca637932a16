//! One host.

use berth_api::infra_node::{Allocation, Neighbor, Zone};
use berth_runtime::object_events::ObjectEvent;
use berth_views::host_detail::{self, HostDetail, HostNetworkRow};
use berth_views::hosts::PagesRow;
use berth_views::{Severity, Snapshot};
use maud::{Markup, html};

use super::cpu_map::{cpu_map, legend};
use super::layout::Content;
use super::parts::{
    UNKNOWN_STATE, amount, badge, bytes, condition_table, excerpt, facts, host_path, issue_list,
    known, machine_link, notices, table, tenant_link, text_or_dash,
};
use super::reads::{Read, event_section};
use super::what_if_forms::PROFILE_PATH;
use crate::query::url;

/// Size of a CPU in the map, in pixels.
const CELL_PIXELS: usize = 14;

/// Returns the page of a host; `None` if the user sees no such host.
pub(crate) fn content(
    snapshot: &Snapshot,
    name: &str,
    events: &Read<ObjectEvent>,
) -> Option<Content> {
    let detail = host_detail::detail(snapshot, name)?;
    let status = snapshot.infra_nodes.get(name).and_then(|infra| infra.status.as_ref());
    let zones = status.map(|status| status.zones.as_slice()).unwrap_or_default();
    let allocations = status.map(|status| status.allocations.as_slice()).unwrap_or_default();
    let view = html! {
        (notices(snapshot))
        p {
            @for state in &detail.row.states { (badge(state.severity(), state)) " " }
            @if detail.row.states.is_empty() { (badge(detail.row.severity, UNKNOWN_STATE)) }
        }
        @if let Some(drain) = &detail.row.drain { p .warning { "Drain: " (drain.reason) ": " (excerpt(&drain.message)) } }
        (issue_list(&detail.row.issues))
        p { a href={ (host_path(name)) "/drain" } { "What if this host is drained?" } }
        p { a href={ (host_path(name)) "/add" } { "What if hosts like this one are added?" } }
        p { a href=(url(PROFILE_PATH, &[("host", name)])) { "What if a profile applies to this host?" } }
        (report(snapshot, &detail))
        section {
            h2 { "Zones" }
            (legend())
            @for zone in &detail.row.zones {
                h3 { "Zone " (zone.id) }
                (zone_map(zones, zone.id))
                (facts(&[
                    ("Pinned CPUs", html! { (cpu_list(zone.pinned_cpus.as_deref())) }),
                    ("Free CPUs", html! { (cpu_list(zone.free_cpus.as_deref())) }),
                    ("Reserved CPUs", html! { (text_or_dash(&zone.reserved_cpus)) }),
                    ("Memory", html! { (known(zone.memory.map(bytes))) }),
                    ("Huge pages", html! {
                        @if zone.hugepages.is_empty() { "-" }
                        @for pages in &zone.hugepages {
                            (page_amount(pages)) " of " (pages.size.to_string()) " "
                        }
                    }),
                ]))
            }
        }
        section { h2 { "Checks" } (condition_table(&detail.conditions)) }
        (changes(&detail))
        (machines(&detail))
        section { h2 { "Allocations" } (allocation_table(allocations)) }
        section { h2 { "Networks" } (network_table(&detail.networks)) }
        section { h2 { "Switch ports" } (neighbor_table(&detail.neighbors)) }
        (event_section(events))
        (unknown_facts(&detail))
    };
    Some(Content { form: None, view })
}

fn zone_map(zones: &[Zone], id: u32) -> Markup {
    let zone = zones.iter().find(|zone| zone.id == id);
    cpu_map(zone.map(std::slice::from_ref).unwrap_or_default(), CELL_PIXELS)
}

/// Returns a list of CPUs: it may be empty, or unknown.
fn cpu_list(cpus: Option<&str>) -> &str {
    match cpus {
        Some("") => "none",
        cpus => text_or_dash(cpus.unwrap_or_default()),
    }
}

/// Returns the numbers of used pages and of all pages.
fn page_amount(row: &PagesRow) -> Markup {
    let size = row.size.to_string();
    match row.pages() {
        Some(pages) => amount(&size, pages, |count| count.to_string()),
        None => html! { "unknown of " (row.total) },
    }
}

fn report(snapshot: &Snapshot, detail: &HostDetail) -> Markup {
    let HostDetail { row, hardware, kubelet, .. } = detail;
    let node = snapshot.nodes.get(&row.name);
    let is_schedulable = node.map(|node| if node.is_cordoned { "no" } else { "yes" });
    html! {
        section {
            h2 { "Report" }
            (facts(&[
                ("Profile", html! { (known(row.profile.as_ref())) }),
                ("Class", html! { (known(row.class.as_ref())) }),
                ("Address", html! { (known(detail.address)) }),
                ("Schedulable", html! { (known(is_schedulable)) }),
                ("Taints", html! { (text_or_dash(&detail.taints.join(", "))) }),
                ("VMs", html! { (known(row.vms)) }),
                ("Product", html! { (known(hardware.product.as_ref())) }),
                ("CPU", html! {
                    (known(hardware.cpu_model.as_ref())) ", " (known(hardware.sockets)) " sockets, "
                    (known(hardware.cores)) " cores, " (known(hardware.threads)) " threads"
                }),
                ("Memory", html! { (known(row.memory.map(bytes))) }),
                ("KSM", html! { (known(row.ksm.map(|is_on| if is_on { "on" } else { "off" }))) }),
                ("KVM", html! { (known(hardware.kvm.map(|state| format!("{state:?}")))) }),
                ("System", html! { (known(hardware.os.as_ref())) ", Linux " (known(hardware.kernel.as_ref())) }),
                ("Kubelet", html! { (known(kubelet.version.as_ref())) }),
                ("CPU manager", html! { (known(kubelet.cpu_manager_policy.as_ref())) }),
                ("Topology manager", html! { (known(kubelet.topology_manager_policy.as_ref())) }),
                ("Memory manager", html! { (known(kubelet.memory_manager_policy.as_ref())) }),
                ("Agent", html! { (known(detail.agent.as_ref())) }),
            ]))
        }
    }
}

fn changes(detail: &HostDetail) -> Markup {
    let rows: Vec<Markup> = detail
        .changes
        .iter()
        .map(|change| {
            html! {
                tr {
                    th scope="row" { (change.what) }
                    td { (badge(Severity::Warning, format!("{:?}", change.result))) }
                    td { (known(change.message.as_deref().map(excerpt))) }
                }
            }
        })
        .collect();
    html! {
        section {
            h2 { "Changes that are not complete" }
            (table("Changes", &["Change", "Result", "Message"], &rows, "All changes of this host are complete."))
        }
    }
}

fn machines(detail: &HostDetail) -> Markup {
    let rows: Vec<Markup> = detail
        .machines
        .iter()
        .map(|machine| html! {
            tr {
                th scope="row" { (machine_link(&machine.name)) }
                td { @if let Some(tenant) = &machine.tenant { (tenant_link(tenant)) } @else { "-" } }
                td { (badge(machine.state.severity(), machine.state)) }
                td { (text_or_dash(&machine.cpus)) }
                td { (zone_list(&machine.zones)) }
            }
        })
        .collect();
    let head = ["VM", "Tenant", "State", "Exclusive CPUs", "Zones"];
    html! {
        section { h2 { "VMs" } (table("VMs", &head, &rows, "No VMs run on this host, as far as you may see.")) }
    }
}

fn zone_list(zones: &[u32]) -> String {
    let zones: Vec<String> = zones.iter().map(ToString::to_string).collect();
    text_or_dash(&zones.join(", ")).to_owned()
}

fn allocation_table(allocations: &[Allocation]) -> Markup {
    let rows: Vec<Markup> = allocations
        .iter()
        .map(|one| {
            let pages: Vec<String> = one
                .hugepages
                .iter()
                .map(|pages| format!("{} x {}", pages.count, pages.size))
                .collect();
            let devices: Vec<String> = one
                .devices
                .iter()
                .map(|device| format!("{} {}", device.count, device.resource))
                .collect();
            html! {
                tr {
                    th scope="row" { (one.pod.as_ref().unwrap_or(&one.pod_uid)) }
                    td { (known(one.namespace.as_ref())) }
                    td { (known(one.cpus.as_ref())) }
                    td { (zone_list(&one.zones)) }
                    td { (text_or_dash(&pages.join(", "))) }
                    td { (known(one.memory.map(|memory| bytes(memory.0)))) }
                    td { (text_or_dash(&devices.join(", "))) }
                }
            }
        })
        .collect();
    let head = ["Pod", "Namespace", "CPUs", "Zones", "Huge pages", "Memory", "Devices"];
    table("Allocations", &head, &rows, "The kubelet has allocated no exclusive resources.")
}

fn network_table(networks: &[HostNetworkRow]) -> Markup {
    let row = |network: &HostNetworkRow| {
        html! {
            tr {
                th scope="row" { (network.name) }
                td { (known(network.scenario.map(|scenario| format!("{scenario:?}")))) }
                td { (network.ready) " ready, " (network.pending) " pending, " (network.failed) " failed" }
                td { (known(network.mtu)) }
                td {
                    (known(network.trunk.map(|state| format!("{state:?}"))))
                    @if let Some(vlans) = &network.missing_vlans {
                        ": VLANs " (vlans.ids().to_string()) " are missing from " (network.missing_from.join(", "))
                    }
                }
                td {
                    @for one in &network.not_ready { p { (one.name) ": " (excerpt(&one.message)) } }
                }
            }
        }
    };
    let rows: Vec<Markup> = networks.iter().map(row).collect();
    let head = ["Network", "Scenario", "Tenant networks", "MTU", "Trunk", "Not ready"];
    table("Networks", &head, &rows, "The host has no host networks.")
}

fn neighbor_table(neighbors: &[Neighbor]) -> Markup {
    let row = |neighbor: &Neighbor| {
        html! {
            tr {
                th scope="row" { (neighbor.uplink.to_string()) }
                td { (neighbor.system_name.as_ref().unwrap_or(&neighbor.chassis)) }
                td { (neighbor.port) }
                td { (known(neighbor.description.as_ref())) }
                td { (known(neighbor.port_vlan)) }
            }
        }
    };
    let rows: Vec<Markup> = neighbors.iter().map(row).collect();
    let head = ["Uplink", "Switch", "Port", "Description", "Untagged VLAN"];
    table("Switch ports", &head, &rows, "No switch announces itself with LLDP.")
}

fn unknown_facts(detail: &HostDetail) -> Markup {
    html! {
        @if !detail.unknown.is_empty() {
            section {
                h2 { "Unknown facts" }
                ul {
                    @for fact in &detail.unknown {
                        li { code { (fact.path) } ": " (format!("{:?}", fact.reason)) " " (excerpt(fact.message.as_deref().unwrap_or_default())) }
                    }
                }
            }
        }
    }
}
