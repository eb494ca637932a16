//! State of each host network, for the status of the InfraNode.

use std::collections::BTreeMap;

use berth_api::infra_node::{NetworkStatus, TenantNetworkState, TenantNetworkStatus};
use berth_api::{LinkName, VlanId, VlanSet};
use serde::Serialize;

use super::action::Stage;
use super::desired_network::DesiredNetwork;
use super::effective_mtu;
use super::planner::Planner;
use crate::plan::input::Input;

/// `maxItems` of `status.networks[].notReady` in the CRD.
const MAX_NOT_READY: usize = 64;

/// State of one host network. A tenant is in place if its VLAN or its links exist as desired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkState {
    /// Name of the network (`spec.networks[].name`).
    pub name: String,
    /// Number of tenants in place.
    pub ready: u32,
    /// The tenants that are not in place, by VLAN ID or VNI.
    pub not_ready: BTreeMap<u32, NotReadyTenant>,
    /// True if the keys of `not_ready` are VNIs, false if they are VLAN IDs.
    #[serde(skip)]
    pub uses_vni: bool,
    /// Effective MTU in bytes; `None` if it is unknown.
    #[serde(skip)]
    pub mtu: Option<u32>,
    /// VLANs that are in place on the uplink; `None` if the uplink carries no tagged frames of tenants (scenarios
    /// Vxlan and SriovVf).
    #[serde(skip)]
    pub trunk: Option<PlannedTrunk>,
}

/// VLANs that are in place on an uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTrunk {
    pub uplink: LinkName,
    /// VLANs of the tenants that are in place.
    pub vlans: VlanSet,
}

/// A tenant that is not in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotReadyTenant {
    /// Name of the tenant (`spec.tenantNetworks[].name`).
    pub tenant: String,
    /// Pending or Failed.
    pub state: TenantNetworkState,
    /// Reason why the tenant is not in place.
    pub message: String,
}

impl NetworkState {
    /// Returns the entry in `status.networks`.
    #[must_use]
    pub fn status(&self) -> NetworkStatus {
        let count = |state| {
            let matching = self.not_ready.values().filter(|tenant| tenant.state == state);
            berth_host_facts::kernel_files::saturating_u32(matching.count())
        };
        let one = |(id, tenant): (&u32, &NotReadyTenant)| {
            let vlan = u16::try_from(*id).ok().and_then(|id| VlanId::try_from(id).ok());
            TenantNetworkStatus {
                tenant: tenant.tenant.clone(),
                vlan: vlan.filter(|_| !self.uses_vni),
                vni: self.uses_vni.then_some(*id),
                state: tenant.state,
                message: Some(tenant.message.chars().take(1024).collect()),
            }
        };
        NetworkStatus {
            name: self.name.clone(),
            ready: self.ready,
            pending: count(TenantNetworkState::Pending),
            failed: count(TenantNetworkState::Failed),
            not_ready: self.not_ready.iter().take(MAX_NOT_READY).map(one).collect(),
            mtu: self.mtu,
            trunk: None,
        }
    }
}

/// Returns the state of a network whose changes are planned.
pub(super) fn network_state(network: &DesiredNetwork, planner: &Planner) -> NetworkState {
    let mut state = NetworkState {
        name: network.name.to_owned(),
        uses_vni: network.scenario.is_vxlan(),
        mtu: Some(effective_mtu::for_planned_network(planner.links, network)),
        trunk: network.scenario.has_trunk().then(|| PlannedTrunk {
            uplink: network.uplink.name.clone(),
            vlans: VlanSet::default(),
        }),
        ..NetworkState::default()
    };
    // No tenant is in place before the pending changes of the bridge and the uplink are applied.
    let prerequisite = planner.changes.iter().find(|change| {
        change.blocked.is_none()
            && change.link_action().is_some_and(|action| action.stage < Stage::Tenants)
    });
    for tenant in &network.tenants {
        let not_ready = |state, message: String| NotReadyTenant {
            tenant: tenant.name.to_owned(),
            state,
            message,
        };
        let found = if let Some(reason) = planner
            .failed_tenants
            .get(&tenant.segment_number())
            .or(planner.network_failure.as_ref())
        {
            not_ready(TenantNetworkState::Failed, reason.clone())
        } else if let Some(reason) = planner.waiting_tenants.get(&tenant.segment_number()) {
            not_ready(TenantNetworkState::Pending, reason.clone())
        } else if planner.pending_tenants.contains(&tenant.segment_number()) {
            not_ready(
                TenantNetworkState::Pending,
                "waiting until the links of the tenant have been created".to_owned(),
            )
        } else if let Some(change) = prerequisite {
            not_ready(TenantNetworkState::Pending, format!("waiting for the change: {}", change.id))
        } else {
            state.ready += 1;
            if let (Some(trunk), Some(vlan)) = (&mut state.trunk, tenant.segment.vlan()) {
                trunk.vlans.insert(vlan);
            }
            continue;
        };
        state.not_ready.insert(tenant.segment_number(), found);
    }
    state
}

/// Returns the state of a network that is frozen: for this reason, its links are not changed.
pub(super) fn frozen_state(input: Input, name: &str, reason: &str) -> NetworkState {
    let tenants = input.spec.tenant_networks.iter().filter(|tenant| tenant.network == name);
    let mut state = NetworkState {
        name: name.to_owned(),
        mtu: effective_mtu::for_frozen_network(&input.facts.links, &input.facts.ledger, name),
        ..NetworkState::default()
    };
    for tenant in tenants {
        let vlan = tenant.vlan.map(|vlan| u32::from(u16::from(vlan)));
        state.uses_vni |= vlan.is_none();
        let Some(id) = vlan.or(tenant.vni) else { continue };
        let message = format!("this network is not changed: {reason}");
        let failed = TenantNetworkState::Failed;
        let tenant = NotReadyTenant { tenant: tenant.name.clone(), state: failed, message };
        state.not_ready.insert(id, tenant);
    }
    state.trunk = frozen_trunk(input, name).filter(|_| !state.uses_vni);
    state
}

/// Returns the VLANs that were in place before the network was frozen, and that stay in place.
fn frozen_trunk(input: Input, name: &str) -> Option<PlannedTrunk> {
    let record = input.facts.ledger.networks.get(name)?;
    let vlan = |id: &u32| u16::try_from(*id).ok().and_then(|id| VlanId::try_from(id).ok());
    let vlans = record.tenants.keys().filter_map(vlan).collect();
    Some(PlannedTrunk { uplink: record.uplink.clone()?, vlans })
}
