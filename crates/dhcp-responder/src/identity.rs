//! Addresses of the server, which are the same on all hosts, and the times that clients get.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use berth_api::MacAddress;

/// Ethernet source of all answers, which the agent passes to [`crate::PortResponder::new`]. It is locally administered;
/// the other octets are `berth` in ASCII.
pub const SERVER_MAC: MacAddress = MacAddress([0x02, 0x62, 0x65, 0x72, 0x74, 0x68]);
/// DHCPv4 server identifier, and the source of DHCPv4 answers.
pub const SERVER_IDENTIFIER: Ipv4Addr = Ipv4Addr::new(169, 254, 255, 67);
/// Source of DHCPv6 answers and router advertisements: the modified EUI-64 of [`SERVER_MAC`].
pub const SERVER_LINK_LOCAL: Ipv6Addr =
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0062, 0x65ff, 0xfe72, 0x7468);

/// Time for which an address is valid. It need not be short, because the claim of an address outlives the VM. Guests
/// use old name servers and routes for at most half of it, and do not notice an agent that is absent for half of it.
pub const LEASE_TIME: Duration = Duration::from_secs(3600);
/// T1: the client renews with its server. The default of RFC 2131 and RFC 8415.
pub const RENEWAL_TIME: Duration = Duration::from_secs(1800);
/// T2: the client accepts any server. The default of RFC 2131.
pub const REBINDING_TIME: Duration = Duration::from_secs(3150);
/// Interval at which the agent sends [`crate::PortResponder::advertisement`]: the longest that RFC 4861 permits.
pub const ADVERTISEMENT_INTERVAL: Duration = Duration::from_secs(1800);
/// Lifetime of the default router and of name servers in router advertisements: the longest that RFC 4861 permits.
pub(crate) const ROUTER_LIFETIME_SECONDS: u16 = 9000;

/// Returns whole seconds, as DHCP messages have them.
pub(crate) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Returns the DHCPv6 unique identifier of the server: DUID-LL (type 3) of an Ethernet address (hardware type 1).
pub(crate) fn server_duid(mac: MacAddress) -> Vec<u8> {
    [&[0, 3, 0, 1], &mac.0[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_address_is_derived_from_the_ethernet_address() {
        let [a, b, c, d, e, f] = SERVER_MAC.0;
        let octets = SERVER_LINK_LOCAL.octets();
        assert_eq!(octets[8..], [a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        assert_eq!(a & 3, 2, "locally administered, unicast");
        assert_eq!(server_duid(SERVER_MAC), [0, 3, 0, 1, a, b, c, d, e, f]);
    }

    #[test]
    fn times_have_the_usual_fractions() {
        assert_eq!(RENEWAL_TIME, LEASE_TIME / 2);
        assert_eq!(REBINDING_TIME, LEASE_TIME * 7 / 8);
        assert!(seconds(LEASE_TIME) < u32::from(ROUTER_LIFETIME_SECONDS));
    }
}
