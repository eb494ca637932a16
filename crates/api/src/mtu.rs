//! Rules for the maximum transmission unit (MTU) of tenants' networks, in bytes. Agent and controller use the same
//! rules.
//!
//! An MTU counts the bytes of a packet without the headers of Ethernet and of 802.1Q, so a VLAN has the MTU of its
//! uplink. A tunnel has a smaller MTU, because it encapsulates each frame in a packet.

use std::net::IpAddr;

/// Minimum MTU of a host network without IPv6: every host accepts IPv4 packets of this length (RFC 791).
pub const MIN_MTU: u32 = 576;
/// Minimum MTU of a network with IPv6 (RFC 8200, section 5). The kernel disables IPv6 on links with a smaller MTU.
pub const MIN_IPV6_MTU: u32 = 1280;
/// MTU of Ethernet without jumbo frames.
pub const ETHERNET_MTU: u32 = 1500;

/// Returns the number of bytes that VXLAN (RFC 7348) adds to a packet: 14 for the inner Ethernet header, 8 for VXLAN, 8
/// for UDP, and 20 for IPv4 or 40 for IPv6. `local_address` is the address of the local tunnel endpoint.
#[must_use]
pub const fn vxlan_overhead(local_address: IpAddr) -> u32 {
    if local_address.is_ipv4() { 50 } else { 70 }
}

/// Returns the MTU of VXLAN tunnels on a link with the MTU `link_mtu`. `local_address` is the address of the local
/// tunnel endpoint.
#[must_use]
pub const fn vxlan_mtu(link_mtu: u32, local_address: IpAddr) -> u32 {
    link_mtu.saturating_sub(vxlan_overhead(local_address))
}

/// Returns the MTU of machines: `pool_mtu` (the MTU of their address pools) if it is set, otherwise `network_mtu` (the
/// MTU of their network). Returns `None` if `pool_mtu` is not set, and `network_mtu` is unknown or less than
/// [`MIN_IPV6_MTU`] (with IPv6) or [`MIN_MTU`] (without IPv6).
#[must_use]
pub fn machine_mtu(pool_mtu: Option<u16>, network_mtu: Option<u32>, has_ipv6: bool) -> Option<u16> {
    let min = if has_ipv6 { MIN_IPV6_MTU } else { MIN_MTU };
    let default_mtu = || {
        let mtu = network_mtu.filter(|mtu| *mtu >= min)?;
        Some(u16::try_from(mtu).unwrap_or(u16::MAX))
    };
    pool_mtu.or_else(default_mtu)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tunnel_mtu_is_smaller_than_link_mtu() {
        let [v4, v6] = ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap());
        assert_eq!((vxlan_mtu(1500, v4), vxlan_mtu(9000, v6)), (1450, 8930));
        assert_eq!(vxlan_mtu(49, v4), 0);
    }

    #[test]
    fn the_pool_has_priority_over_the_network() {
        assert_eq!(machine_mtu(Some(1400), Some(1500), true), Some(1400));
        assert_eq!(machine_mtu(None, Some(1500), true), Some(1500));
        assert_eq!(machine_mtu(None, Some(1279), true), None);
        assert_eq!(machine_mtu(None, Some(1279), false), Some(1279));
        assert_eq!(machine_mtu(None, None, false), None);
        assert_eq!(machine_mtu(None, Some(65_536), false), Some(65_535));
    }

    proptest! {
        #[test]
        fn default_machine_mtu_never_exceeds_network_mtu(
            network: Option<u32>,
            has_ipv6: bool,
        ) {
            if let Some(mtu) = machine_mtu(None, network, has_ipv6) {
                prop_assert!(network.is_some_and(|network| u32::from(mtu) <= network));
                prop_assert!(u32::from(mtu) >= MIN_MTU);
            }
        }
    }
}
