//! Single steps on links, of which a change consists.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{LinkName, VlanSet};

use super::desired_link::DesiredLink;

/// One step on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkOp {
    /// Creates the link. The link is set up after all steps of its change.
    Create(DesiredLink),
    /// Sets the desired properties of an existing link.
    SetProperties(DesiredLink),
    /// Turns the VLAN filtering of a tenant's bridge off.
    DisableVlanFiltering(LinkName),
    RemoveAddresses {
        link: LinkName,
        /// The addresses with prefix length.
        addresses: Vec<String>,
    },
    /// Sets the link up.
    Up(LinkName),
    /// Sets the link down.
    Down(LinkName),
    /// Makes the link a port of a bridge.
    Join {
        port: LinkName,
        bridge: LinkName,
    },
    /// Removes the link from its bridge.
    Leave {
        port: LinkName,
        /// The bridge that the link was a port of.
        bridge: LinkName,
    },
    /// Adds VLANs to a port; the port sends their frames with tags.
    AddVlans {
        port: LinkName,
        /// VLAN ids.
        vlans: VlanSet,
    },
    /// Removes VLANs from a port, or from the bridge's own port (`bridge vlan del ... self`).
    RemoveVlans {
        port: LinkName,
        /// VLAN ids.
        vlans: VlanSet,
        /// True if `port` is a bridge, and the VLANs are removed from the bridge itself (`self`).
        bridge_self: bool,
    },
    /// Changes the flood list of a tunnel, which contains the peers to which BUM traffic is sent.
    UpdatePeers {
        /// The VXLAN link.
        link: LinkName,
        /// Addresses of new peers.
        add: BTreeSet<IpAddr>,
        /// Addresses of peers that are no longer in the spec.
        remove: BTreeSet<IpAddr>,
    },
    Remove(LinkName),
}

impl LinkOp {
    /// Returns true if the step may disconnect links that are attached to the changed link, to its bridge, or to
    /// its VLANs.
    #[must_use]
    pub const fn may_disconnect_links(&self) -> bool {
        matches!(
            self,
            Self::Remove(_)
                | Self::Down(_)
                | Self::Leave { .. }
                | Self::Join { .. }
                | Self::RemoveVlans { bridge_self: false, .. }
        )
    }

    /// Returns the link that the step changes.
    #[must_use]
    pub const fn link(&self) -> &LinkName {
        match self {
            Self::Create(desired) | Self::SetProperties(desired) => &desired.name,
            Self::RemoveAddresses { link, .. } | Self::UpdatePeers { link, .. } => link,
            Self::Up(link)
            | Self::Down(link)
            | Self::Remove(link)
            | Self::DisableVlanFiltering(link) => link,
            Self::Join { port, .. }
            | Self::Leave { port, .. }
            | Self::AddVlans { port, .. }
            | Self::RemoveVlans { port, .. } => port,
        }
    }
}
