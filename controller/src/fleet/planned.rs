//! Planned objects of tenants and MachineDeployments.

use berth_api::{CloneStrategy, VlanId};
use berth_kubevirt_render::machines::DiskClone;
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
    /// Strategies with which the disks of new machines are cloned, one entry for each golden image; without those whose
    /// storage class is not in the input.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<PlannedClone>,
}

/// Strategy with which disks are cloned from a golden image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedClone {
    /// Namespace and name of the golden image.
    pub image: String,
    /// Strategy that CDI uses.
    pub strategy: CloneStrategy,
    /// The strategy and its reason, for users.
    pub message: String,
}

impl PlannedClone {
    /// Returns the clones of a machine's disks, one for each golden image.
    pub(super) fn from_disks(disks: Vec<DiskClone>) -> Vec<Self> {
        let mut clones: Vec<Self> = Vec::new();
        for DiskClone { image_namespace, image_name, plan, .. } in disks {
            let image = format!("{image_namespace}/{image_name}");
            if !clones.iter().any(|one| one.image == image) {
                clones.push(Self { image, strategy: plan.strategy, message: plan.to_string() });
            }
        }
        clones
    }
}
