//! All tenants.

use berth_views::tenants::TenantRow;
use berth_views::{Severity, Snapshot, tenants};
use maud::{Markup, html};

use super::layout::Content;
use super::parts::{badge, filter_form, known, notices, table, tenant_link};

pub(crate) fn content(snapshot: &Snapshot, text: &str) -> Content {
    let rows = tenants::rows(snapshot);
    let lower = text.to_lowercase();
    let shown = rows.iter().filter(|row| {
        let network = row.network.as_deref().unwrap_or_default();
        lower
            .split_whitespace()
            .all(|part| row.name.to_lowercase().contains(part) || network.contains(part))
    });
    let rows: Vec<Markup> = shown.map(tenant_row).collect();
    let head =
        ["Tenant", "State", "Network", "VLAN or VNI", "MTU", "Machines", "Hosts", "Addresses"];
    let view = html! {
        (notices(snapshot))
        p .count { (rows.len()) " tenants" }
        (table("Tenants", &head, &rows, "No tenants are visible."))
    };
    let form = filter_form("/tenants", text, "Name or network", &html! {});
    Content { form: Some(form), view }
}

/// Returns the state of a tenant.
pub(super) fn state(row: &TenantRow) -> Markup {
    let text = if row.reason.is_empty() { "NotReported" } else { row.reason.as_str() };
    let severity =
        if row.ready.is_none() { row.severity.max(Severity::Warning) } else { row.severity };
    badge(severity, text)
}

/// Returns the VLAN or the VNI of a tenant.
pub(super) fn network_id(row: &TenantRow) -> String {
    known(
        row.vlan
            .map(|vlan| format!("VLAN {vlan}"))
            .or_else(|| row.vni.map(|vni| format!("VNI {vni}"))),
    )
}

fn tenant_row(row: &TenantRow) -> Markup {
    html! {
        tr {
            th scope="row" { (tenant_link(&row.name)) }
            td { (state(row)) }
            td { (known(row.network.as_ref())) }
            td { (network_id(row)) }
            td { (known(row.mtu)) }
            td { @if let Some(count) = row.machines { (count.ready) "/" (count.desired) " ready" } @else { "-" } }
            td { @if let Some(count) = row.hosts { (count.ready) "/" (count.selected) " ready" } @else { "-" } }
            td { @if let Some(count) = row.addresses { (count.allocated) " used, " (count.free) " free" } @else { "-" } }
        }
    }
}
