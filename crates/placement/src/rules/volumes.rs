//! Volumes of pods: PersistentVolumeClaims, and the storage that drivers report. They restrict hosts as in the plugin
//! VolumeBinding of kube-scheduler.
//!
//! In addition to kube-scheduler's rules, the claims of assumed pods count as used storage until their volumes are
//! provisioned: kube-scheduler compares each claim only with the reported storage, so that ten VMs that are created at
//! once would all be placed on a host with storage for one VM. A driver updates its report only after it has provisioned
//! a volume.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use super::capacity_pools::{ClaimSum, ClassPools, Pool};
use super::hosts::Hosts;
use super::symbols::{Interner, NumberHasher, NumberMap, Symbol, Symbols};

/// The rules about volumes that are evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeChecks {
    /// All rules: the node affinity of volumes, selected nodes, allowed topologies, and storage.
    #[default]
    All,
    /// Only the storage that other assumed pods leave. This is for a scheduler extender: kube-scheduler has checked
    /// all other rules, and knows volumes without a claim, which a claim can use instead of reported storage.
    Reservations,
}

/// Claims, StorageClasses, and the storage that CSI drivers report.
#[derive(Debug)]
pub(super) struct Volumes {
    pub(super) checks: VolumeChecks,
    pub(super) classes: NumberMap<Symbol, CompiledClass>,
    /// Names of the CSIDrivers with `storageCapacity: true`.
    pub(super) reporting_drivers: HashSet<Symbol, BuildHasherDefault<NumberHasher>>,
    pub(super) pools: NumberMap<Symbol, ClassPools>,
    /// StorageClass of each CSIStorageCapacity.
    pool_classes: NumberMap<Symbol, Symbol>,
    /// Numbers of claims by namespace and name.
    claim_names: Interner<(Symbol, Symbol), ()>,
    claims: NumberMap<u32, Claim>,
    /// For each claim, the assumed pods that use it, each with its host.
    holders: NumberMap<u32, Vec<(u64, u32)>>,
    /// Claims that count in the pools of a host.
    counted_claims: NumberMap<u32, CountedClaim>,
}

/// A StorageClass.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompiledClass {
    pub(super) driver: Symbol,
    pub(super) waits_for_consumer: bool,
    /// Number of the rule for `allowedTopologies`; `None` if the class permits all hosts.
    pub(super) topologies: Option<u32>,
}

/// A claim that restricts the hosts of its pods.
#[derive(Clone, Copy, Debug)]
pub(super) enum Claim {
    /// The claim is bound to a volume with this rule for hosts.
    Bound { node_rule: u32 },
    /// The claim has no volume yet.
    Unbound { class: Symbol, bytes: Option<u64>, selected_node: Option<Symbol> },
}

/// A claim that counts in the pools of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountedClaim {
    class: Symbol,
    bytes: u64,
    host: u32,
}

impl Volumes {
    pub(super) fn new() -> Self {
        Self {
            checks: VolumeChecks::default(),
            classes: NumberMap::default(),
            reporting_drivers: HashSet::default(),
            pools: NumberMap::default(),
            pool_classes: NumberMap::default(),
            claim_names: Interner::new(),
            claims: NumberMap::default(),
            holders: NumberMap::default(),
            counted_claims: NumberMap::default(),
        }
    }

    /// Returns the numbers of claims, sorted and without duplicates.
    pub(super) fn intern_claims(
        &mut self,
        symbols: &mut Symbols,
        namespace: Symbol,
        names: &[String],
    ) -> Box<[u32]> {
        let mut numbers: Vec<u32> = Vec::with_capacity(names.len());
        for name in names {
            numbers.push(self.claim_names.intern((namespace, symbols.intern(name)), |_| ()).0);
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into()
    }

    pub(super) fn claim(&self, number: u32) -> Option<Claim> {
        self.claims.get(&number).copied()
    }

    /// Sets or removes a claim. Returns the host in whose pools the claim counted before, if it no longer counts.
    pub(super) fn set_claim(
        &mut self,
        symbols: &Symbols,
        hosts: &Hosts,
        name: (Symbol, Symbol),
        claim: Option<Claim>,
    ) -> Option<u32> {
        let (number, _) = self.claim_names.intern(name, |_| ());
        let counted = self.counted_claims.get(&number).copied();
        match claim {
            Some(claim) => self.claims.insert(number, claim),
            None => self.claims.remove(&number),
        };
        self.update_count(symbols, hosts, number);
        let is_released = !self.counted_claims.contains_key(&number);
        counted.filter(|_| is_released).map(|counted| counted.host)
    }

    /// Returns namespace and name of a claim for messages, as `namespace/name`.
    pub(super) fn claim_text(&self, symbols: &Symbols, number: u32) -> String {
        let names = self.claim_names.get(number).map(|(names, _)| *names);
        let text = names
            .map(|(namespace, name)| format!("{}/{}", symbols.name(namespace), symbols.name(name)));
        text.unwrap_or_default()
    }

    /// Returns true if volumes of a class are provisioned on the host of their first pod, by a driver that reports its
    /// storage.
    pub(super) fn has_reported_storage(&self, class: Symbol) -> bool {
        self.classes.get(&class).is_some_and(|class| {
            class.waits_for_consumer && self.reporting_drivers.contains(&class.driver)
        })
    }

    /// Returns true if a claim already counts in the pools of this host.
    pub(super) fn is_counted_on(&self, claim: u32, host: u32) -> bool {
        self.counted_claims.get(&claim).is_some_and(|counted| counted.host == host)
    }

    /// Records that a pod with these claims is assumed on a host.
    pub(super) fn add_pod(
        &mut self,
        symbols: &Symbols,
        hosts: &Hosts,
        claims: &[u32],
        pod: u64,
        host: u32,
    ) {
        for claim in claims {
            self.holders.entry(*claim).or_default().push((pod, host));
            self.update_count(symbols, hosts, *claim);
        }
    }

    /// Records that a pod with these claims was removed from its host.
    pub(super) fn remove_pod(
        &mut self,
        symbols: &Symbols,
        hosts: &Hosts,
        claims: &[u32],
        pod: u64,
    ) {
        for claim in claims {
            if let Some(holders) = self.holders.get_mut(claim) {
                holders.retain(|(other, _)| *other != pod);
                if holders.is_empty() {
                    self.holders.remove(claim);
                }
            }
            self.update_count(symbols, hosts, *claim);
        }
    }

    /// Adds the claims that count on a host to the pools of the host, or removes them. Before the labels of a host
    /// change, its claims must be removed from its pools, and afterwards be added to its new pools.
    pub(super) fn count_host(
        &mut self,
        symbols: &Symbols,
        hosts: &Hosts,
        host: u32,
        is_added: bool,
    ) {
        let on_host = self.counted_claims.values().filter(|claim| claim.host == host);
        let on_host: Vec<CountedClaim> = on_host.copied().collect();
        for claim in on_host {
            self.count(symbols, hosts, claim, is_added);
        }
    }

    /// Updates the pools after a change of a claim, its class, or the pods that use it.
    fn update_count(&mut self, symbols: &Symbols, hosts: &Hosts, claim: u32) {
        let new = self.counted_claim(claim);
        let old = match new {
            Some(new) => self.counted_claims.insert(claim, new),
            None => self.counted_claims.remove(&claim),
        };
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.count(symbols, hosts, old, false);
        }
        if let Some(new) = new {
            self.count(symbols, hosts, new, true);
        }
    }

    /// Updates the pools after a change of a class or driver.
    pub(super) fn update_all_counts(&mut self, symbols: &Symbols, hosts: &Hosts) {
        let claims: Vec<u32> = self.claims.keys().copied().collect();
        for claim in claims {
            self.update_count(symbols, hosts, claim);
        }
    }

    fn counted_claim(&self, claim: u32) -> Option<CountedClaim> {
        let Claim::Unbound { class, bytes, .. } = self.claim(claim)? else { return None };
        let (_, host) = *self.holders.get(&claim)?.first()?;
        self.has_reported_storage(class).then_some(CountedClaim { class, bytes: bytes?, host })
    }

    fn count(&mut self, symbols: &Symbols, hosts: &Hosts, claim: CountedClaim, is_added: bool) {
        let Some(host) = hosts.get(claim.host) else { return };
        if let Some(pools) = self.pools.get_mut(&claim.class) {
            pools.count_claim(symbols, &host.labels, claim.bytes, is_added);
        }
    }

    /// Returns the sum of the claims of a class that count in a pool.
    pub(super) fn sum_claims(
        &self,
        symbols: &Symbols,
        hosts: &Hosts,
        class: Symbol,
        pool: &Pool,
    ) -> ClaimSum {
        let mut sum = ClaimSum::default();
        let of_class = self.counted_claims.values().filter(|claim| claim.class == class);
        for claim in of_class.filter(|claim| pool.counts(claim.bytes)) {
            let host = hosts.get(claim.host);
            if host.is_some_and(|host| pool.topology.matches(symbols, &host.labels)) {
                sum.add(claim.bytes);
            }
        }
        sum
    }

    /// Inserts the pool of a CSIStorageCapacity.
    pub(super) fn insert_pool(&mut self, id: Symbol, class: Symbol, pool: Pool) {
        self.pool_classes.insert(id, class);
        self.pools.entry(class).or_default().insert(id, pool);
    }

    /// Removes the pool of a CSIStorageCapacity, and returns it.
    pub(super) fn remove_pool(&mut self, id: Symbol) -> Option<Pool> {
        let class = self.pool_classes.remove(&id)?;
        let pools = self.pools.get_mut(&class)?;
        let pool = pools.remove(id);
        if pools.is_empty() {
            self.pools.remove(&class);
        }
        pool
    }
}
