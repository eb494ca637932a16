//! Sets of the CPUs of one host. Each CPU is identified by its index in
//! [`KubeletHost::cpus`](super::host::KubeletHost). A set has a fixed number of 64-bit words and needs no memory
//! allocation.

/// Number of 64-bit words in a set.
const WORD_COUNT: usize = 16;

/// Maximum number of CPUs of a host. It is sufficient, because the largest two-socket servers have 768 CPUs.
pub(super) const MAX_CPUS: usize = WORD_COUNT * 64;

/// Set of CPUs by index. The indexes are ordered by zone, and within a zone by core, so that the CPUs of a zone and of
/// a core have contiguous indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuBits([u64; WORD_COUNT]);

impl CpuBits {
    /// Returns the set of the indexes from `start` to `end`, where `end` is excluded.
    pub(super) fn from_range(start: u16, end: u16) -> Self {
        let mut bits = Self::default();
        for (word, mask) in words_with_masks(start, end) {
            bits.0[word] |= mask;
        }
        bits
    }

    pub(super) const fn insert(&mut self, index: u16) {
        let index = index as usize % MAX_CPUS;
        self.0[index / 64] |= 1 << (index % 64);
    }

    pub(super) const fn contains(&self, index: u16) -> bool {
        let index = index as usize % MAX_CPUS;
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().filter(|&&word| word != 0).map(|word| word.count_ones()).sum()
    }

    /// Counts the set's indexes from `start` to `end`, where `end` is excluded.
    pub(super) fn count_range(&self, start: u16, end: u16) -> u32 {
        words_with_masks(start, end).map(|(word, mask)| (self.0[word] & mask).count_ones()).sum()
    }

    pub(super) fn intersection(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine &= theirs);
        self
    }

    pub(super) fn union(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine |= theirs);
        self
    }

    pub(super) fn difference(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine &= !theirs);
        self
    }

    /// Returns the indexes in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().zip(0u16..).flat_map(|(&word, index)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = u16::try_from(rest.trailing_zeros()).unwrap_or_default();
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    index * 64 + bit
                })
            })
        })
    }
}

/// Returns the words that the indexes from `start` to `end` cover (`end` is excluded), each as its position in the set
/// and the mask of its bits in the range.
fn words_with_masks(start: u16, end: u16) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (usize::from(start), usize::from(end).min(MAX_CPUS));
    (start / 64..end.div_ceil(64)).map(move |word| {
        let low = start.saturating_sub(word * 64).min(64);
        let high = end.saturating_sub(word * 64).min(64);
        let below = |bits: usize| if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        (word, below(high) & !below(low))
    })
}

/// A set of CPUs that is stored without leading and trailing empty words, because one is stored for each container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CompactCpuBits {
    first_word: u8,
    words: Box<[u64]>,
}

impl From<&CpuBits> for CompactCpuBits {
    fn from(bits: &CpuBits) -> Self {
        let Some(first) = bits.0.iter().position(|&word| word != 0) else { return Self::default() };
        let last = bits.0.iter().rposition(|&word| word != 0).unwrap_or(first);
        Self {
            first_word: u8::try_from(first).unwrap_or_default(),
            words: bits.0[first..=last].into(),
        }
    }
}

impl CompactCpuBits {
    pub(super) fn to_cpu_bits(&self) -> CpuBits {
        let mut bits = CpuBits::default();
        let words = bits.0.iter_mut().skip(usize::from(self.first_word));
        words.zip(&*self.words).for_each(|(target, word)| *target = *word);
        bits
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn range_contains_the_indexes_between_its_ends(start in 0u16..1100, length in 0u16..1100) {
            let end = start + length;
            let bits = CpuBits::from_range(start, end);
            let expected: Vec<u16> = (start..end).filter(|&index| index < 1024).collect();
            prop_assert_eq!(bits.iter().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(bits.count() as usize, expected.len());
            prop_assert_eq!(CompactCpuBits::from(&bits).to_cpu_bits(), bits);
            prop_assert_eq!(CpuBits::from_range(0, 1024).count_range(start, end) as usize, expected.len());
        }
    }
}
