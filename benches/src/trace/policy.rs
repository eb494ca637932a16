//! Placement policies: kube-scheduler with its defaults, kube-scheduler with common changes of its configuration,
//! best fit with full information, and Berth.

use std::collections::HashMap;

use anyhow::{Context, Result};
use berth_api::{Class, PageSize};
use berth_kubelet_admission::pod::Pod;
use berth_placement::engine::{Engine, VmRequirements};
use berth_placement::rules::{HostId, PodFields};
use fastrand::Rng;

use super::cluster::{Cluster, Host, NodeTotals, Zone};
use crate::fleet::{self, Size};

#[derive(Clone, Debug)]
pub(super) struct VmToPlace {
    pub(super) pod: Pod,
    pub(super) size: Size,
}

/// A placement policy.
pub(super) trait Policy {
    /// Returns the index of the host that the policy chooses; `None` if no host has room. Only a policy with full
    /// information reads the free resources of zones from `cluster`.
    fn choose(&mut self, vm: &VmToPlace, cluster: &Cluster) -> Result<Option<usize>>;

    /// Updates the policy after a VM has stopped, or after the kubelet has refused it.
    fn on_removed(&mut self, _uid: &str) {}
}

/// Names of the compared policies.
pub(super) const POLICY_NAMES: [&str; 5] = [
    "kube-scheduler: MostAllocated",
    "kube-scheduler: LeastAllocated (default)",
    "NUMA filter, LeastAllocated",
    "full-information best fit",
    "Berth",
];
/// Index in [`POLICY_NAMES`] of kube-scheduler with its defaults.
pub(super) const DEFAULT_POLICY: usize = 1;
/// Index in [`POLICY_NAMES`] of best fit with full information.
pub(super) const BEST_FIT_POLICY: usize = 3;
/// Index in [`POLICY_NAMES`] of Berth.
pub(super) const BERTH_POLICY: usize = 4;

/// Returns the policy with this index in [`POLICY_NAMES`].
pub(super) fn create_policy(at: usize, hosts: usize, page: PageSize) -> Result<Box<dyn Policy>> {
    Ok(match at {
        0 => Box::new(KubeScheduler::new(ScoringStrategy::MostAllocated, false)),
        DEFAULT_POLICY => Box::new(KubeScheduler::new(ScoringStrategy::LeastAllocated, false)),
        2 => Box::new(KubeScheduler::new(ScoringStrategy::LeastAllocated, true)),
        BEST_FIT_POLICY => Box::new(BestFit::default()),
        _ => Box::new(Berth::new(hosts, page)?),
    })
}

/// `scoringStrategy.type` of NodeResourcesFit.
#[derive(Clone, Copy, Debug)]
enum ScoringStrategy {
    LeastAllocated,
    MostAllocated,
}

/// Model of kube-scheduler. NodeResourcesFit filters by the totals of the Node and scores, and
/// NodeResourcesBalancedAllocation scores with the same weight. `selectHost` chooses randomly among the hosts with
/// the highest score. For each pod, kube-scheduler checks only some of the hosts, beginning after the last host
/// that it checked for the previous pod (`numFeasibleNodesToFind`).
struct KubeScheduler {
    strategy: ScoringStrategy,
    /// True if an ideal NodeResourceTopologyMatch filters the hosts: the filter is exact, and always knows the
    /// current state of the kubelet.
    has_numa_filter: bool,
    admission_cache: AdmissionCache,
    /// Index of the host with which the next search starts.
    next_host: usize,
    rng: Rng,
}

impl KubeScheduler {
    fn new(allocated: ScoringStrategy, has_numa_filter: bool) -> Self {
        Self {
            strategy: allocated,
            has_numa_filter,
            admission_cache: AdmissionCache::default(),
            next_host: 0,
            rng: Rng::with_seed(1),
        }
    }

    fn score(&self, host: &Host, wanted: &NodeTotals) -> u64 {
        let part = |of: fn(&NodeTotals) -> u64| {
            let all = of(&host.allocatable).max(1);
            (of(&host.requested).saturating_add(of(wanted)).min(all), all)
        };
        let parts = [part(|totals| totals.cpu_millis), part(|totals| totals.memory)];
        let sum: u64 = parts
            .iter()
            .map(|(used, all)| match self.strategy {
                ScoringStrategy::LeastAllocated => (all - used) * 100 / all,
                ScoringStrategy::MostAllocated => used * 100 / all,
            })
            .sum();
        // For two values, the standard deviation is half of their difference.
        let [cpu, memory] = parts.map(|(used, all)| used as f64 / all as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
        let balanced = ((1.0 - (cpu - memory).abs() / 2.0) * 100.0) as u64;
        sum / 2 + balanced
    }
}

/// Returns the number of feasible hosts after which kube-scheduler stops its search if `percentageOfNodesToScore`
/// is 0: 50 % of the hosts, less one percentage point for each 125 hosts, but at least 5 % and at least 100 hosts.
fn feasible_hosts_to_find(hosts: usize) -> usize {
    let percent = 50_usize.saturating_sub(hosts / 125).max(5);
    (hosts * percent / 100).max(100)
}

impl Policy for KubeScheduler {
    fn choose(&mut self, vm: &VmToPlace, cluster: &Cluster) -> Result<Option<usize>> {
        let hosts = &cluster.hosts;
        let wanted = NodeTotals::from_resources(&vm.pod.requests(), cluster.page);
        let (mut best, mut equals, mut found, mut looked) = (None, 0_u32, 0, 0);
        for at in (self.next_host..hosts.len()).chain(0..self.next_host) {
            looked += 1;
            let host = &hosts[at];
            if !host.has_room(&wanted)
                || self.has_numa_filter && self.admission_cache.cost(vm, at, host).is_none()
            {
                continue;
            }
            found += 1;
            let score = self.score(host, &wanted);
            match best {
                Some((most, _)) if score < most => {}
                Some((most, _)) if score == most => {
                    equals += 1;
                    if self.rng.u32(..equals) == 0 {
                        best = Some((score, at));
                    }
                }
                _ => {
                    best = Some((score, at));
                    equals = 1;
                }
            }
            if found >= feasible_hosts_to_find(hosts.len()) {
                break;
            }
        }
        self.next_host = (self.next_host + looked) % hosts.len().max(1);
        Ok(best.map(|(_, at)| at))
    }
}

/// Cached results of the kubelets' admission for each size of a VM. A result is valid until a pod is added to or
/// removed from the host.
#[derive(Debug, Default)]
struct AdmissionCache {
    answers: HashMap<Size, Vec<(u64, Option<f64>)>>,
}

impl AdmissionCache {
    /// Returns the cost of the host: its free resources in the zone that the kubelet would choose. `None` if the
    /// kubelet would refuse the VM.
    fn cost(&mut self, vm: &VmToPlace, at: usize, host: &Host) -> Option<f64> {
        let answers = self.answers.entry(vm.size).or_default();
        if answers.len() <= at {
            answers.resize(at + 1, (0, None));
        }
        let (seen, cost) = &mut answers[at];
        if *seen != host.change_count {
            *seen = host.change_count;
            *cost = kubelet_cost(vm, host);
        }
        *cost
    }
}

fn kubelet_cost(vm: &VmToPlace, host: &Host) -> Option<f64> {
    if !host.fits_a_zone(vm.size) {
        return None;
    }
    let placements = host.state.check(&vm.pod).ok()?.placements(host.state.host());
    let zone = *placements.first()?.affinity.as_ref()?.first()?;
    Some(free_score(host.zones.get(usize::try_from(zone).ok()?)?, vm.size))
}

/// Best fit with full information. The policy checks the kubelet's admission on every host, and chooses the host
/// with the least free CPUs and huge pages in the zone that the kubelet would choose.
#[derive(Debug, Default)]
pub(super) struct BestFit {
    admission_cache: AdmissionCache,
}

impl Policy for BestFit {
    fn choose(&mut self, vm: &VmToPlace, cluster: &Cluster) -> Result<Option<usize>> {
        let mut best: Option<(f64, usize)> = None;
        for (at, host) in cluster.hosts.iter().enumerate() {
            if let Some(cost) = self.admission_cache.cost(vm, at, host)
                && best.is_none_or(|(least, _)| cost < least)
            {
                best = Some((cost, at));
            }
        }
        Ok(best.map(|(_, at)| at))
    }
}

fn free_score(zone: &Zone, size: Size) -> f64 {
    let cpus = f64::from(zone.cpus.saturating_sub(size.cpus)) / f64::from(zone.total_cpus.max(1));
    let gib = zone.gib.saturating_sub(size.gib) as f64 / zone.total_gib.max(1) as f64;
    (cpus + gib) / 2.0 + (cpus - gib).abs() / 3.0
}

/// The assignment engine of Berth.
struct Berth {
    engine: Engine,
}

impl Berth {
    fn new(hosts: usize, page: PageSize) -> Result<Self> {
        let mut engine = Engine::new();
        let mut facts = fleet::reported_host("host", page)?;
        for at in 0..hosts {
            facts.name = format!("host-{at:05}");
            facts.labels.insert("kubernetes.io/hostname".to_owned(), facts.name.clone());
            engine.set_host(facts.clone(), Class::Performance)?;
        }
        Ok(Self { engine })
    }
}

impl Policy for Berth {
    fn choose(&mut self, vm: &VmToPlace, _: &Cluster) -> Result<Option<usize>> {
        let fields = PodFields {
            namespace: "tenants",
            labels: None,
            is_terminating: false,
            node_selector: None,
            affinity: None,
            tolerations: &[],
            spread_constraints: &[],
            containers: &vm.pod,
            claims: &[],
        };
        let class = Class::Performance;
        let needs =
            VmRequirements { is_vm: true, is_pinned: true, class, ..VmRequirements::default() };
        let request =
            self.engine.compile_request(&fields, needs).context("compile the rules of a pod")?;
        Ok(self.engine.place_pod(&request, None).map(HostId::index))
    }

    fn on_removed(&mut self, uid: &str) {
        self.engine.remove_pod(uid);
    }
}
