//! Sizes of huge pages.

use std::fmt;
use std::str::FromStr;

use crate::Bytes;
use crate::excerpt::excerpt;
use crate::text::string_serde;

/// The size of a huge page, a power of two from 64Ki (arm64) to 16Gi (powerpc); on x86 either 2Mi or 1Gi.
///
/// Text form: as in Kubernetes' `hugepages-2Mi` resource names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    bytes: u64,
}

string_serde!(PageSize, "The size of a huge page as in the resource name `hugepages-2Mi`: `2Mi` or `1Gi` on x86.", {
    "type": "string",
    "maxLength": 16,
    "pattern": "^[0-9]+(Ki|Mi|Gi)$"
});

/// Error when parsing a huge page size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a huge page size such as 2Mi or 1Gi (a power of two from 64Ki to 16Gi)")]
pub struct ParsePageSizeError(String);

impl PageSize {
    /// 2 MiB: the size of huge pages on x86-64.
    pub const MIB_2: Self = Self { bytes: 2 << 20 };
    /// 1 GiB: the size of gigantic pages on x86-64.
    pub const GIB_1: Self = Self { bytes: 1 << 30 };

    /// Converts a size in KiB, as in the kernel's file names `hugepages-<n>kB`. Returns `None` if no hardware supports
    /// this size.
    #[must_use]
    pub fn from_kib(kib: u64) -> Option<Self> {
        let bytes = kib.checked_mul(1024)?;
        let is_supported = bytes.is_power_of_two() && (64 << 10..=16u64 << 30).contains(&bytes);
        is_supported.then_some(Self { bytes })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the Kubernetes resource of huge pages of this size, such as `hugepages-2Mi`.
    #[must_use]
    pub fn resource_name(self) -> String {
        format!("hugepages-{self}")
    }

    /// Returns the size in KiB, as in the kernel's file names.
    #[must_use]
    pub const fn kib(self) -> u64 {
        self.bytes / 1024
    }
}

impl FromStr for PageSize {
    type Err = ParsePageSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error = || ParsePageSizeError(excerpt(text));
        let bytes: Bytes = text.parse().map_err(|_| parse_error())?;
        let size = Self::from_kib(bytes.0 / 1024).filter(|size| size.bytes == bytes.0);
        size.ok_or_else(parse_error)
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.bytes).fmt(f)
    }
}

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageSize({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn page_size_is_parsed_and_formatted() {
        assert_eq!("2Mi".parse(), Ok(PageSize::MIB_2));
        assert_eq!("1Gi".parse(), Ok(PageSize::GIB_1));
        assert_eq!(PageSize::from_kib(2048), Some(PageSize::MIB_2));
        assert_eq!(PageSize::MIB_2.to_string(), "2Mi");
        for text in ["3Mi", "4Ki", "", "32Gi", "2MB", "0"] {
            assert!(text.parse::<PageSize>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(shift in 6u32..=24) {
            let size = PageSize::from_kib(1 << shift).unwrap();
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn page_size_is_a_power_of_two(kib: u64) {
            prop_assert!(PageSize::from_kib(kib).is_none_or(|size| size.kib() == kib));
        }
    }
}
