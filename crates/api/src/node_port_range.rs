//! A range of node ports of Services.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::text::string_serde;

/// Regular expression for a range or a single port, with port numbers from 1 to 65535. `FromStr` also checks that the
/// first port is not above the last.
const PATTERN: &str = concat!(
    "^([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])",
    "(-([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$"
);

/// A range of node ports, such as `30100-30199`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePortRange {
    first: u16,
    last: u16,
}

string_serde!(
    NodePortRange,
    "Node ports: 30100-30199",
    {"type": "string", "maxLength": 11, "pattern": PATTERN}
);

/// Error when parsing a range of node ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a range of node ports such as 30100-30199 (from 1 to 65535)")]
pub struct ParseNodePortRangeError(String);

impl NodePortRange {
    /// Returns the number of node ports.
    #[must_use]
    pub fn count(self) -> u32 {
        // The count is at least 1, because `first` is at most `last`.
        u32::from(self.last).saturating_sub(self.first.into()).saturating_add(1)
    }

    /// Returns true if the range contains the node port.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Returns all node ports once, in cyclic order: the first is at the position `offset` modulo the number of ports.
    pub fn iter_from(self, offset: u64) -> impl Iterator<Item = u16> {
        // The remainder is less than the number of ports, so it fits into 16 bits.
        let skipped = u16::try_from(offset % u64::from(self.count())).unwrap_or_default();
        let start = self.first.saturating_add(skipped);
        (start..=self.last).chain(self.first..start)
    }
}

impl FromStr for NodePortRange {
    type Err = ParseNodePortRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error = || ParseNodePortRangeError(excerpt(text));
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| {
            let digits = text.trim();
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u16>().ok().filter(|port| is_number && *port > 0)
        };
        let (first, last) =
            (number(first).ok_or_else(parse_error)?, number(last).ok_or_else(parse_error)?);
        if first > last {
            return Err(parse_error());
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for NodePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_and_single_ports_are_accepted() {
        let range: NodePortRange = " 30100 - 30102 ".parse().unwrap();
        assert_eq!(range.count(), 3);
        assert!(range.contains(30_102) && !range.contains(30_103));
        assert_eq!("7".parse::<NodePortRange>().unwrap().to_string(), "7-7");
        for wrong in ["", "0-5", "5-4", "1-", "-", "a", "1-65536", "+1-2", "1-2-3"] {
            assert!(wrong.parse::<NodePortRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_offset_returns_all_ports() {
        let range: NodePortRange = "65533-65535".parse().unwrap();
        let from = |offset| range.iter_from(offset).collect::<Vec<_>>();
        assert_eq!(from(0), [65_533, 65_534, 65_535]);
        assert_eq!(from(4), [65_534, 65_535, 65_533]);
        assert_eq!(from(u64::MAX).len(), 3);
        let all: NodePortRange = "1-65535".parse().unwrap();
        assert_eq!(all.iter_from(65_534).next(), Some(65_535));
        assert_eq!(all.iter_from(65_534).count(), 65_535);
    }

    proptest! {
        #[test]
        fn the_pattern_permits_only_ports(text in PATTERN.trim_matches(['^', '$'])) {
            let (first, last) = text.split_once('-').unwrap_or((text.as_str(), text.as_str()));
            prop_assert!(text.len() <= 11);
            prop_assert!(first.parse::<NodePortRange>().is_ok() && last.parse::<NodePortRange>().is_ok());
        }

        #[test]
        fn display_and_parse_round_trip(first in 1..=u16::MAX, more in 0..1000_u16) {
            let range = NodePortRange { first, last: first.saturating_add(more) };
            prop_assert_eq!(range.to_string().parse::<NodePortRange>(), Ok(range));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,20}") {
            drop(text.parse::<NodePortRange>());
        }
    }
}
