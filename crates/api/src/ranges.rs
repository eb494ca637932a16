//! Ranges of VLAN ids and of VXLAN network identifiers, as in the pools of InfraConfig.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::excerpt::excerpt;
use crate::{ParseVlanSetError, VlanId, VlanSet};

/// A set of VLAN IDs. Text form: `300`, `100-199`, or a comma-separated list of single IDs and ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VlanRanges(VlanSet);

impl VlanRanges {
    /// Maximum number of characters of the text form.
    const MAX_LENGTH: usize = 1024;

    /// Returns the ids.
    #[must_use]
    pub const fn ids(&self) -> &VlanSet {
        &self.0
    }

    /// Replaces all ranges by one range from the first ID to the last ID, if the text form would be too long.
    pub fn merge_if_too_long(&mut self) {
        let ranges = self.0.ranges();
        if self.0.to_string().len() > Self::MAX_LENGTH
            && let (Some((first, _)), Some((_, last))) = (ranges.first(), ranges.last())
        {
            self.0 = (u16::from(*first)..=u16::from(*last))
                .filter_map(|id| VlanId::try_from(id).ok())
                .collect();
        }
    }
}

impl From<VlanSet> for VlanRanges {
    fn from(ids: VlanSet) -> Self {
        Self(ids)
    }
}

impl TryFrom<String> for VlanRanges {
    type Error = ParseVlanSetError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<VlanRanges> for String {
    fn from(ranges: VlanRanges) -> Self {
        ranges.0.to_string()
    }
}

impl JsonSchema for VlanRanges {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VlanRanges".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "VLAN IDs: 300, 100-199, or a comma-separated list of IDs and ranges",
            "pattern": "^ *[0-9]+( *- *[0-9]+)?( *, *[0-9]+( *- *[0-9]+)?)* *$",
            "maxLength": Self::MAX_LENGTH
        })
    }
}

/// The largest VXLAN network identifier (RFC 7348: 24 bits).
pub const MAX_VNI: u32 = (1 << 24) - 1;

/// A range of VXLAN network identifiers, such as `10000-19999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VniRange {
    first: u32,
    last: u32,
}

/// Error when parsing a range of VXLAN network identifiers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a range of VXLAN network identifiers such as 10000-19999 (from 1 to 16777215)"
)]
pub struct ParseVniRangeError(String);

impl VniRange {
    /// Returns all network identifiers of the range in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.first..=self.last
    }

    /// Returns the number of identifiers.
    #[must_use]
    pub const fn count(self) -> u32 {
        // The count is at least 1, because `first` is at most `last`.
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    /// Returns the network identifier at a position, counted from 0.
    #[must_use]
    pub fn get(self, index: u32) -> Option<u32> {
        self.first.checked_add(index).filter(|vni| self.contains(*vni))
    }

    /// Returns true if the range contains the identifier.
    #[must_use]
    pub const fn contains(self, vni: u32) -> bool {
        self.first <= vni && vni <= self.last
    }
}

impl FromStr for VniRange {
    type Err = ParseVniRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error = || ParseVniRangeError(excerpt(text));
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            let digits = text.trim();
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|vni| is_number && (1..=MAX_VNI).contains(vni))
        };
        let (first, last) =
            (number(first).ok_or_else(parse_error)?, number(last).ok_or_else(parse_error)?);
        if first > last {
            return Err(parse_error());
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for VniRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl TryFrom<String> for VniRange {
    type Error = ParseVniRangeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<VniRange> for String {
    fn from(range: VniRange) -> Self {
        range.to_string()
    }
}

impl JsonSchema for VniRange {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VniRange".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "VXLAN network identifiers: 10000-19999",
            "pattern": "^ *[0-9]{1,8}( *- *[0-9]{1,8})? *$"
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn vni_range_accepts_ranges_and_single_numbers() {
        let range: VniRange = " 10000 - 10002 ".parse().unwrap();
        assert_eq!(range.iter().collect::<Vec<_>>(), [10_000, 10_001, 10_002]);
        assert!(range.contains(10_001) && !range.contains(10_003));
        assert_eq!("7".parse::<VniRange>().unwrap().to_string(), "7-7");
        for wrong in ["", "0-5", "5-4", "1-", "-", "a", "1-16777216", "+1-2", "1-2-3"] {
            assert!(wrong.parse::<VniRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn too_long_vlan_ranges_are_merged() {
        let mut few = VlanRanges::try_from("100,102".to_owned()).unwrap();
        few.merge_if_too_long();
        assert_eq!(String::from(few), "100,102");
        let ids = (1..=4001).step_by(2).filter_map(|id: u16| VlanId::try_from(id).ok());
        let mut many = VlanRanges::from(ids.collect::<VlanSet>());
        many.merge_if_too_long();
        assert_eq!(String::from(many), "1-4001");
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(first in 1..=MAX_VNI, more in 0..1000_u32) {
            let range = VniRange { first, last: (first + more).min(MAX_VNI) };
            prop_assert_eq!(range.to_string().parse::<VniRange>(), Ok(range));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,20}") {
            drop(text.parse::<VniRange>());
            drop(VlanRanges::try_from(text));
        }
    }
}
