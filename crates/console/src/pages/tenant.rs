//! One tenant.

use std::sync::Arc;

use berth_api::VlanId;
use berth_api::infra_node::{NetworkStatus, TenantNetworkStatus};
use berth_views::tenants::{self, TenantDetail};
use berth_views::{DeploymentFields, ObjectName, Severity, Snapshot};
use maud::{Markup, html};

use super::layout::Content;
use super::machines::machine_table;
use super::parts::{
    badge, condition_table, excerpt, facts, host_link, issue_list, known, notices, table,
    tenant_path,
};
use super::reads::{QuotaRow, Read, VolumeRow, quota_section, volume_section};
use super::tenants::{network_id, state};

/// Objects and permissions that the page of a tenant reads with the credential of the user.
pub(crate) struct TenantReads {
    pub(crate) quotas: Arc<Read<QuotaRow>>,
    pub(crate) volumes: Arc<Read<VolumeRow>>,
    /// True if the user may create MachineDeployments of the tenant.
    pub(crate) may_create: bool,
}

/// Returns the page of a tenant; `None` if the user sees no such tenant.
pub(crate) fn content(snapshot: &Snapshot, name: &str, reads: &TenantReads) -> Option<Content> {
    let detail = tenants::detail(snapshot, name)?;
    let row = &detail.row;
    let view = html! {
        (notices(snapshot))
        p { (state(row)) }
        (issue_list(&row.issues))
        section {
            h2 { "Network" }
            (facts(&[
                ("Namespace", html! { (row.namespace) }),
                ("Host network", html! { (known(row.network.as_ref())) }),
                ("VLAN or VNI", html! { (network_id(row)) }),
                ("MTU", html! { (known(row.mtu)) }),
                ("Hosts", html! { @if let Some(hosts) = row.hosts { (hosts.ready) " of " (hosts.selected) " ready" } @else { "-" } }),
            ]))
            (prefixes(&detail))
        }
        section { h2 { "Trunk by host" } (trunk_matrix(snapshot, &detail)) }
        section {
            h2 { "MachineDeployments" }
            @if reads.may_create { p { a href={ (tenant_path(name)) "/create" } { "Create machines" } } }
            p { a href={ (tenant_path(name)) "/what-if" } { "What if the tenant gets more machines?" } }
            (deployment_table(snapshot, &row.namespace))
        }
        section { h2 { "Machines" } (machine_table(&detail.machine_rows, "The tenant has no machines that you may see.")) }
        section { h2 { "Conditions" } (condition_table(&detail.conditions)) }
        (quota_section(&reads.quotas))
        (volume_section(&reads.volumes))
    };
    Some(Content { form: None, view })
}

/// Returns the MachineDeployments in the namespace of the tenant, with the conditions that are not true.
fn deployment_table(snapshot: &Snapshot, namespace: &str) -> Markup {
    let own = snapshot.deployments.iter().filter(|(name, _)| name.namespace == namespace);
    let row = |(name, fields): (&ObjectName, &DeploymentFields)| {
        let is_ready = fields.ready >= fields.desired;
        let severity = if is_ready { Severity::Ok } else { Severity::Warning };
        let faults = fields.conditions.iter().filter(|one| one.status != "True");
        html! {
            tr {
                th scope="row" { (name.name) }
                td { (badge(severity, format!("{} of {} ready", fields.ready, fields.desired))) }
                td {
                    @for fault in faults {
                        p { (fault.type_) ": " (fault.reason) ": " (excerpt(&fault.message)) }
                    }
                }
            }
        }
    };
    let rows: Vec<Markup> = own.map(row).collect();
    let empty = "The tenant has no MachineDeployments that you may see.";
    table("MachineDeployments", &["Name", "Machines", "Conditions"], &rows, empty)
}

fn prefixes(detail: &TenantDetail) -> Markup {
    let rows: Vec<Markup> = detail
        .prefixes
        .iter()
        .map(|prefix| {
            html! {
                tr {
                    th scope="row" { (prefix.cidr) }
                    td { (prefix.allocated) }
                    td { (prefix.quarantined) }
                    td { (prefix.free) }
                }
            }
        })
        .collect();
    let head = ["Prefix", "Allocated", "In quarantine", "Free"];
    table("Addresses", &head, &rows, "The network has no address pools.")
}

/// Returns the state of the tenant's VLAN on each host that has its host network.
fn trunk_matrix(snapshot: &Snapshot, detail: &TenantDetail) -> Markup {
    let network = detail.row.network.as_deref();
    let own = |status: &&NetworkStatus| Some(status.name.as_str()) == network;
    let mut rows = Vec::new();
    for (host, infra) in &snapshot.infra_nodes {
        let statuses = infra.status.iter().flat_map(|status| &status.networks);
        for status in statuses.filter(own) {
            let fault = status.not_ready.iter().find(|one| is_of_tenant(one, detail));
            rows.push(html! {
                tr {
                    th scope="row" { (host_link(host)) }
                    td {
                        @match fault {
                            None => { (badge(Severity::Ok, "Ready")) }
                            Some(fault) => {
                                (badge(Severity::Failure, format!("{:?}", fault.state))) " " (excerpt(fault.message.as_deref().unwrap_or_default()))
                            }
                        }
                    }
                    td { (trunk_state(status, detail.row.vlan)) }
                    td { (known(status.mtu)) }
                }
            });
        }
    }
    let head = ["Host", "Tenant network", "Trunk", "MTU"];
    table(
        "Trunk by host",
        &head,
        &rows,
        "No host that you may see has the host network of this tenant.",
    )
}

fn is_of_tenant(status: &TenantNetworkStatus, detail: &TenantDetail) -> bool {
    status.tenant == detail.row.namespace
        || (status.vlan.is_some() && status.vlan == detail.row.vlan)
        || (status.vni.is_some() && status.vni == detail.row.vni)
}

fn trunk_state(status: &NetworkStatus, vlan: Option<VlanId>) -> Markup {
    let Some(trunk) = &status.trunk else { return html! { "-" } };
    let missing =
        vlan.filter(|vlan| trunk.vlans.as_ref().is_some_and(|all| all.ids().contains(*vlan)));
    let unverified =
        vlan.filter(|vlan| trunk.unverified.as_ref().is_some_and(|all| all.ids().contains(*vlan)));
    match (missing, unverified) {
        (Some(vlan), _) => badge(Severity::Failure, format!("VLAN {vlan} is missing")),
        (None, Some(vlan)) => badge(Severity::Warning, format!("VLAN {vlan} is not verified")),
        (None, None) => html! { (format!("{:?}", trunk.state)) },
    }
}
