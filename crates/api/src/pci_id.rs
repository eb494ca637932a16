//! Vendor and device ids of PCI functions.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::text::string_serde;

/// The vendor id and the device id of a PCI function, with four hexadecimal digits each: the format of lspci and of
/// KubeVirt's `pciVendorSelector`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id, which the vendor assigns.
    pub device: u16,
}

string_serde!(PciId, "Vendor and device id of a PCI function in hexadecimal digits, for example `144d:a80a`.", {
    "type": "string",
    "maxLength": 9,
    "pattern": "^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$"
});

/// Error when parsing a PCI id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI id such as 144d:a80a (vendor and device)")]
pub struct ParsePciIdError(String);

impl FromStr for PciId {
    type Err = ParsePciIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            let is_valid = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            is_valid.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
        };
        let (vendor, device) = text.split_once(':').unwrap_or_default();
        let id = number(vendor).zip(number(device));
        id.map(|(vendor, device)| Self { vendor, device })
            .ok_or_else(|| ParsePciIdError(excerpt(text)))
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pci_id_has_four_digits_for_vendor_and_device() {
        assert_eq!("144D:a80A".parse(), Ok(PciId { vendor: 0x144d, device: 0xa80a }));
        assert_eq!(PciId { vendor: 1, device: 2 }.to_string(), "0001:0002");
        for text in ["", ":", "144d", "144d:", "144d:a80", "+44d:a80a", "144d:a80a:0", "144d-a80a"]
        {
            assert!(text.parse::<PciId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(vendor: u16, device: u16) {
            let id = PciId { vendor, device };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn parsing_never_panics(text in "[0-9a-g:]{0,12}|.*") {
            drop(text.parse::<PciId>());
        }
    }
}
