//! Observed state of trunks: VLANs that the switches carry, and switches that announce themselves with LLDP.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::unknown_value;
use crate::{LinkName, VlanRanges};

/// Result of the probes that the agents of all hosts exchange in the VLANs of a host network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrunkStatus {
    /// State of the trunk.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub state: TrunkState,
    /// VLANs in which no probes arrive from at least one other host that carries the VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<VlanRanges>,
    /// Nodes whose probes do not arrive in the VLANs of the field `vlans`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub from: Vec<String>,
    /// VLANs in which no probe arrives from any other host, so that the trunk is unverified for these VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified: Option<VlanRanges>,
    /// Reason why the state is unknown.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub reason: Option<TrunkUnknownReason>,
    /// Details of `reason`, or observations such as frames that arrive in another VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// State of the trunk of a host network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrunkState {
    /// In every VLAN, probes arrive from at least one other host, and from all other hosts that carry the VLAN.
    Verified,
    /// In some VLANs, no probes arrive from another host that carries these VLANs, although its probes arrive in other
    /// VLANs.
    Missing,
    /// In some or all VLANs, no probe arrives from any other host; or the agent cannot send or receive probes.
    #[default]
    Unknown,
}

/// Reason why the state of a trunk is unknown.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrunkUnknownReason {
    /// The agent has no valid key for the authentication of probes.
    NoKey,
    /// No probe of another host arrives in any VLAN of the network.
    NoPeers,
    /// Frames cannot be sent or received on the uplink.
    ProbeFailed,
    /// No probe of another host arrives in some VLANs, although probes arrive in other VLANs.
    VlansWithoutPeers,
}

impl TrunkUnknownReason {
    /// Returns true if the agent has no key. Without a key it sends and accepts no probes, and so counts no hosts.
    #[must_use]
    pub const fn has_no_key(self) -> bool {
        match self {
            Self::NoKey => true,
            Self::NoPeers | Self::ProbeFailed | Self::VlansWithoutPeers => false,
        }
    }
}

/// A switch port to which an uplink is connected, as the switch announces it with LLDP.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Neighbor {
    /// Uplink of this host, or port of its bond.
    pub uplink: LinkName,
    /// Chassis id of the switch, usually an Ethernet address.
    #[schemars(length(max = 255))]
    pub chassis: String,
    /// Name of the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub system_name: Option<String>,
    /// Port id, usually the name of the port.
    #[schemars(length(max = 255))]
    pub port: String,
    /// Description of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub description: Option<String>,
    /// VLAN of untagged frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_vlan: Option<u16>,
    /// VLANs that the switch announces. Most switches announce only some of the VLANs of a port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub vlans: Vec<NeighborVlan>,
}

/// A VLAN that a switch announces with LLDP.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeighborVlan {
    /// VLAN id.
    pub id: u16,
    /// Name of the VLAN; empty if the switch does not announce a name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 255))]
    pub name: String,
}
