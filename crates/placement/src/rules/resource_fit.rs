//! Resource fit: compares the requests of a pod with the remaining allocatable resources of a Node.
//!
//! Implements `fitsRequest` of the plugin NodeResourcesFit, and `resource.PodRequests` of component-helpers. Ephemeral
//! storage and pod-level resources are not included, because [`Pod`] lacks them.

use super::reason::Reason;
use super::symbols::{Symbol, Symbols};
use berth_kubelet_admission::pod::{Pod, Resources};

/// Amounts of all resources that the scheduler counts. A resource that is not listed has the amount zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    cpu_millis: u64,
    memory: u64,
    /// Amounts of huge pages and extended resources, by the name of the resource in the Node, sorted by name.
    other_resources: Vec<(Symbol, u64)>,
}

/// Allocatable and used resources of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeResources {
    remaining: Amounts,
    /// Number of pods that the host may still accept.
    remaining_pods: u64,
    allocatable: Amounts,
    pods_limit: u64,
    used: Amounts,
    pods: u64,
}

impl Amounts {
    pub(super) fn intern(symbols: &mut Symbols, resources: &Resources) -> Self {
        let mut others: Vec<(Symbol, u64)> = Vec::new();
        for (size, bytes) in &resources.hugepages {
            others.push((symbols.intern(&size.resource_name()), *bytes));
        }
        for (name, amount) in &resources.extended {
            others.push((symbols.intern(name), *amount));
        }
        others.sort_unstable();
        Self { cpu_millis: resources.cpu_millis, memory: resources.memory, other_resources: others }
    }

    fn other_amount(&self, name: Symbol) -> u64 {
        let at = self.other_resources.binary_search_by_key(&name, |(name, _)| *name);
        at.ok().and_then(|at| self.other_resources.get(at)).map_or(0, |(_, amount)| *amount)
    }

    fn combine_with(&mut self, other: &Self, operation: impl Fn(u64, u64) -> u64) {
        self.cpu_millis = operation(self.cpu_millis, other.cpu_millis);
        self.memory = operation(self.memory, other.memory);
        for (name, amount) in &other.other_resources {
            match self.other_resources.binary_search_by_key(name, |(name, _)| *name) {
                Ok(at) => {
                    if let Some((_, own_amount)) = self.other_resources.get_mut(at) {
                        *own_amount = operation(*own_amount, *amount);
                    }
                }
                Err(at) => self.other_resources.insert(at, (*name, operation(0, *amount))),
            }
        }
    }
}

/// Returns the requests of a pod as the scheduler computes them (KEP-753): the overhead plus the larger of two amounts.
/// The first amount is the sum over the containers and sidecars. The second amount is the maximum over the init
/// containers, each added to the sidecars that start before it.
pub(super) fn compute_requests(symbols: &mut Symbols, pod: &Pod) -> Amounts {
    Amounts::intern(symbols, &pod.requests())
}

impl NodeResources {
    pub(super) fn set(&mut self, allocatable: Amounts, pods_limit: u64) {
        self.allocatable = allocatable;
        self.pods_limit = pods_limit;
        self.recompute_remaining();
    }

    /// Recomputes the remaining amounts after a change. They are stored, because they are read far more often than they
    /// change.
    fn recompute_remaining(&mut self) {
        let Self { remaining, remaining_pods, allocatable, pods_limit, used, pods } = self;
        remaining.cpu_millis = allocatable.cpu_millis.saturating_sub(used.cpu_millis);
        remaining.memory = allocatable.memory.saturating_sub(used.memory);
        remaining.other_resources.clear();
        let others = allocatable.other_resources.iter();
        remaining.other_resources.extend(
            others.map(|(name, all)| (*name, all.saturating_sub(used.other_amount(*name)))),
        );
        *remaining_pods = pods_limit.saturating_sub(*pods);
    }

    pub(super) fn add_pod(&mut self, amounts: &Amounts) {
        self.used.combine_with(amounts, u64::saturating_add);
        self.pods = self.pods.saturating_add(1);
        self.recompute_remaining();
    }

    pub(super) fn remove_pod(&mut self, amounts: &Amounts) {
        self.used.combine_with(amounts, u64::saturating_sub);
        self.pods = self.pods.saturating_sub(1);
        self.recompute_remaining();
    }

    pub(super) fn fits(&self, requested: &Amounts) -> bool {
        self.remaining_pods > 0
            && requested.cpu_millis <= self.remaining.cpu_millis
            && requested.memory <= self.remaining.memory
            && self.has_extended_resources(requested)
    }

    /// Returns true if the remaining huge pages and extended resources are sufficient. Both lists are sorted, so one
    /// pass is enough.
    fn has_extended_resources(&self, requested: &Amounts) -> bool {
        let mut remaining = self.remaining.other_resources.iter();
        requested.other_resources.iter().filter(|(_, amount)| *amount > 0).all(|(name, amount)| {
            remaining
                .find(|(other, _)| other >= name)
                .is_some_and(|(other, left)| other == name && amount <= left)
        })
    }

    /// Returns a reason for each resource that is insufficient.
    pub(super) fn insufficient_resources(
        &self,
        symbols: &Symbols,
        requested: &Amounts,
    ) -> Vec<Reason> {
        let mut shortages = Vec::new();
        if self.pods >= self.pods_limit {
            shortages.push(Reason::PodsLimit { limit: self.pods_limit });
        }
        let (all, used) = (&self.allocatable, &self.used);
        let mut check_resource = |resource: &str, requested: u64, all: u64, used: u64| {
            let free = all.saturating_sub(used);
            if requested > free {
                shortages.push(Reason::InsufficientResource {
                    resource: resource.to_owned(),
                    requested,
                    free,
                });
            }
        };
        check_resource("cpu", requested.cpu_millis, all.cpu_millis, used.cpu_millis);
        check_resource("memory", requested.memory, all.memory, used.memory);
        for (name, amount) in &requested.other_resources {
            check_resource(
                symbols.name(*name),
                *amount,
                all.other_amount(*name),
                used.other_amount(*name),
            );
        }
        shortages
    }
}
