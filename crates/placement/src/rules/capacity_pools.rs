//! Free storage of CSI drivers: one pool for each CSIStorageCapacity, grouped by StorageClass.

use std::collections::BTreeSet;

use super::selector::{LabelTest, Selector};
use super::symbols::{EMPTY_SYMBOL, LabelPair, Labels, NumberMap, Symbol, Symbols};

/// Number of claims, and the sum of their requested sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimSum {
    pub(super) claims: u32,
    pub(super) bytes: u64,
}

impl ClaimSum {
    pub(super) fn add(&mut self, bytes: u64) {
        self.claims = self.claims.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn subtract(&mut self, bytes: u64) {
        self.claims = self.claims.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Storage of one CSIStorageCapacity.
#[derive(Debug)]
pub(super) struct Pool {
    /// Selects the hosts that can use the storage.
    pub(super) topology: Selector,
    /// Free bytes; `None` if the driver reports none.
    pub(super) capacity: Option<u64>,
    /// Size of the largest volume that can be provisioned; `None` if the driver reports none.
    pub(super) maximum_volume_size: Option<u64>,
    /// Claims of assumed pods whose volumes will be provisioned in this pool.
    pub(super) reserved: ClaimSum,
}

impl Pool {
    /// Returns the size of the largest volume that kube-scheduler expects to fit (volumebinding `volumeLimit`): the
    /// maximum volume size, which is more precise, or else the free storage. `None` if nothing fits.
    const fn volume_limit(&self) -> Option<u64> {
        match self.maximum_volume_size {
            Some(size) => Some(size),
            None => self.capacity,
        }
    }

    /// Returns a label that all hosts of the pool have. [`EMPTY_SYMBOL`], which is the key of no label, means that no
    /// such label is known.
    pub(super) fn index_label(&self) -> LabelPair {
        let label = self.topology.requirements().iter().find_map(|one| match &one.test {
            LabelTest::In(values) => match &**values {
                [value] => Some((one.key, *value)),
                _ => None,
            },
            _ => None,
        });
        label.unwrap_or((EMPTY_SYMBOL, EMPTY_SYMBOL))
    }
}

/// Storage of one StorageClass that a host can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AvailableStorage {
    /// Size of the largest volume that fits into a pool; `None` if none fits.
    pub(super) volume_limit: Option<u64>,
    /// Free bytes of all pools; `None` if a pool does not report them.
    pub(super) capacity: Option<u64>,
    /// Claims that are reserved in these pools: those of the pool with the largest sum, because a claim on a host counts
    /// in all pools of the host.
    pub(super) reserved: ClaimSum,
}

/// The pools of one StorageClass. They are indexed by a label of their hosts, because drivers of local volumes have a
/// pool for each host.
#[derive(Debug, Default)]
pub(super) struct ClassPools {
    pools: NumberMap<Symbol, Pool>,
    pools_by_label: NumberMap<LabelPair, Vec<Symbol>>,
    /// Keys of the labels in `pools_by_label`.
    index_keys: BTreeSet<Symbol>,
}

impl ClassPools {
    /// Inserts a pool, or replaces the pool of the CSIStorageCapacity `id`.
    pub(super) fn insert(&mut self, id: Symbol, pool: Pool) {
        self.remove(id);
        let label = pool.index_label();
        self.index_keys.insert(label.0);
        self.pools_by_label.entry(label).or_default().push(id);
        self.pools.insert(id, pool);
    }

    pub(super) fn remove(&mut self, id: Symbol) -> Option<Pool> {
        let pool = self.pools.remove(&id)?;
        let label = pool.index_label();
        if let Some(ids) = self.pools_by_label.get_mut(&label) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.pools_by_label.remove(&label);
            }
        }
        Some(pool)
    }

    /// Returns the storage that a host with these labels can use.
    pub(super) fn available(&self, symbols: &Symbols, labels: &Labels) -> AvailableStorage {
        let mut available = AvailableStorage { capacity: Some(0), ..AvailableStorage::default() };
        for id in self.ids_for_host(symbols, labels) {
            let Some(pool) = self.pools.get(&id) else { continue };
            available.volume_limit = available.volume_limit.max(pool.volume_limit());
            available.capacity =
                available.capacity.zip(pool.capacity).map(|(sum, bytes)| sum.saturating_add(bytes));
            if pool.reserved.bytes > available.reserved.bytes {
                available.reserved = pool.reserved;
            }
        }
        available
    }

    /// Adds a claim to the reserved claims of all pools that a host with these labels can use, or removes the claim.
    pub(super) fn count_claim(
        &mut self,
        symbols: &Symbols,
        labels: &Labels,
        bytes: u64,
        is_added: bool,
    ) {
        for id in self.ids_for_host(symbols, labels) {
            let Some(pool) = self.pools.get_mut(&id) else { continue };
            if is_added {
                pool.reserved.add(bytes);
            } else {
                pool.reserved.subtract(bytes);
            }
        }
    }

    /// Removes all reserved claims.
    pub(super) fn clear_reserved(&mut self) {
        for pool in self.pools.values_mut() {
            pool.reserved = ClaimSum::default();
        }
    }

    /// Returns the CSIStorageCapacities of the pools that a host with these labels can use.
    fn ids_for_host(&self, symbols: &Symbols, labels: &Labels) -> Vec<Symbol> {
        let pairs = self.index_keys.iter().filter_map(|key| {
            let value = if *key == EMPTY_SYMBOL { Some(EMPTY_SYMBOL) } else { labels.get(*key) };
            Some((*key, value?))
        });
        let ids = pairs.filter_map(|pair| self.pools_by_label.get(&pair)).flatten().copied();
        let is_usable = |id: &Symbol| {
            self.pools.get(id).is_some_and(|pool| pool.topology.matches(symbols, labels))
        };
        ids.filter(is_usable).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rules::selector::Requirement;

    const GIB: u64 = 1 << 30;

    fn pool(topology: Selector, capacity: Option<u64>) -> Pool {
        Pool { topology, capacity, maximum_volume_size: None, reserved: ClaimSum::default() }
    }

    #[test]
    fn pools_are_found_by_the_labels_of_hosts() {
        let mut symbols = Symbols::new();
        let mut pools = ClassPools::default();
        let label = |symbols: &mut Symbols, key: &str, value: &str| {
            let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            Labels::intern(symbols, &labels)
        };
        let host = |symbols: &mut Symbols, value: &str| {
            let requirement = Requirement::equals(symbols.intern("host"), symbols.intern(value));
            Selector::from_requirements(vec![requirement])
        };
        let ids = ["a", "b", "all", "none"].map(|id| symbols.intern(id));
        let (of_a, of_b) = (host(&mut symbols, "a"), host(&mut symbols, "b"));
        pools.insert(ids[0], pool(of_a, Some(10 * GIB)));
        pools.insert(ids[1], pool(of_b, Some(20 * GIB)));
        pools.insert(ids[3], pool(Selector::Nothing, Some(40 * GIB)));
        let (a, c) = (label(&mut symbols, "host", "a"), label(&mut symbols, "host", "c"));
        let found = pools.available(&symbols, &a);
        assert_eq!((found.volume_limit, found.capacity), (Some(10 * GIB), Some(10 * GIB)));
        let found = pools.available(&symbols, &c);
        assert_eq!((found.volume_limit, found.capacity), (None, Some(0)));

        pools.count_claim(&symbols, &a, GIB, true);
        pools.insert(ids[2], pool(Selector::from_requirements(Vec::new()), Some(5 * GIB)));
        pools.count_claim(&symbols, &a, 2 * GIB, true);
        pools.count_claim(&symbols, &c, 7 * GIB, true);
        // The pool of host a has two claims, and the pool of all hosts has two other claims with a larger sum.
        let found = pools.available(&symbols, &a);
        assert_eq!(found.capacity, Some(15 * GIB));
        assert_eq!(found.reserved, ClaimSum { claims: 2, bytes: 9 * GIB });
        pools.count_claim(&symbols, &c, 7 * GIB, false);
        let found = pools.available(&symbols, &a);
        assert_eq!(found.reserved, ClaimSum { claims: 2, bytes: 3 * GIB });
        pools.clear_reserved();
        assert_eq!(pools.available(&symbols, &a).reserved, ClaimSum::default());

        assert!(pools.remove(ids[0]).is_some() && pools.remove(ids[0]).is_none());
        assert_eq!(pools.available(&symbols, &a).volume_limit, Some(5 * GIB));
    }
}
