//! Planned objects of tenants and MachineDeployments.

use berth_api::VlanId;
use serde::Serialize;

/// A tenant with its planned network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Name of the tenant.
    pub name: String,
    /// Namespace of the tenant.
    pub namespace: String,
    /// The host network that carries the tenant's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// VLAN of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Number of hosts that would carry the tenant's network.
    pub hosts: usize,
}

/// Machines of a MachineDeployment that would be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// Namespace and name of the MachineDeployment.
    pub machine_deployment: String,
    /// Namespace of the machines.
    pub namespace: String,
    /// Number of desired machines.
    pub wanted: u32,
    /// Number of existing machines.
    pub there: u32,
}
