//! Address of a client as the key of limits.

use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address that identify a network: a client can have all addresses of a /64 network.
const NETWORK_MASK: u128 = !0 << 64;

/// Returns the key of the limits for a client: its IPv4 address, or the /64 network of its IPv6 address.
pub(crate) fn limit_key(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        address @ IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_network_share_a_key() {
        for (client, key) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::"),
            ("2001:db8:0:1::2", "2001:db8:0:1::"),
            ("2001:db8:0:2::2", "2001:db8:0:2::"),
        ] {
            let expected: IpAddr = key.parse().unwrap();
            assert_eq!(limit_key(client.parse().unwrap()), expected, "{client}");
        }
    }
}
