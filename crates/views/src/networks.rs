//! Host networks, on all hosts that have them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use berth_api::infra_node::{
    Neighbor, NetworkScenario, NetworkStatus, TenantNetworkState, TrunkState, TrunkStatus,
};
use berth_api::{InfraNode, VlanRanges, VlanSet};
use serde::Serialize;

use crate::issue::Severity;
use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// Kinds that the rows of networks need. InfraNodes are required; the other kinds add details.
pub const KINDS: [Kind; 4] =
    [Kind::InfraNode, Kind::TenantCluster, Kind::VlanClaim, Kind::InfraConfig];

/// A host network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRow {
    pub name: String,
    /// Scenarios of the hosts; usually one.
    pub scenarios: Vec<NetworkScenario>,
    pub severity: Severity,
    /// Number of hosts with this network in their spec; `None` if not all InfraNodes were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
    /// Number of TenantClusters that use it; `None` if not all TenantClusters were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<usize>,
    /// Numbers of tenant networks; `None` if not all InfraNodes were read.
    #[serde(flatten)]
    pub counts: Option<TenantNetworkCounts>,
    /// VLANs that are claimed, also those in quarantine, as in `100-119,150`; `None` if not all VlanClaims were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlans: Option<String>,
    /// Number of VLANs in the pools of the network that are not claimed; `None` without pools, or if not all VlanClaims or
    /// InfraConfigs were read.
    #[serde(rename = "freeVLANs", skip_serializing_if = "Option::is_none")]
    pub free_vlans: Option<usize>,
    /// Smallest MTU of the hosts; `None` if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Numbers of hosts by the state of their trunk; `None` for networks that carry no VLANs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunks: Option<TrunkCounts>,
    /// Faults on single hosts.
    pub faults: Vec<NetworkFault>,
}

/// Numbers of tenant networks, added over all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TenantNetworkCounts {
    pub ready: u64,
    pub pending: u64,
    pub failed: u64,
}

/// Numbers of hosts by the state of their trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrunkCounts {
    pub verified: usize,
    pub missing: usize,
    pub unknown: usize,
}

/// A fault of a host network on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFault {
    pub severity: Severity,
    pub host: String,
    /// Tenant network; `None` if the fault concerns the trunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_network: Option<String>,
    /// VLANs that the fault concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlans: Option<VlanRanges>,
    /// Switch port of the uplink according to LLDP, such as `leaf-1 Ethernet7`, if the switch announces it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_port: Option<String>,
    pub message: String,
}

/// Returns a row for each host network that a host has, or that a TenantCluster, a pool or a claim names.
#[must_use]
pub fn rows(snapshot: &Snapshot) -> Vec<NetworkRow> {
    let mut networks: BTreeMap<&str, Collected> = BTreeMap::new();
    for (host, infra) in &snapshot.infra_nodes {
        for network in &infra.spec.networks {
            networks.entry(&network.name).or_default().add_host(network.scenario);
        }
        for status in infra.status.iter().flat_map(|status| &status.networks) {
            let port = switch_port(infra, &status.name);
            networks.entry(&status.name).or_default().add_status(host, status, port.as_deref());
        }
    }
    for network in snapshot.tenants.values().filter_map(|tenant| tenant.spec.network.as_ref()) {
        let collected = networks.entry(&network.name).or_default();
        collected.tenants = collected.tenants.saturating_add(1);
    }
    for pool in snapshot.config.iter().flat_map(|config| &config.vlan_pools) {
        let collected = networks.entry(&pool.network).or_default();
        let vlans = collected.pool.get_or_insert_default();
        for id in pool.ranges.iter().flat_map(|range| range.ids().iter()) {
            vlans.insert(id);
        }
    }
    for claim in snapshot.vlan_claims.values() {
        let collected = networks.entry(&claim.spec.network).or_default();
        if let Some(id) = claim.spec.vlan {
            collected.claimed.insert(id);
        }
    }
    networks.into_iter().map(|(name, collected)| collected.into_row(name, snapshot)).collect()
}

/// Returns the switch ports of the uplink of a host network, according to LLDP. If the uplink is not selected by its name,
/// or is a bond, returns all switch ports of the host.
fn switch_port(infra: &InfraNode, network: &str) -> Option<String> {
    let neighbors = &infra.status.as_ref()?.neighbors;
    let network = infra.spec.networks.iter().find(|one| one.name == network);
    let uplink = network.and_then(|one| one.uplink.as_ref()?.name.as_ref());
    let is_of_uplink = |one: &&Neighbor| Some(&one.uplink) == uplink;
    let has_uplink = neighbors.iter().any(|one| is_of_uplink(&one));
    let ports = neighbors.iter().filter(|one| !has_uplink || is_of_uplink(one));
    let ports: Vec<String> = ports
        .map(|one| format!("{} {}", one.system_name.as_ref().unwrap_or(&one.chassis), one.port))
        .collect();
    (!ports.is_empty()).then(|| ports.join(", "))
}

/// A host network while its hosts are counted.
#[derive(Default)]
struct Collected {
    row: NetworkRow,
    hosts: usize,
    tenants: usize,
    counts: TenantNetworkCounts,
    claimed: VlanSet,
    /// VLANs of the pools; `None` without a pool.
    pool: Option<VlanSet>,
}

impl Collected {
    fn add_host(&mut self, scenario: NetworkScenario) {
        self.hosts = self.hosts.saturating_add(1);
        if !self.row.scenarios.contains(&scenario) {
            self.row.scenarios.push(scenario);
        }
    }

    fn add_status(&mut self, host: &str, status: &NetworkStatus, switch_port: Option<&str>) {
        let Self { row, counts, .. } = self;
        counts.ready = counts.ready.saturating_add(status.ready.into());
        counts.pending = counts.pending.saturating_add(status.pending.into());
        counts.failed = counts.failed.saturating_add(status.failed.into());
        row.mtu = row.mtu.into_iter().chain(status.mtu).min();
        for one in &status.not_ready {
            let has_failed = one.state == TenantNetworkState::Failed;
            row.faults.push(NetworkFault {
                severity: if has_failed { Severity::Failure } else { Severity::Warning },
                host: host.to_owned(),
                tenant_network: Some(one.tenant.clone()),
                vlans: one.vlan.map(|vlan| VlanRanges::from(VlanSet::from_iter([vlan]))),
                switch_port: None,
                message: one.message.clone().unwrap_or_default(),
            });
        }
        if let Some(trunk) = &status.trunk {
            row.trunks.get_or_insert_default().add(trunk.state);
            row.faults.extend(trunk_fault(host, trunk, switch_port));
        }
    }

    /// Returns the row. Numbers of objects that were not all read are unknown.
    fn into_row(self, name: &str, snapshot: &Snapshot) -> NetworkRow {
        let Self { mut row, hosts, tenants, counts, claimed, pool } = self;
        let is_read = |kind: Kind| !snapshot.is_unread(kind);
        name.clone_into(&mut row.name);
        row.hosts = is_read(Kind::InfraNode).then_some(hosts);
        row.counts = is_read(Kind::InfraNode).then_some(counts);
        row.tenants = is_read(Kind::TenantCluster).then_some(tenants);
        row.vlans = is_read(Kind::VlanClaim).then(|| claimed.to_string());
        let is_known = is_read(Kind::VlanClaim) && is_read(Kind::InfraConfig);
        row.free_vlans = pool.filter(|_| is_known).map(|pool| pool.difference(&claimed).len());
        row.faults.sort_by_key(|fault| Reverse(fault.severity));
        row.severity = row.faults.iter().map(|fault| fault.severity).max().unwrap_or_default();
        row
    }
}

impl TrunkCounts {
    const fn add(&mut self, state: TrunkState) {
        let count = match state {
            TrunkState::Verified => &mut self.verified,
            TrunkState::Missing => &mut self.missing,
            TrunkState::Unknown => &mut self.unknown,
        };
        *count = count.saturating_add(1);
    }
}

/// Returns the fault of a trunk on a host; `None` if all its VLANs are verified.
fn trunk_fault(host: &str, trunk: &TrunkStatus, switch_port: Option<&str>) -> Option<NetworkFault> {
    let text = trunk.message.clone();
    let (severity, vlans, message) = match trunk.state {
        TrunkState::Verified => return None,
        TrunkState::Missing => {
            let from = trunk.from.join(", ");
            (Severity::Failure, trunk.vlans.clone(), format!("no probes arrive from {from}"))
        }
        TrunkState::Unknown => {
            let message = text.unwrap_or_else(|| "no probes arrive from any other host".to_owned());
            (Severity::Warning, trunk.unverified.clone(), message)
        }
    };
    Some(NetworkFault {
        severity,
        host: host.to_owned(),
        tenant_network: None,
        vlans,
        switch_port: switch_port.map(str::to_owned),
        message,
    })
}
