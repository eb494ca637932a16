//! What tenant networks are made of, as far as it can be otherwise than Berth makes it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{VlanId, VlanSet};

/// How a bridge is set (`Documentation/networking/bridge.rst`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BridgeOptions {
    /// The VLAN that a new port gets, untagged; 0 is none.
    pub default_pvid: Option<u16>,
    /// Spanning tree protocol.
    pub stp: Option<bool>,
    /// Seconds until a new port carries frames, in hundredths.
    pub forward_delay: Option<u32>,
    /// IGMP and MLD snooping.
    pub mcast_snooping: Option<bool>,
}

/// The VLANs of a bridge's port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortVlans {
    /// All it carries.
    pub all: VlanSet,
    /// Those that leave it untagged.
    pub untagged: VlanSet,
    /// The one that frames without a tag are in.
    pub pvid: Option<VlanId>,
}

/// A VXLAN tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// VXLAN network identifier.
    pub vni: Option<u32>,
    /// UDP port.
    pub port: Option<u16>,
    /// This end.
    pub local: Option<IpAddr>,
    /// Flood list: destinations of BUM traffic (the entries of `bridge fdb` with address 0).
    pub peers: BTreeSet<IpAddr>,
}

/// How IP is set on a link; `None` where the kernel does not say, or has no such protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpOptions {
    /// Whether the kernel makes IPv6 addresses for it (`addrgenmode` other than `none`).
    pub ipv6_generates: Option<bool>,
    /// `disable_ipv6`.
    pub ipv6_disabled: Option<bool>,
    /// `arp_ignore`: 8 answers for no address.
    pub arp_ignore: Option<i32>,
    /// `rp_filter`: 1 drops what the host would not answer through this link.
    pub rp_filter: Option<i32>,
}

impl IpOptions {
    /// Nothing known.
    pub const NONE: Self =
        Self { ipv6_generates: None, ipv6_disabled: None, arp_ignore: None, rp_filter: None };
}
