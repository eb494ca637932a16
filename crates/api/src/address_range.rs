//! Ranges of IP addresses, as in the address pools of tenants.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::excerpt::excerpt;
use crate::text::string_serde;

/// A range of IP addresses of one family. Text form: `10.0.0.10-10.0.0.99`, a network such as `10.0.0.64/26`, or a
/// single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

string_serde!(
    AddressRange,
    "IP addresses: `10.0.0.10-10.0.0.99`, `10.0.0.64/26` or one address.",
    {"type": "string", "minLength": 2, "maxLength": 91, "pattern": "^[0-9a-fA-F:.]+([-/][0-9a-fA-F:.]+)?$"}
);

/// Error when parsing a range of IP addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a range of IP addresses such as 10.0.0.10-10.0.0.99, 10.0.0.64/26 or 10.0.0.10"
)]
pub struct ParseAddressRangeError(String);

impl AddressRange {
    /// Returns the range from `first` to `last`; `None` if these are of different families, or if `last` is lower than
    /// `first`.
    #[must_use]
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        (first.is_ipv4() == last.is_ipv4() && first <= last).then_some(Self { first, last })
    }

    /// Returns the first address.
    #[must_use]
    pub const fn first(self) -> IpAddr {
        self.first
    }

    /// Returns the last address.
    #[must_use]
    pub const fn last(self) -> IpAddr {
        self.last
    }

    /// Returns true if the range contains the address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Returns true if the ranges have an address in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// Returns the range of the addresses that are in both ranges; `None` if the ranges do not overlap.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }
}

impl From<IpNet> for AddressRange {
    /// Returns the range of all addresses of a network, including its network and broadcast addresses.
    fn from(network: IpNet) -> Self {
        Self { first: network.network(), last: network.broadcast() }
    }
}

impl FromStr for AddressRange {
    type Err = ParseAddressRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            if let Some((first, last)) = text.split_once('-') {
                return Self::new(first.trim().parse().ok()?, last.trim().parse().ok()?);
            }
            if text.contains('/') {
                return text.trim().parse::<IpNet>().ok().map(Self::from);
            }
            let address = text.trim().parse().ok()?;
            Self::new(address, address)
        };
        parse().ok_or_else(|| ParseAddressRangeError(excerpt(text)))
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn display_and_parse_round_trip(a: u32, b: u32, c: u128, d: u128) {
            let v4 = |bits: u32| IpAddr::from(bits.to_be_bytes());
            let v6 = |bits: u128| IpAddr::from(bits.to_be_bytes());
            for range in [
                AddressRange::new(v4(a.min(b)), v4(a.max(b))),
                AddressRange::new(v6(c.min(d)), v6(c.max(d))),
            ] {
                let range = range.unwrap();
                prop_assert_eq!(range.to_string().parse(), Ok(range));
            }
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            drop(text.parse::<AddressRange>());
        }
    }

    #[test]
    fn ranges_overlap_if_they_share_an_address() {
        let overlap = |one: &str, other: &str| {
            let parse = |text: &str| text.parse::<AddressRange>().unwrap();
            let (one, other) = (parse(one), parse(other));
            assert_eq!(one.overlaps(other), other.overlaps(one));
            assert_eq!(one.overlaps(other), one.intersection(other).is_some());
            one.overlaps(other)
        };
        assert!(overlap("10.0.0.1-10.0.0.9", "10.0.0.9"));
        assert!(overlap("10.0.0.0/24", "10.0.0.7-10.0.0.8"));
        assert!(!overlap("10.0.0.1-10.0.0.9", "10.0.0.10-10.0.0.11"));
        assert!(!overlap("0.0.0.0/0", "::/0"));
        let parse = |text: &str| text.parse::<AddressRange>().unwrap();
        let shared = parse("10.0.0.0/28").intersection(parse("10.0.0.9-10.0.0.40"));
        assert_eq!(shared, Some(parse("10.0.0.9-10.0.0.15")));
    }

    #[test]
    fn networks_addresses_and_ranges_are_accepted() {
        for (text, printed) in [
            ("10.0.0.64/30", "10.0.0.64-10.0.0.67"),
            ("10.0.0.7", "10.0.0.7"),
            ("fd00::10 - fd00::ff", "fd00::10-fd00::ff"),
            ("fd00::/126", "fd00::-fd00::3"),
        ] {
            assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), printed, "{text}");
        }
        for text in ["", "10.0.0.9-10.0.0.8", "10.0.0.1-fd00::1", "10.0.0.0/33", "10.0.0", "-"] {
            assert!(text.parse::<AddressRange>().is_err(), "{text}");
        }
    }
}
