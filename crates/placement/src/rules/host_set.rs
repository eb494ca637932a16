//! Sets of hosts, one bit per host.

use fixedbitset::FixedBitSet;

use super::symbols::to_index;

/// A set of host numbers. Its memory grows with the largest number in the set.
#[derive(Clone, Debug, Default)]
pub(super) struct HostSet(FixedBitSet);

impl HostSet {
    pub(super) fn contains(&self, number: u32) -> bool {
        self.0.contains(to_index(number))
    }

    pub(super) fn set_member(&mut self, number: u32, is_member: bool) {
        let at = to_index(number);
        if is_member {
            self.0.grow_and_insert(at);
        } else if at < self.0.len() {
            self.0.remove(at);
        }
    }

    pub(super) fn intersect_with(&mut self, other: &Self) {
        self.0.intersect_with(&other.0);
    }

    pub(super) fn difference_with(&mut self, other: &Self) {
        self.0.difference_with(&other.0);
    }

    /// Returns the host numbers in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.ones().filter_map(|number| u32::try_from(number).ok())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn host_set_from(set: &BTreeSet<u32>) -> HostSet {
        let mut bits = HostSet::default();
        for number in set {
            bits.set_member(*number, true);
        }
        bits
    }

    proptest! {
        #[test]
        fn host_set_equals_btree_set(one: BTreeSet<u16>, two: BTreeSet<u16>, gone: BTreeSet<u16>) {
            let [one, two, gone] = [one, two, gone].map(|set| set.into_iter().map(u32::from).collect::<BTreeSet<u32>>());
            let mut set = host_set_from(&one);
            prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), one.clone());
            set.intersect_with(&host_set_from(&two));
            for number in &gone {
                set.set_member(*number, false);
            }
            let left: Vec<u32> = one.intersection(&two).filter(|n| !gone.contains(n)).copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), left);
            prop_assert!(two.iter().all(|n| set.contains(*n) == (one.contains(n) && !gone.contains(n))));
        }
    }
}
