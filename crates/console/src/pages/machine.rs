//! One VM: where it runs, in which zones, and why.

use std::sync::Arc;

use berth_runtime::object_events::ObjectEvent;
use berth_views::host_detail;
use berth_views::machines::{self, MachineRow};
use berth_views::{ObjectName, Snapshot};
use maud::{Markup, html};

use super::layout::Content;
use super::machines::addresses;
use super::parts::{
    badge, bytes, excerpt, facts, host_link, known, machine_path, notices, table, tenant_link,
    text_or_dash,
};
use super::reads::{Read, event_section};
use super::stream::stream_path;
use crate::vm_stream::kind::StreamKind;

/// Objects and permissions that the page of a VM needs, read with the credential of its user.
pub(crate) struct MachineReads {
    pub(crate) events: Arc<Read<ObjectEvent>>,
    /// Streams to the VM that the user may open.
    pub(crate) streams: Vec<StreamKind>,
}

/// Returns the page of a VM; `None` if the user sees no such VM.
pub(crate) fn content(
    snapshot: &Snapshot,
    name: &ObjectName,
    reads: &MachineReads,
) -> Option<Content> {
    let row = machines::find(snapshot, name)?;
    let view = html! {
        (notices(snapshot))
        p { (badge(row.severity, row.state)) " " (row.status) }
        (stream_links(name, &reads.streams))
        @if let Some(message) = &row.message { p .warning { "Why: " (excerpt(message)) } }
        @if let Some(evacuation) = &row.evacuation {
            p .warning {
                "The machine must leave " (host_link(&evacuation.host)) ": " (evacuation.reason) ": " (excerpt(&evacuation.message))
                ", since " (evacuation.since)
            }
        }
        section { h2 { "Machine" } (machine_facts(&row)) }
        section {
            h2 { "Placement" }
            (placement(snapshot, &row))
            p { a href={ (machine_path(name)) "/why" } { "Compare the hosts" } }
        }
        section { h2 { "Launcher pods" } (launchers(snapshot, name)) }
        (event_section(&reads.events))
    };
    Some(Content { form: None, view })
}

fn stream_links(name: &ObjectName, streams: &[StreamKind]) -> Markup {
    html! {
        @if !streams.is_empty() {
            ul .links aria-label="Connect" {
                @for kind in streams { li { a href=(stream_path(name, *kind)) { (kind.label()) } } }
            }
        }
    }
}

fn machine_facts(row: &MachineRow) -> Markup {
    facts(&[
        (
            "Tenant",
            html! { @if let Some(tenant) = &row.tenant { (tenant_link(tenant)) } @else { "-" } },
        ),
        ("Namespace", html! { (row.name.namespace) }),
        ("MachineDeployment", html! { (known(row.deployment.as_ref())) }),
        ("Role", html! { (known(row.role.as_ref())) }),
        ("Class", html! { (known(row.class.as_ref())) }),
        ("CPUs", html! { (known(row.vcpus)) @if row.is_pinned { ", pinned" } }),
        ("Memory", html! { (known(row.memory.map(bytes))) }),
        ("Huge pages", html! { (known(row.page_size.as_ref())) }),
        ("Addresses", html! { (addresses(row)) }),
        ("Created", html! { (known(row.created)) }),
    ])
}

fn placement(snapshot: &Snapshot, row: &MachineRow) -> Markup {
    let Some(host) = &row.host else { return html! { p { "The VM has no host." } } };
    let detail = host_detail::detail(snapshot, host);
    let on_host = detail
        .and_then(|detail| detail.machines.into_iter().find(|machine| machine.name == row.name));
    let zones: Vec<String> =
        on_host.iter().flat_map(|machine| &machine.zones).map(ToString::to_string).collect();
    let cpus = on_host.as_ref().map(|machine| machine.cpus.as_str()).unwrap_or_default();
    facts(&[
        ("Host", host_link(host)),
        ("Zones", html! { (text_or_dash(&zones.join(", "))) }),
        ("Exclusive CPUs", html! { (text_or_dash(cpus)) }),
    ])
}

fn launchers(snapshot: &Snapshot, name: &ObjectName) -> Markup {
    let own = snapshot.pods.iter().filter(|(pod, fields)| {
        pod.namespace == name.namespace && fields.vm.as_ref() == Some(&name.name)
    });
    let rows: Vec<Markup> = own
        .map(|(pod, fields)| {
            html! {
                tr {
                    th scope="row" { (pod.name) }
                    td { (fields.phase) }
                    td { (known(fields.host.as_ref())) }
                    td { (fields.scheduler) }
                    td { (excerpt(fields.unscheduled_message.as_deref().unwrap_or_default())) }
                }
            }
        })
        .collect();
    let head = ["Pod", "Phase", "Host", "Scheduler", "Why it has no host"];
    table("Launcher pods", &head, &rows, "No launcher pods are visible.")
}
