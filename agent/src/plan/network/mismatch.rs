//! Differences between the links after a step and the desired result of the step.

use berth_api::{LinkName, VlanSet};

use super::difference::{Difference, DifferenceList};

/// Desired result of a step that the observed links do not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The link does not exist.
    #[error("link {0} does not exist")]
    Absent(LinkName),
    /// The link exists, but its kind, VLAN or tunnel differs from the desired one.
    #[error("kind, VLAN or tunnel of link {0} differs from the desired one")]
    WrongKind(LinkName),
    /// Properties of the link differ from the desired ones.
    #[error("{link}: {}", DifferenceList(.differences))]
    PropertiesDiffer {
        link: LinkName,
        /// The properties.
        differences: Vec<Difference>,
    },
    #[error("{0} is down")]
    Down(LinkName),
    /// The link is not a port of the bridge.
    #[error("{port} is not a port of {bridge}")]
    NotAPort { port: LinkName, bridge: LinkName },
    /// The link is still a port of the bridge.
    #[error("{port} is still a port of {bridge}")]
    StillAPort { port: LinkName, bridge: LinkName },
    /// The port lacks some of the VLANs that the step added.
    #[error("{port} does not carry VLANs {vlans}")]
    MissingVlans { port: LinkName, vlans: VlanSet },
    /// The port still carries some of the VLANs that the step removed.
    #[error("{port} still carries VLANs {vlans}")]
    RemainingVlans { port: LinkName, vlans: VlanSet },
    #[error("link {0} still exists")]
    StillExists(LinkName),
}
