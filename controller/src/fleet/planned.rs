//! Planned objects of tenants and MachineDeployments.

use berth_api::VlanId;
use serde::Serialize;

/// A tenant with its planned network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedTenant {
    pub name: String,
    pub namespace: String,
    /// Name of the host network that carries the tenant's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// VLAN that the tenant has or would be assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier (VNI) that the tenant has or would be assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Number of hosts that would carry the tenant's network.
    pub hosts: usize,
}

/// Numbers of existing and desired machines of a MachineDeployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineCounts {
    /// Namespace and name of the MachineDeployment.
    pub machine_deployment: String,
    pub namespace: String,
    /// Number of desired machines.
    #[serde(rename = "wanted")]
    pub desired: u32,
    /// Number of existing machines. The controller would create the missing machines.
    #[serde(rename = "there")]
    pub existing: u32,
}
