//! Sets of small numbers, one bit each.

/// A set of numbers. Iteration is in ascending order. The size in memory grows with the highest number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BitSet {
    /// Bits of the set, 64 in each word, lowest first. The last word is never zero, so that the derived equality
    /// compares sets.
    words: Vec<u64>,
}

impl BitSet {
    pub(crate) const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Returns the words, lowest first.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a number; returns `false` if the set already contained it.
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = word_index_and_mask(number);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        is_new
    }

    /// Removes a number; returns `false` if the set did not contain it.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let (word, bit) = word_index_and_mask(number);
        let Some(found) = self.words.get_mut(word).filter(|word| **word & bit != 0) else {
            return false;
        };
        *found &= !bit;
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        true
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        let (word, bit) = word_index_and_mask(number);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(&word, index)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    index * 64 + bit
                })
            })
        })
    }

    /// Returns the first and the last number of each run of consecutive numbers.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut numbers = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = numbers.next()?;
            let mut last = first;
            while let Some(next) = numbers.next_if_eq(&(last + 1)) {
                last = next;
            }
            Some((first, last))
        })
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() < other.words.len() { (other, self) } else { (self, other) };
        let mut words = long.words.clone();
        words.iter_mut().zip(&short.words).for_each(|(a, b)| *a |= b);
        Self { words }
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        Self::from_untrimmed_words(
            self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect(),
        )
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        let mut words = self.words.clone();
        words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= !b);
        Self::from_untrimmed_words(words)
    }

    pub(crate) fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    fn from_untrimmed_words(mut words: Vec<u64>) -> Self {
        while words.last() == Some(&0) {
            words.pop();
        }
        Self { words }
    }
}

const fn word_index_and_mask(number: u32) -> (usize, u64) {
    ((number / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn bit_set(numbers: &BTreeSet<u32>) -> BitSet {
        let mut bits = BitSet::new();
        for number in numbers {
            assert!(bits.insert(*number), "the number is inserted once");
        }
        bits
    }

    proptest! {
        #[test]
        fn bit_set_agrees_with_btree_set(
            a in proptest::collection::btree_set(0u32..300, 0..40),
            b in proptest::collection::btree_set(0u32..300, 0..40),
        ) {
            let (x, y) = (bit_set(&a), bit_set(&b));
            prop_assert_eq!(x.union(&y), bit_set(&(&a | &b)));
            prop_assert_eq!(x.intersection(&y), bit_set(&(&a & &b)));
            prop_assert_eq!(x.difference(&y), bit_set(&(&a - &b)));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!((x.len(), x.is_empty()), (a.len(), a.is_empty()));
            let spread: BTreeSet<u32> = x.ranges().flat_map(|(first, last)| first..=last).collect();
            prop_assert_eq!(&spread, &a);
            prop_assert!(a.iter().all(|number| x.contains(*number)));
            let mut rest = x.clone();
            for number in &b {
                prop_assert_eq!(rest.remove(*number), a.contains(number));
            }
            prop_assert_eq!(rest, x.difference(&y));
        }
    }
}
