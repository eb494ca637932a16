//! Addresses of the DHCP server, which are the same on all hosts, and the lease times.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use berth_api::MacAddress;

/// Source Ethernet address of all answers, which the agent passes to [`crate::NetworkSettings::new`]. It is a locally
/// administered address: 0x02, followed by `berth` in ASCII.
pub const SERVER_MAC: MacAddress = MacAddress([0x02, 0x62, 0x65, 0x72, 0x74, 0x68]);
/// DHCPv4 server identifier, and source IP address of DHCPv4 answers. See the [crate documentation](crate) for the
/// choice of the address.
pub const SERVER_IDENTIFIER: Ipv4Addr = Ipv4Addr::new(169, 254, 255, 67);
/// Source IP address of DHCPv6 answers and router advertisements: a link-local address with the modified EUI-64 of
/// [`SERVER_MAC`].
pub const SERVER_LINK_LOCAL: Ipv6Addr =
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0062, 0x65ff, 0xfe72, 0x7468);

/// Lifetime of a lease: 7 days. A guest that cannot renew its lease removes the address after this time, so an agent
/// may be stopped over a weekend without an effect on VMs. A short lifetime is not needed, because the AddressClaim
/// ensures that no other machine gets the address.
pub const LEASE_TIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// T1 (30 minutes): time after which a client renews its lease with the server that allocated it. T1 is much shorter
/// than the lease time, so that guests soon get changes of name servers and routes. RFC 2131 and RFC 8415 require only
/// T1 < T2 < lease time.
pub const RENEWAL_TIME: Duration = Duration::from_secs(1800);
/// T2: time after which a client renews its lease with any server: 7/8 of the lease time, the default of RFC 2131.
pub const REBINDING_TIME: Duration = Duration::from_secs(7 * 24 * 3600 / 8 * 7);
/// Interval at which the agent sends [`crate::PortResponder::advertisement`]: 30 minutes, the maximum in RFC 4861.
pub const ADVERTISEMENT_INTERVAL: Duration = Duration::from_secs(1800);
/// Lifetime of the default router in router advertisements: the maximum of the field, about 18 hours (RFC 8319 permits
/// this value). Guests retain their default route for this time after the agent has stopped.
pub(crate) const ROUTER_LIFETIME_SECONDS: u16 = u16::MAX;

/// Converts a time to whole seconds, the unit of DHCP messages.
pub(crate) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Returns the DHCPv6 unique identifier (DUID) of the server: a DUID-LL (type 3) with an Ethernet address (hardware
/// type 1).
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
    fn an_agent_may_be_absent_for_days() {
        assert!(RENEWAL_TIME < REBINDING_TIME && REBINDING_TIME < LEASE_TIME, "RFC 2131");
        assert_eq!(REBINDING_TIME, LEASE_TIME * 7 / 8);
        let absence = Duration::from_secs(3 * 24 * 3600);
        assert!(LEASE_TIME - RENEWAL_TIME > absence, "a weekend, right before the renewal");
        let night = Duration::from_secs(16 * 3600);
        let default_route = Duration::from_secs(ROUTER_LIFETIME_SECONDS.into());
        assert!(default_route - ADVERTISEMENT_INTERVAL > night);
    }
}
