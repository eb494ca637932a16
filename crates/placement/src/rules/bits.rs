//! Sets of hosts, one bit per host.

use super::symbols::index;

/// A set of small numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn has(&self, number: u32) -> bool {
        self.0.get(index(number / 64)).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, number: u32, to: bool) {
        let at = index(number / 64);
        if at >= self.0.len() {
            if !to {
                return;
            }
            self.0.resize(at + 1, 0);
        }
        if let Some(word) = self.0.get_mut(at) {
            let bit = 1 << (number % 64);
            *word = if to { *word | bit } else { *word & !bit };
        }
    }

    /// Removes the numbers that the other set does not contain (intersection).
    pub(super) fn keep(&mut self, other: &Self) {
        self.0.truncate(other.0.len());
        for (word, others) in self.0.iter_mut().zip(&other.0) {
            *word &= others;
        }
    }

    /// Removes the numbers that the other set contains (difference).
    pub(super) fn drop_all(&mut self, other: &Self) {
        for (word, others) in self.0.iter_mut().zip(&other.0) {
            *word &= !others;
        }
    }

    /// Returns the numbers in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = (0u32..).step_by(64).zip(&self.0);
        words.flat_map(|(first, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then(|| first + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn bits(set: &BTreeSet<u32>) -> Bits {
        let mut bits = Bits::default();
        for number in set {
            bits.set(*number, true);
        }
        bits
    }

    proptest! {
        #[test]
        fn is_a_set(one: BTreeSet<u16>, two: BTreeSet<u16>, gone: BTreeSet<u16>) {
            let [one, two, gone] = [one, two, gone].map(|set| set.into_iter().map(u32::from).collect::<BTreeSet<u32>>());
            let mut set = bits(&one);
            prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), one.clone());
            set.keep(&bits(&two));
            for number in &gone {
                set.set(*number, false);
            }
            let left: Vec<u32> = one.intersection(&two).filter(|n| !gone.contains(n)).copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), left);
            prop_assert!(two.iter().all(|n| set.has(*n) == (one.contains(n) && !gone.contains(n))));
        }
    }
}
