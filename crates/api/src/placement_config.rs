//! `InfraConfig.spec.placement`: preferences for the placement of VMs on hosts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Default of `ControlPlaneSpread::topology_key`.
const DEFAULT_TOPOLOGY_KEY: &str = "kubernetes.io/hostname";
/// Maximum and default of `ControlPlaneSpread::weight`.
const MAX_WEIGHT: u32 = 100;

/// Preferences for the placement of VMs on hosts.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlacementConfig {
    /// Spread of the control-plane VMs of all tenants over hosts. Control-plane VMs are those with the label
    /// `cluster.x-k8s.io/role: control-plane`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_spread: Option<ControlPlaneSpread>,
}

/// Spread of the control-plane VMs of all tenants over hosts. The spread is only a preference: it never prevents the
/// placement of a VM.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneSpread {
    /// Key of a label of infra Nodes. VMs are spread evenly over the values of this label. Default
    /// `kubernetes.io/hostname`: over hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
    /// Weight of the spread in the choice of a host, from 0 (no spread) to 100. With 100, a host with fewer
    /// control-plane VMs is preferred, even if the VM would fill the gaps of another host better. Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub weight: Option<u32>,
}

impl ControlPlaneSpread {
    /// Returns the topology key, or the default.
    #[must_use]
    pub fn topology_key(&self) -> &str {
        self.topology_key.as_deref().unwrap_or(DEFAULT_TOPOLOGY_KEY)
    }

    /// Returns the weight, or the default. Returns 100 if the weight is above 100.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(MAX_WEIGHT).min(MAX_WEIGHT)
    }
}
