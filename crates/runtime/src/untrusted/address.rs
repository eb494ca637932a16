//! Addresses to which the client of an untrusted server must not connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First six groups of IPv6 addresses whose last two groups are an IPv4 address: IPv4-compatible, IPv4-translated (RFC
/// 2765), NAT64 (RFC 6052), and local-use NAT64 (RFC 8215).
const EMBEDDING_PREFIXES: [[u16; 6]; 4] = [
    [0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0xffff, 0],
    [0x64, 0xff9b, 0, 0, 0, 0],
    [0x64, 0xff9b, 1, 0, 0, 0],
];
/// First group of 6to4 addresses (2002::/16, RFC 3056). The next two groups are an IPv4 address.
const PREFIX_6TO4: u16 = 0x2002;
/// IPv4 addresses of clouds' metadata services that are not link-local: Alibaba Cloud, Azure, Oracle Cloud.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// IPv6 addresses of clouds' metadata services that are not link-local: Amazon EC2, Google Cloud.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Reason why a client must not connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAddress {
    /// A loopback address, which belongs to this machine or pod.
    #[error("a loopback address")]
    Loopback,
    /// The address is link-local. Metadata services of clouds have such addresses.
    #[error("a link-local address")]
    LinkLocal,
    /// The address belongs to the metadata service of a cloud.
    #[error("the address of a metadata service")]
    Metadata,
    /// The address does not identify a single host.
    #[error("an unspecified, broadcast or multicast address")]
    NoHost,
    /// The address belongs to the API server of the infra cluster.
    #[error("the address of the infra API server")]
    InfraApiServer,
}

impl RefusedAddress {
    /// Checks that an address identifies a single host that is neither this machine nor on the local link, and that it
    /// does not belong to a metadata service.
    ///
    /// # Errors
    ///
    /// Returns the reason why the address is refused.
    pub fn check(address: SocketAddr) -> Result<(), Self> {
        match effective_destination(address.ip()) {
            IpAddr::V4(v4) => check_v4(v4),
            IpAddr::V6(v6) => check_v6(v6),
        }
    }
}

/// Returns the address to which packets are finally sent. For an IPv6 address that embeds an IPv4 address, this is the
/// IPv4 address, because the kernel or a translator (NAT64, 6to4) forwards the packets to it. Addresses must be
/// compared in this form.
#[must_use]
pub fn effective_destination(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => embedded_v4(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn check_v4(address: Ipv4Addr) -> Result<(), RefusedAddress> {
    if address.is_loopback() {
        Err(RefusedAddress::Loopback)
    } else if address.is_link_local() {
        Err(RefusedAddress::LinkLocal)
    } else if METADATA_V4.contains(&address) {
        Err(RefusedAddress::Metadata)
    } else if address.octets()[0] == 0 || address.is_multicast() || address.is_broadcast() {
        // Linux connects to this machine if the destination is 0.0.0.0.
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
    } else if METADATA_V6.contains(&address) {
        Err(RefusedAddress::Metadata)
    } else if address.is_unspecified() || address.is_multicast() {
        Err(RefusedAddress::NoHost)
    } else {
        Ok(())
    }
}

fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if address.is_unspecified() || address.is_loopback() {
        return None;
    }
    let [a, b, c, d, e, f, high, low] = address.segments();
    let (high, low) = match a {
        PREFIX_6TO4 => (b, c),
        _ if EMBEDDING_PREFIXES.contains(&[a, b, c, d, e, f]) => (high, low),
        _ => return None,
    };
    let [[first, second], [third, fourth]] = [high.to_be_bytes(), low.to_be_bytes()];
    Some(Ipv4Addr::new(first, second, third, fourth))
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
            ("64:ff9b:1::7f00:1", RefusedAddress::Loopback),
            ("::ffff:0:127.0.0.1", RefusedAddress::Loopback),
            ("2002:7f00:1::1", RefusedAddress::Loopback),
            ("100.100.100.200", RefusedAddress::Metadata),
            ("fd00:ec2::254", RefusedAddress::Metadata),
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
