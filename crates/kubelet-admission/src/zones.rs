//! Masks, which are sets of NUMA zones, and sets of masks.

/// Set of zones by index. The indexes have the same order as the zone numbers. Therefore comparing two masks has the
/// same result as in the kubelet, whose masks use zone numbers (topologymanager/bitmask).
pub type ZoneMask = u64;

/// Maximum number of zones for which topology hints are generated. The limit is low because a hint is generated for
/// every subset of the zones. The kubelet's default limit is also 8.
pub(super) const MAX_HINT_ZONES: usize = 8;

/// Returns the mask of the first `zones` zones.
pub(super) const fn mask_of_first_zones(zones: usize) -> ZoneMask {
    if zones >= 64 { u64::MAX } else { (1 << zones) - 1 }
}

/// Returns the indexes of the zones in a mask, in ascending order.
pub(super) fn bit_indexes(mask: ZoneMask) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let index = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            index
        })
    })
}

/// Returns the key by which the kubelet sorts masks (`IsNarrowerThan`): masks with fewer zones come first, then masks
/// with lower values.
pub(super) const fn narrowness_key(mask: ZoneMask) -> (u32, ZoneMask) {
    (mask.count_ones(), mask)
}

/// Set of masks of at most [`MAX_HINT_ZONES`] zones. Each of the 256 possible masks is one bit of the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MaskSet([u64; 4]);

impl MaskSet {
    pub(super) fn insert(&mut self, mask: ZoneMask) {
        let word = usize::try_from(mask / 64).unwrap_or(0) % 4;
        self.0[word] |= 1 << (mask % 64);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    pub(super) fn intersection(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine &= theirs);
        self
    }

    /// Returns the masks in ascending order of value.
    pub(super) fn iter(&self) -> impl Iterator<Item = ZoneMask> + '_ {
        self.0.iter().enumerate().filter(|&(_, &word)| word != 0).flat_map(|(index, &word)| {
            bit_indexes(word).map(move |bit| (index * 64 + bit) as ZoneMask)
        })
    }

    /// Returns the intersections of every mask of this set with every mask of `other`. Empty intersections are
    /// included.
    pub(super) fn pairwise_intersections(&self, other: &Self) -> Self {
        let mut all = Self::default();
        for mine in self.iter() {
            for theirs in other.iter() {
                all.insert(mine & theirs);
            }
        }
        all
    }

    pub(super) fn filter(self, predicate: impl Fn(ZoneMask) -> bool) -> Self {
        let mut kept = Self::default();
        self.iter().filter(|&mask| predicate(mask)).for_each(|mask| kept.insert(mask));
        kept
    }

    pub(super) fn narrowest(&self) -> Option<ZoneMask> {
        self.iter().min_by_key(|&mask| narrowness_key(mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowest_mask_has_fewest_then_lowest_zones() {
        let mut masks = MaskSet::default();
        for mask in [0b111, 0b100, 0b011, 0b010] {
            masks.insert(mask);
        }
        assert_eq!(masks.narrowest(), Some(0b010));
        assert_eq!(masks.filter(|mask| mask.count_ones() > 1).narrowest(), Some(0b011));
        assert_eq!(MaskSet::default().narrowest(), None);
        let mut high = MaskSet::default();
        high.insert(0b1000_0011);
        assert_eq!(
            masks.pairwise_intersections(&high).iter().collect::<Vec<_>>(),
            [0, 0b010, 0b011]
        );
    }
}
