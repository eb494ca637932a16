//! Desired links, with their names, addresses and sizes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{LinkName, MacAddress, VlanId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredLink {
    pub name: LinkName,
    /// Alias, which names the owner of the link.
    pub alias: String,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// The bridge that the link is a port of; `None` if the link is not a port.
    pub master: Option<LinkName>,
    /// Kind of the link, with its properties.
    pub kind: DesiredKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredKind {
    /// A bridge without an IP address and without multicast snooping; with the spanning tree
    /// protocol only if the spec requests it.
    Bridge {
        /// Fixed hardware address. Otherwise the address would follow the addresses of the ports,
        /// and each change would cause an outage.
        mac: MacAddress,
        /// True if the bridge filters VLANs.
        vlan_aware: bool,
        /// True if the bridge uses the spanning tree protocol.
        stp: bool,
    },
    /// A VLAN link.
    Vlan {
        /// The link below the VLAN link.
        parent: LinkName,
        /// 802.1Q id.
        id: VlanId,
    },
    /// A VXLAN tunnel.
    Vxlan {
        /// VXLAN network identifier.
        vni: u32,
        /// UDP port.
        port: u16,
        /// Local address of the tunnel.
        local: IpAddr,
        /// Addresses of the peers.
        peers: Arc<BTreeSet<IpAddr>>,
    },
}
