//! Steps whose result differs from the observed links.

use berth_api::{LinkName, VlanSet};

use super::difference::{Difference, Listed};

/// A step that is not in effect, by the observed links.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// There is no such link.
    #[error("{0} is not there")]
    Absent(LinkName),
    /// The link of that name is of another kind, VLAN or tunnel.
    #[error("{0} is another link")]
    AnotherLink(LinkName),
    /// The link has other properties.
    #[error("{link}: {}", Listed(.differences))]
    Differs {
        /// The link.
        link: LinkName,
        /// The properties.
        differences: Vec<Difference>,
    },
    /// The link is down.
    #[error("{0} is down")]
    Down(LinkName),
    /// The link is no port of the bridge.
    #[error("{port} is no port of {bridge}")]
    NoPort {
        /// The link.
        port: LinkName,
        /// The bridge.
        bridge: LinkName,
    },
    /// The link is still a port of the bridge.
    #[error("{port} still is a port of {bridge}")]
    StillPort {
        /// The link.
        port: LinkName,
        /// The bridge.
        bridge: LinkName,
    },
    /// The port lacks VLANs.
    #[error("{port} does not carry VLANs {vlans}")]
    MissingVlans {
        /// The port.
        port: LinkName,
        /// The VLANs.
        vlans: VlanSet,
    },
    /// The port has VLANs left.
    #[error("{port} still carries VLANs {vlans}")]
    LeftVlans {
        /// The port.
        port: LinkName,
        /// The VLANs.
        vlans: VlanSet,
    },
    /// The link still exists.
    #[error("{0} is still there")]
    StillThere(LinkName),
}
