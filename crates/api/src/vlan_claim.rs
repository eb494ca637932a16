//! VlanClaim: allocation of a VLAN or VNI to a tenant. The object's name contains the host network and the VLAN or VNI,
//! so the API server refuses a second claim for the same VLAN or VNI.

#![expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")]
#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Time, VlanId};

/// A VLAN or VNI of a host network that is allocated to a tenant. After the tenant is deleted, the claim remains until
/// its quarantine ends.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "VlanClaim",
    plural = "vlanclaims",
    shortname = "vclaim",
    category = "berth",
    status = "VlanClaimStatus",
    derive = "PartialEq",
    doc = "A VLAN or VNI that is allocated to a tenant. The claim's name is <network>-<vlan> or <network>-vni-<vni>, so each VLAN or VNI of a network has at most one claim.",
    printcolumn(name = "Network", type_ = "string", json_path = ".spec.network"),
    printcolumn(name = "VLAN", type_ = "integer", json_path = ".spec.vlan"),
    printcolumn(name = "VNI", type_ = "integer", json_path = ".spec.vni"),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant"),
    printcolumn(
        name = "Released",
        type_ = "date",
        json_path = ".status.releasedAt",
        description = "Start of the quarantine"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.vlan) != has(self.vni)")
        .message("exactly one of vlan and vni must be set"),
    validation = Rule::new("self.network == oldSelf.network && self.tenant == oldSelf.tenant && has(self.vlan) == has(oldSelf.vlan) && (!has(self.vlan) || self.vlan == oldSelf.vlan) && has(self.vni) == has(oldSelf.vni) && (!has(self.vni) || self.vni == oldSelf.vni)")
        .message("only tenantUID may change, to the UID of a later TenantCluster of the same name")
)]
pub struct VlanClaimSpec {
    /// Name of the host network.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// Allocated VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// Allocated VXLAN network identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<u32>,
    /// TenantCluster to which the VLAN or VNI is allocated.
    #[schemars(length(min = 1, max = 253))]
    pub tenant: String,
    /// UID of the TenantCluster. A later TenantCluster of the same name does not own the claim. However, the controller
    /// may change this field to its UID while the claim is in quarantine.
    #[serde(rename = "tenantUID")]
    #[schemars(length(min = 1, max = 64))]
    pub tenant_uid: String,
}

/// Observed state of a claim.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VlanClaimStatus {
    /// Time at which all resources of the deleted tenant were removed. The claim is deleted at the end of the
    /// quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
}

impl VlanClaim {
    /// Returns the name of the VlanClaim for a VLAN of a host network.
    #[must_use]
    pub fn name_for_vlan(network: &str, vlan: VlanId) -> String {
        format!("{network}-{vlan}")
    }

    /// Returns the name of the VlanClaim for a VXLAN network identifier of a host network.
    #[must_use]
    pub fn name_for_vni(network: &str, vni: u32) -> String {
        format!("{network}-vni-{vni}")
    }
}
