//! Families of IP addresses, and conversion between addresses and numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the field of a TenantCluster that contains the pool of this family.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::V4 => "spec.network.ipv4",
            Self::V6 => "spec.network.ipv6",
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the address of this family whose number is `number`, the inverse of [`to_number`].
    #[must_use]
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Self::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// Returns an address as a number. Numbers of one family are in the same order as their addresses.
#[must_use]
pub fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
