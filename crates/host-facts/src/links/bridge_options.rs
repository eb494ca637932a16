//! Properties of bridges, bridge ports, tunnels and IP settings that another program may set to other values than
//! Berth.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{VlanId, VlanSet};

/// Options of a bridge (`Documentation/networking/bridge.rst`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BridgeOptions {
    /// VLAN to which the bridge adds a new port untagged; 0 means that a new port is in no VLAN.
    pub default_pvid: Option<u16>,
    /// True if the spanning tree protocol is on.
    pub is_stp_enabled: Option<bool>,
    /// Time for which the spanning tree protocol delays the forwarding of frames at a new port, in hundredths of a
    /// second.
    pub forward_delay: Option<u32>,
    /// True if IGMP and MLD snooping are on.
    pub is_mcast_snooping_enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortVlans {
    pub all: VlanSet,
    /// VLANs whose frames leave the bridge through the port without a tag.
    pub untagged: VlanSet,
    /// VLAN to which the bridge assigns untagged frames that arrive at the port.
    pub pvid: Option<VlanId>,
}

/// Properties of a VXLAN tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanTunnel {
    /// VXLAN network identifier.
    pub vni: Option<u32>,
    /// UDP port of the tunnel.
    pub port: Option<u16>,
    /// IP address of this host's end of the tunnel.
    pub local_address: Option<IpAddr>,
    /// Flood list: the addresses of other hosts to which BUM traffic is sent (the entries of `bridge fdb` with the
    /// Ethernet address 0).
    pub peers: BTreeSet<IpAddr>,
}

/// IP options of a link. An option is `None` if the kernel does not report the option or lacks the protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpOptions {
    /// True if the kernel generates IPv6 addresses for the link (`addrgenmode` other than `none`).
    pub generates_ipv6_addresses: Option<bool>,
    /// True if IPv6 is disabled on the link (`disable_ipv6`).
    pub is_ipv6_disabled: Option<bool>,
    /// Value of `arp_ignore`. With 8, the kernel answers no ARP requests on the link.
    pub arp_ignore: Option<i32>,
    /// Value of `rp_filter`. With 1, the kernel drops a packet that arrives on the link if the route to the packet's
    /// source uses another link.
    pub rp_filter: Option<i32>,
}

impl IpOptions {
    /// The options of a link if all of them are unknown.
    pub const UNKNOWN: Self = Self {
        generates_ipv6_addresses: None,
        is_ipv6_disabled: None,
        arp_ignore: None,
        rp_filter: None,
    };
}
