//! Simulation of agents: an agent reports the resources that the kubelet of its host has allocated, and that the
//! networks of the spec are applied.

use std::collections::BTreeMap;

use anyhow::Result;
use berth_api::infra_node::NetworkStatus;
use berth_api::{InfraNode, InfraNodeStatus};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::kubelet::SimulatedHost;

/// Writes the reports that differ from the status of their InfraNode. `admitted` maps the uid of each admitted pod to
/// the name of its host.
pub(super) async fn write_reports(
    client: &Client,
    hosts: &BTreeMap<String, SimulatedHost>,
    admitted: &BTreeMap<String, String>,
) -> Result<()> {
    let api: Api<InfraNode> = Api::all(client.clone());
    for infra in api.list(&ListParams::default()).await?.items {
        let name = infra.name_any();
        let Some(host) = hosts.get(&name) else { continue };
        let report = report(host, &infra, admitted);
        if infra.status.as_ref() == Some(&report) {
            continue;
        }
        let mut status = serde_json::to_value(&report)?;
        // Serialization omits empty lists, and a merge patch does not change omitted fields, so the lists are set
        // explicitly.
        status["allocations"] = json!(report.allocations);
        status["networks"] = json!(report.networks);
        // The controller writes the conditions, so the simulated agent must not change them.
        if let Some(fields) = status.as_object_mut() {
            fields.remove("conditions");
        }
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(&name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

fn report(
    host: &SimulatedHost,
    infra: &InfraNode,
    admitted: &BTreeMap<String, String>,
) -> InfraNodeStatus {
    let uids = admitted.iter().filter(|(_, name)| **name == host.name);
    let allocations =
        uids.filter_map(|(uid, _)| (host.report_allocation)(&host.state, uid)).collect();
    let networks = infra.spec.networks.iter().map(|network| {
        let tenants = infra.spec.tenant_networks.iter();
        let count = tenants.filter(|tenant| tenant.network == network.name).count();
        NetworkStatus {
            name: network.name.clone(),
            ready: u32::try_from(count).unwrap_or(u32::MAX),
            ..NetworkStatus::default()
        }
    });
    let conditions = infra.status.iter().flat_map(|status| status.conditions.clone());
    InfraNodeStatus {
        observed_generation: infra.metadata.generation,
        allocations,
        networks: networks.collect(),
        conditions: conditions.collect(),
        ..host.report.clone()
    }
}
