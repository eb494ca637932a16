//! Sets of VLAN ids, as ranges.

use std::fmt;
use std::str::FromStr;

use crate::VlanId;
use crate::bit_set::BitSet;
use crate::excerpt::excerpt;

/// A set of VLAN IDs. Text form: comma-separated IDs and ranges, such as `100-119,150`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VlanSet(BitSet);

/// Error when parsing a set of VLAN ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of VLAN ids such as 100-119,150")]
pub struct ParseVlanSetError(String);

impl VlanSet {
    /// Adds an id; returns `false` if the set already contained it.
    pub fn insert(&mut self, id: VlanId) -> bool {
        self.0.insert(u16::from(id).into())
    }

    /// Removes an id; returns `false` if the set did not contain it.
    pub fn remove(&mut self, id: VlanId) -> bool {
        self.0.remove(u16::from(id).into())
    }

    /// Returns true if the set contains the id.
    #[must_use]
    pub fn contains(&self, id: VlanId) -> bool {
        self.0.contains(u16::from(id).into())
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = VlanId> + '_ {
        self.0.iter().filter_map(to_vlan_id)
    }

    /// Returns the ids of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0))
    }

    /// Returns the ids that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0))
    }

    /// Returns the first and the last id of each run of consecutive ids.
    #[must_use]
    pub fn ranges(&self) -> Vec<(VlanId, VlanId)> {
        let ranges = self.0.ranges();
        ranges.filter_map(|(first, last)| Some((to_vlan_id(first)?, to_vlan_id(last)?))).collect()
    }
}

/// Converts a number in the set to a VLAN ID. Never returns `None`, because only valid IDs are added to the set.
fn to_vlan_id(number: u32) -> Option<VlanId> {
    u16::try_from(number).ok()?.try_into().ok()
}

impl FromIterator<VlanId> for VlanSet {
    fn from_iter<I: IntoIterator<Item = VlanId>>(ids: I) -> Self {
        let mut set = Self::default();
        set.extend(ids);
        set
    }
}

impl Extend<VlanId> for VlanSet {
    fn extend<I: IntoIterator<Item = VlanId>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl FromStr for VlanSet {
    type Err = ParseVlanSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error = || ParseVlanSetError(excerpt(text));
        let mut set = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: VlanId = first.parse().map_err(|_| parse_error())?;
            let last: VlanId = last.parse().map_err(|_| parse_error())?;
            if first > last {
                return Err(parse_error());
            }
            set.extend(
                (first.into()..=last.into()).filter_map(|id: u16| VlanId::try_from(id).ok()),
            );
        }
        Ok(set)
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges().into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn consecutive_ids_are_merged_to_ranges() {
        let set: VlanSet = "150, 100-102,103".parse().unwrap();
        assert_eq!((set.to_string().as_str(), set.len()), ("100-103,150", 5));
        for wrong in ["0", "4095", "5-4", "1-", "a", "1-2-3"] {
            assert!(wrong.parse::<VlanSet>().is_err(), "{wrong}");
        }
        assert!("".parse::<VlanSet>().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(ids in proptest::collection::btree_set(1u16..4095, 0..200)) {
            let set: VlanSet = ids.iter().filter_map(|id| VlanId::try_from(*id).ok()).collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }

        #[test]
        fn parsing_never_panics(text in "[0-9,-]{0,12}|.{0,12}") {
            drop(text.parse::<VlanSet>());
        }
    }
}
