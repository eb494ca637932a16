//! Properties of bridges, ports, tunnels and IP that another program may set differently from Berth.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{VlanId, VlanSet};

/// Options of a bridge (`Documentation/networking/bridge.rst`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BridgeOptions {
    /// VLAN that a new port gets, untagged; 0 means no VLAN.
    pub default_pvid: Option<u16>,
    /// Spanning tree protocol.
    pub stp: Option<bool>,
    /// Time until a new port forwards frames, in hundredths of a second.
    pub forward_delay: Option<u32>,
    /// IGMP and MLD snooping.
    pub mcast_snooping: Option<bool>,
}

/// The VLANs of a bridge's port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortVlans {
    /// All VLANs of the port.
    pub all: VlanSet,
    /// VLANs that leave the port untagged.
    pub untagged: VlanSet,
    /// VLAN of frames that arrive without a tag.
    pub pvid: Option<VlanId>,
}

/// A VXLAN tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// VXLAN network identifier.
    pub vni: Option<u32>,
    /// UDP port.
    pub port: Option<u16>,
    /// Address of this host's end.
    pub local: Option<IpAddr>,
    /// Flood list: destinations of BUM traffic (the entries of `bridge fdb` with address 0).
    pub peers: BTreeSet<IpAddr>,
}

/// IP options of a link; `None` if the kernel does not report the option, or does not have the protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpOptions {
    /// True if the kernel generates IPv6 addresses for the link (`addrgenmode` other than `none`).
    pub ipv6_generates: Option<bool>,
    /// True if IPv6 is disabled on the link (`disable_ipv6`).
    pub ipv6_disabled: Option<bool>,
    /// Value of `arp_ignore`; with 8 the kernel answers ARP requests for no address.
    pub arp_ignore: Option<i32>,
    /// Value of `rp_filter`; with 1 the kernel drops packets whose answers would not leave through this link.
    pub rp_filter: Option<i32>,
}

impl IpOptions {
    /// Options that are all unknown.
    pub const NONE: Self =
        Self { ipv6_generates: None, ipv6_disabled: None, arp_ignore: None, rp_filter: None };
}
