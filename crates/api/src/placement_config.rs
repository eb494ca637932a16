//! `InfraConfig.spec.placement`: preferences for the placement of VMs on hosts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Topology key of the spread of control-plane VMs if the InfraConfig specifies none.
const DEFAULT_TOPOLOGY_KEY: &str = "kubernetes.io/hostname";
/// Maximum weight, which is also the default.
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

/// Spread of the control-plane VMs of all tenants over hosts. It is a preference, so no VM stays without a host because of
/// it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneSpread {
    /// Key of a label of infra Nodes. VMs are spread evenly over its values. Default `kubernetes.io/hostname`: over
    /// hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
    /// Weight of the spread in the choice of a host, from 0 (no spread) to 100. With 100, one control-plane VM more
    /// outweighs the best packing. Default 100.
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

    /// Returns the weight, or the default. A weight above 100 counts as 100.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(MAX_WEIGHT).min(MAX_WEIGHT)
    }
}
