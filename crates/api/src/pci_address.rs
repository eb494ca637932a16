//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::text::string_serde;

/// The address of a PCI function: `domain:bus:device.function`, hexadecimal.
///
/// The domain has four digits on most machines, and more digits behind Intel VMD or on Hyper-V (`10000:01:00.0`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, below 32.
    pub device: u8,
    /// Function number, below 8.
    pub function: u8,
}

string_serde!(PciAddress, "A PCI function, for example `0000:3b:00.1`.", {
    "type": "string",
    "maxLength": 16,
    "pattern": "^([0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{1,2}:[01]?[0-9a-fA-F]\\.[0-7]$"
});

/// Error when parsing a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address such as 0000:3b:00.1")]
pub struct ParsePciAddressError(String);

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_pci_address(text).ok_or_else(|| ParsePciAddressError(excerpt(text)))
    }
}

fn parse_pci_address(text: &str) -> Option<PciAddress> {
    let hex = |digits: &str, max_digits: usize| {
        let is_valid = (1..=max_digits).contains(&digits.len());
        let is_valid = is_valid && digits.bytes().all(|b| b.is_ascii_hexdigit());
        is_valid.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    Some(PciAddress {
        domain: hex(domain, 8)?,
        bus: u8::try_from(hex(bus, 2)?).ok()?,
        device: u8::try_from(hex(device, 2)?).ok().filter(|d| *d < 32)?,
        function: u8::try_from(hex(function, 1)?).ok().filter(|f| *f < 8)?,
    })
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pci_address_accepts_short_and_long_domains() {
        for (text, printed) in [
            ("0000:3b:00.1", "0000:3b:00.1"),
            ("10000:01:1f.7", "10000:01:1f.7"),
            ("3B:00.1", "0000:3b:00.1"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), printed);
        }
        for text in ["", "3b", "0000:3b:20.0", "0000:3b:00.8", "0000:+b:00.1", "1:2:3:4.5", "::."] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn parsing_never_panics(text in "[0-9a-g:.]{0,20}|.*") {
            drop(text.parse::<PciAddress>());
        }
    }
}
