//! Host networks.

use berth_views::networks::{self, NetworkRow};
use berth_views::{Severity, Snapshot};
use maud::{Markup, html};

use super::layout::Content;
use super::parts::{badge, excerpt, facts, host_link, known, notices, table, text_or_dash};

pub(crate) fn content(snapshot: &Snapshot) -> Content {
    let rows = networks::rows(snapshot);
    let view = html! {
        (notices(snapshot))
        @if rows.is_empty() { p .empty { "No host networks are visible." } }
        @for row in &rows { (network(row)) }
    };
    Content { form: None, view }
}

fn network(row: &NetworkRow) -> Markup {
    let scenarios: Vec<String> = row.scenarios.iter().map(|one| format!("{one:?}")).collect();
    let state = match row.severity {
        Severity::Ok => "Healthy",
        Severity::Warning => "Warnings",
        Severity::Failure => "Failures",
    };
    html! {
        section {
            h2 { (row.name) }
            p { (badge(row.severity, state)) }
            (facts(&[
                ("Scenario", html! { (text_or_dash(&scenarios.join(", "))) }),
                ("Hosts", html! { (known(row.hosts)) }),
                ("Tenants", html! { (known(row.tenants)) }),
                ("Tenant networks", html! {
                    @if let Some(counts) = row.counts {
                        (counts.ready) " ready, " (counts.pending) " pending, " (counts.failed) " failed"
                    } @else { "-" }
                }),
                ("Claimed VLANs", html! {
                    @match row.vlans.as_deref() {
                        Some("") => { "none" }
                        vlans => { (known(vlans)) }
                    }
                }),
                ("Free VLANs", html! { (known(row.free_vlans)) }),
                ("MTU", html! { (known(row.mtu)) }),
                ("Trunks", html! {
                    @if let Some(trunks) = row.trunks {
                        (trunks.verified) " verified, " (trunks.missing) " with missing VLANs, " (trunks.unknown) " unknown"
                    } @else { "-" }
                }),
            ]))
            (fault_table(row))
        }
    }
}

fn fault_table(network: &NetworkRow) -> Markup {
    let rows: Vec<Markup> = network
        .faults
        .iter()
        .map(|fault| html! {
            tr {
                th scope="row" { (host_link(&fault.host)) }
                td { (badge(fault.severity, fault.tenant_network.as_deref().unwrap_or("trunk"))) }
                td { (known(fault.vlans.as_ref().map(|vlans| vlans.ids().to_string()))) }
                td { (known(fault.switch_port.as_ref())) }
                td { (excerpt(&fault.message)) }
            }
        })
        .collect();
    let head = ["Host", "Fault of", "VLANs", "Switch port", "Message"];
    table(&format!("Faults of {}", network.name), &head, &rows, "No faults are reported.")
}
