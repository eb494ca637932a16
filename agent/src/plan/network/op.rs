//! Steps on links.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{LinkName, VlanSet};

use super::desired::DesiredLink;

/// One step on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkOp {
    /// Makes it, and raises it last.
    Make(DesiredLink),
    /// Gives an existing link its desired properties.
    Settle(DesiredLink),
    /// Turns the VLAN filtering of a tenant's bridge off.
    Unfilter(LinkName),
    /// Takes addresses away.
    RemoveAddresses {
        /// From here.
        link: LinkName,
        /// With prefix length.
        addresses: Vec<String>,
    },
    /// Raises it.
    Up(LinkName),
    /// Lowers it.
    Down(LinkName),
    /// Makes it a port of a bridge.
    Join {
        /// The port.
        port: LinkName,
        /// The bridge.
        bridge: LinkName,
    },
    /// Removes it from its bridge.
    Leave {
        /// The port.
        port: LinkName,
        /// The bridge it was a port of.
        bridge: LinkName,
    },
    /// Lets a port carry VLANs, tagged.
    AddVlans {
        /// The port.
        port: LinkName,
        /// VLAN ids.
        vlans: VlanSet,
    },
    /// Lets a port, or the bridge itself, no longer carry VLANs.
    RemoveVlans {
        /// The port.
        port: LinkName,
        /// VLAN ids.
        vlans: VlanSet,
        /// Whether it is the bridge itself.
        itself: bool,
    },
    /// Changes the flood list of a tunnel: the peers that it sends BUM traffic to.
    Peers {
        /// The VXLAN link.
        link: LinkName,
        /// New ends.
        add: BTreeSet<IpAddr>,
        /// Ends that are gone.
        remove: BTreeSet<IpAddr>,
    },
    /// Removes it, unless it is a bridge with ports.
    Remove(LinkName),
}

impl LinkOp {
    /// Returns true if links that are attached may lose the network by it.
    #[must_use]
    pub const fn takes_away(&self) -> bool {
        matches!(
            self,
            Self::Remove(_)
                | Self::Down(_)
                | Self::Leave { .. }
                | Self::Join { .. }
                | Self::RemoveVlans { itself: false, .. }
        )
    }

    /// Returns the link that it works on.
    #[must_use]
    pub const fn link(&self) -> &LinkName {
        match self {
            Self::Make(desired) | Self::Settle(desired) => &desired.name,
            Self::RemoveAddresses { link, .. } | Self::Peers { link, .. } => link,
            Self::Up(link) | Self::Down(link) | Self::Remove(link) | Self::Unfilter(link) => link,
            Self::Join { port, .. }
            | Self::Leave { port, .. }
            | Self::AddVlans { port, .. }
            | Self::RemoveVlans { port, .. } => port,
        }
    }
}
