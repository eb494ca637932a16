//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::text::string_serde;

/// A 48-bit Ethernet address. It is printed in lower case with colons, as by `ip link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

string_serde!(MacAddress, "An Ethernet address, for example `ac:1f:6b:8a:5f:c8`.", {
    "type": "string",
    "maxLength": 17,
    "pattern": "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$"
});

/// Error when parsing an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an Ethernet address such as ac:1f:6b:8a:5f:c8")]
pub struct ParseMacAddressError(String);

impl FromStr for MacAddress {
    type Err = ParseMacAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error = || ParseMacAddressError(excerpt(text));
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && !p.starts_with('+'));
            *octet = part.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or_else(parse_error)?;
        }
        if parts.next().is_some() {
            return Err(parse_error());
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn display_and_parse_round_trip(octets: [u8; 6]) {
            prop_assert_eq!(MacAddress(octets).to_string().parse(), Ok(MacAddress(octets)));
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            drop(text.parse::<MacAddress>());
        }
    }

    #[test]
    fn mac_address_with_wrong_length_is_rejected() {
        for text in ["", "ac:1f:6b:8a:5f", "ac:1f:6b:8a:5f:c8:00", "ac:1f:6b:8a:5f:+8"] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }
}
