//! Planned objects of tenants and MachineDeployments.

use berth_api::VlanId;
use serde::Serialize;

/// A tenant with its planned network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The host network that carries the tenant's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// The VXLAN network identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Number of hosts that would carry it.
    pub hosts: usize,
}

/// Machines of a MachineDeployment that would be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// Namespace and name of the MachineDeployment.
    pub machine_deployment: String,
    /// Namespace of its VMs.
    pub namespace: String,
    /// Number of desired machines.
    pub wanted: u32,
    /// Number of existing machines.
    pub there: u32,
}
