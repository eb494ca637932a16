//! Free storage of CSI drivers: one pool for each CSIStorageCapacity, grouped by StorageClass.

use std::collections::BTreeMap;

use super::selector::{LabelTest, Selector};
use super::symbols::{LabelPair, Labels, NumberMap, Symbol, Symbols};

/// Number of claims, and the sum of their requested sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimSum {
    pub(super) claims: u32,
    /// The sum of two sizes may exceed 64 bits. A sum that is limited would be wrong after a subtraction.
    pub(super) bytes: u128,
}

impl ClaimSum {
    pub(super) fn add(&mut self, bytes: u64) {
        self.claims = self.claims.saturating_add(1);
        self.bytes = self.bytes.saturating_add(u128::from(bytes));
    }

    fn subtract(&mut self, bytes: u64) {
        self.claims = self.claims.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u128::from(bytes));
    }

    /// Returns the sum of the sizes, at most the maximum of 64 bits.
    pub(super) fn limited_bytes(self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
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
    /// Returns the size of the largest volume that kube-scheduler expects to fit (volumebinding `capacitySufficient`):
    /// the maximum volume size, which is more precise, or else the free storage. `None` if nothing fits.
    const fn volume_limit(&self) -> Option<u64> {
        match self.maximum_volume_size {
            Some(size) => Some(size),
            None => self.capacity,
        }
    }

    /// Returns true if a claim of this size counts in the pool. The driver cannot provision a larger volume, so a claim
    /// of any size that a tenant creates must not exclude the claims of others.
    pub(super) fn counts(&self, bytes: u64) -> bool {
        self.volume_limit().is_some_and(|limit| bytes <= limit)
    }

    /// Returns the labels that all hosts of the pool have, sorted by key.
    pub(super) fn required_labels(&self) -> impl Iterator<Item = LabelPair> + '_ {
        self.topology.requirements().iter().filter_map(|one| match &one.test {
            LabelTest::In(values) => match &**values {
                [value] => Some((one.key, *value)),
                _ => None,
            },
            _ => None,
        })
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

/// CSIStorageCapacities by the values of labels.
type IdsByValues = NumberMap<Box<[Symbol]>, Vec<Symbol>>;

/// The pools of one StorageClass. They are indexed by the labels of their hosts, because drivers of local volumes have
/// a pool for each host.
#[derive(Debug, Default)]
pub(super) struct ClassPools {
    pools: NumberMap<Symbol, Pool>,
    /// CSIStorageCapacities by the labels that all hosts of their pools have: by the keys of these labels, and then by
    /// their values. The pools of a driver usually have the same keys.
    ids_by_labels: BTreeMap<Box<[Symbol]>, IdsByValues>,
}

impl ClassPools {
    /// Inserts a pool, or replaces the pool of the CSIStorageCapacity `id`.
    pub(super) fn insert(&mut self, id: Symbol, pool: Pool) {
        self.remove(id);
        let (keys, values) = index_of(&pool);
        self.ids_by_labels.entry(keys).or_default().entry(values).or_default().push(id);
        self.pools.insert(id, pool);
    }

    pub(super) fn remove(&mut self, id: Symbol) -> Option<Pool> {
        let pool = self.pools.remove(&id)?;
        let (keys, values) = index_of(&pool);
        if let Some(ids_by_values) = self.ids_by_labels.get_mut(&keys) {
            if let Some(ids) = ids_by_values.get_mut(&values) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    ids_by_values.remove(&values);
                }
            }
            if ids_by_values.is_empty() {
                self.ids_by_labels.remove(&keys);
            }
        }
        Some(pool)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty()
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
            let Some(pool) = self.pools.get_mut(&id).filter(|pool| pool.counts(bytes)) else {
                continue;
            };
            if is_added {
                pool.reserved.add(bytes);
            } else {
                pool.reserved.subtract(bytes);
            }
        }
    }

    /// Returns the CSIStorageCapacities of the pools that a host with these labels can use.
    fn ids_for_host(&self, symbols: &Symbols, labels: &Labels) -> Vec<Symbol> {
        let mut ids = Vec::new();
        for (keys, ids_by_values) in &self.ids_by_labels {
            let values: Option<Box<[Symbol]>> = keys.iter().map(|key| labels.get(*key)).collect();
            let found = values.and_then(|values| ids_by_values.get(&values));
            ids.extend(found.into_iter().flatten().copied());
        }
        ids.retain(|id| {
            self.pools.get(id).is_some_and(|pool| pool.topology.matches(symbols, labels))
        });
        ids
    }
}

/// Returns the keys and the values of the labels by which a pool is indexed.
fn index_of(pool: &Pool) -> (Box<[Symbol]>, Box<[Symbol]>) {
    let (keys, values): (Vec<Symbol>, Vec<Symbol>) = pool.required_labels().unzip();
    (keys.into(), values.into())
}

#[cfg(test)]
mod tests {
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
        pools.count_claim(&symbols, &c, 4 * GIB, true);
        // The pool of host a has two claims, and the pool of all hosts has two other claims with a larger sum.
        let sum = |claims, size: u64| ClaimSum { claims, bytes: u128::from(size) };
        let found = pools.available(&symbols, &a);
        assert_eq!((found.capacity, found.reserved), (Some(15 * GIB), sum(2, 6 * GIB)));
        pools.count_claim(&symbols, &c, 4 * GIB, false);
        assert_eq!(pools.available(&symbols, &a).reserved, sum(2, 3 * GIB));

        assert!(pools.remove(ids[0]).is_some() && pools.remove(ids[0]).is_none());
        assert_eq!(pools.available(&symbols, &a).volume_limit, Some(5 * GIB));
        ids[1..].iter().for_each(|id| drop(pools.remove(*id)));
        assert!(pools.is_empty() && pools.ids_by_labels.is_empty());
    }

    #[test]
    fn pools_are_indexed_by_all_labels_of_their_hosts() {
        let mut symbols = Symbols::new();
        let mut pools = ClassPools::default();
        let hosts = ["a", "b"].map(|host| {
            let labels = [("zone", "one"), ("host", host)];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            Labels::intern(&mut symbols, &BTreeMap::from(labels))
        });
        for (id, host, size) in [("of a", "a", 1), ("of b", "b", 2)] {
            let requirements = [("zone", "one"), ("host", host)].map(|(key, value)| {
                Requirement::equals(symbols.intern(key), symbols.intern(value))
            });
            let topology = Selector::from_requirements(requirements.to_vec());
            pools.insert(symbols.intern(id), pool(topology, Some(size * GIB)));
        }
        assert_eq!(pools.ids_by_labels.len(), 1);
        for (host, size) in hosts.iter().zip([1, 2]) {
            assert_eq!(pools.ids_for_host(&symbols, host).len(), 1);
            assert_eq!(pools.available(&symbols, host).volume_limit, Some(size * GIB));
        }
    }

    #[test]
    fn claims_that_no_volume_can_satisfy_are_not_counted() {
        let mut symbols = Symbols::new();
        let mut pools = ClassPools::default();
        let everywhere = || Selector::from_requirements(Vec::new());
        let labels = Labels::default();
        let id = symbols.intern("all");
        pools.insert(id, pool(everywhere(), Some(10 * GIB)));
        for bytes in [u64::MAX, 11 * GIB] {
            pools.count_claim(&symbols, &labels, bytes, true);
        }
        assert_eq!(pools.available(&symbols, &labels).reserved, ClaimSum::default());
        // The sum does not overflow, so that it is correct after each claim is removed.
        pools.insert(id, pool(everywhere(), Some(u64::MAX)));
        for _ in 0..3 {
            pools.count_claim(&symbols, &labels, u64::MAX, true);
        }
        pools.count_claim(&symbols, &labels, GIB, true);
        for _ in 0..3 {
            pools.count_claim(&symbols, &labels, u64::MAX, false);
        }
        let sum = ClaimSum { claims: 1, bytes: u128::from(GIB) };
        assert_eq!(pools.available(&symbols, &labels).reserved, sum);
    }
}
