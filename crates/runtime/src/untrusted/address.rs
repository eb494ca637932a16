//! Addresses to which a client of an untrusted server must not connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First six groups of the NAT64 prefix 64:ff9b::/96 (RFC 6052).
const NAT64_PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Reason why a client must not connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAddress {
    /// The address belongs to this machine or pod only.
    #[error("a loopback address")]
    Loopback,
    /// The address is link-local. Metadata services of clouds have such addresses.
    #[error("a link-local address")]
    LinkLocal,
    /// The address is no address of a single host.
    #[error("an unspecified, broadcast or multicast address")]
    NoHost,
    /// The address belongs to the API server of the infra cluster.
    #[error("the address of the infra API server")]
    InfraApiServer,
}

impl RefusedAddress {
    /// Checks that an address is not one that has a meaning on this machine or link only.
    ///
    /// # Errors
    /// Returns the reason why the address is refused.
    pub fn check(address: SocketAddr) -> Result<(), Self> {
        match address.ip().to_canonical() {
            IpAddr::V4(v4) => check_v4(v4),
            IpAddr::V6(v6) => check_v6(v6),
        }
    }
}

fn check_v4(address: Ipv4Addr) -> Result<(), RefusedAddress> {
    if address.is_loopback() {
        Err(RefusedAddress::Loopback)
    } else if address.is_link_local() {
        Err(RefusedAddress::LinkLocal)
    } else if address.octets()[0] == 0 || address.is_multicast() || address.is_broadcast() {
        // Linux connects to 0.0.0.0 over the loopback.
        Err(RefusedAddress::NoHost)
    } else {
        Ok(())
    }
}

fn check_v6(address: Ipv6Addr) -> Result<(), RefusedAddress> {
    if address.is_loopback() {
        Err(RefusedAddress::Loopback)
    } else if address.is_unicast_link_local() {
        Err(RefusedAddress::LinkLocal)
    } else if address.is_unspecified() || address.is_multicast() {
        Err(RefusedAddress::NoHost)
    } else {
        embedded_v4(address).map_or(Ok(()), check_v4)
    }
}

/// Returns the IPv4 address to which a translator forwards packets for an IPv6 address: NAT64, or an IPv4-compatible
/// address (`::10.0.0.1`). `to_canonical` has already converted IPv4-mapped addresses.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let prefix = [a, b, c, d, e, f];
    let is_embedded = prefix == NAT64_PREFIX || prefix == [0; 6];
    let [[first, second], [third, fourth]] = [high.to_be_bytes(), low.to_be_bytes()];
    is_embedded.then(|| Ipv4Addr::new(first, second, third, fourth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ip: &str) -> Result<(), RefusedAddress> {
        RefusedAddress::check(SocketAddr::new(ip.parse().unwrap(), 6443))
    }

    #[test]
    fn addresses_of_this_machine_and_link_are_refused() {
        for (ip, expected) in [
            ("127.0.0.1", RefusedAddress::Loopback),
            ("127.8.9.10", RefusedAddress::Loopback),
            ("::1", RefusedAddress::Loopback),
            ("::ffff:127.0.0.1", RefusedAddress::Loopback),
            ("::127.0.0.1", RefusedAddress::Loopback),
            ("64:ff9b::7f00:1", RefusedAddress::Loopback),
            ("169.254.169.254", RefusedAddress::LinkLocal),
            ("::ffff:169.254.169.254", RefusedAddress::LinkLocal),
            ("64:ff9b::a9fe:a9fe", RefusedAddress::LinkLocal),
            ("fe80::1", RefusedAddress::LinkLocal),
            ("0.0.0.0", RefusedAddress::NoHost),
            ("0.1.2.3", RefusedAddress::NoHost),
            ("::", RefusedAddress::NoHost),
            ("255.255.255.255", RefusedAddress::NoHost),
            ("224.0.0.1", RefusedAddress::NoHost),
            ("ff02::1", RefusedAddress::NoHost),
        ] {
            assert_eq!(check(ip), Err(expected), "{ip}");
        }
        for ip in
            ["10.0.0.1", "192.168.1.1", "198.51.100.7", "2001:db8::1", "fd00::1", "64:ff9b::a00:1"]
        {
            assert_eq!(check(ip), Ok(()), "{ip}");
        }
    }
}
