//! Simulated hosts. A model of the kubelet's admission checks each host that a policy has chosen.

use anyhow::Result;
use berth_api::PageSize;
use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{HostState, Refusal};

use crate::fleet;

/// All simulated hosts.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) hosts: Vec<Host>,
    pub(super) page: PageSize,
}

/// A host and the pods on it.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Resources that the host's kubelet has allocated.
    pub(super) state: HostState,
    /// Allocatable resources of the Node.
    pub(super) allocatable: NodeTotals,
    /// Sum of the requests of the host's pods, as kube-scheduler computes it.
    pub(super) requested: NodeTotals,
    pods_limit: usize,
    /// Free resources of each zone.
    pub(super) zones: [Zone; 2],
    /// Number of pods that were added to or removed from the host. A policy that caches admission results compares
    /// this number.
    pub(super) change_count: u64,
}

/// Total CPU and memory of a Node, over both zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeTotals {
    pub(super) cpu_millis: u64,
    pub(super) memory: u64,
    pub(super) pages: u64,
}

/// Free and total resources of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Zone {
    pub(super) cpus: u32,
    pub(super) total_cpus: u32,
    pub(super) gib: u64,
    pub(super) total_gib: u64,
}

impl NodeTotals {
    pub(super) fn from_resources(amounts: &Resources, page: PageSize) -> Self {
        let pages = amounts.hugepages.get(&page).copied().unwrap_or_default();
        Self { cpu_millis: amounts.cpu_millis, memory: amounts.memory, pages }
    }

    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.cpu_millis = with(self.cpu_millis, other.cpu_millis);
        self.memory = with(self.memory, other.memory);
        self.pages = with(self.pages, other.pages);
    }
}

impl Cluster {
    /// Creates a cluster with the given number of empty hosts.
    pub(super) fn new(hosts: usize, page: PageSize) -> Result<Self> {
        let facts = fleet::reported_host("host", page)?;
        let mut host = Host {
            state: HostState::new(&facts.admission),
            allocatable: NodeTotals::from_resources(&facts.allocatable, page),
            requested: NodeTotals::default(),
            pods_limit: usize::try_from(facts.pods_limit)?,
            zones: [Zone::default(); 2],
            change_count: 0,
        };
        host.update_zones(page);
        Ok(Self { hosts: vec![host; hosts], page })
    }

    /// Adds a pod to the host that a policy chose, if the kubelet admits the pod.
    pub(super) fn admit(&mut self, at: usize, pod: &Pod) -> Result<(), Option<Refusal>> {
        let page = self.page;
        let host = self.hosts.get_mut(at).ok_or(None)?;
        let result = host.state.admit(pod).map(|_| ()).map_err(Some);
        if result.is_ok() {
            host.requested
                .combine(&NodeTotals::from_resources(&pod.requests(), page), u64::saturating_add);
        }
        host.update_zones(page);
        result
    }

    pub(super) fn remove(&mut self, at: usize, pod: &Pod) {
        let page = self.page;
        if let Some(host) = self.hosts.get_mut(at)
            && host.state.remove(&pod.uid)
        {
            host.requested
                .combine(&NodeTotals::from_resources(&pod.requests(), page), u64::saturating_sub);
            host.update_zones(page);
        }
    }

    /// Returns the number of CPUs that are not pinned.
    pub(super) fn free_cpus(&self) -> u32 {
        self.hosts.iter().flat_map(|host| host.zones).map(|zone| zone.cpus).sum()
    }

    pub(super) fn pinnable_cpus(&self) -> f64 {
        f64::from(fleet::PINNABLE_CPUS) * self.hosts.len() as f64
    }
}

impl Host {
    /// Returns true if the pod fits into the totals of the Node, which is the check of the plugin NodeResourcesFit.
    pub(super) fn has_room(&self, wanted: &NodeTotals) -> bool {
        let (all, used) = (&self.allocatable, &self.requested);
        self.state.pod_count() < self.pods_limit
            && wanted.cpu_millis <= all.cpu_millis.saturating_sub(used.cpu_millis)
            && wanted.memory <= all.memory.saturating_sub(used.memory)
            && wanted.pages <= all.pages.saturating_sub(used.pages)
    }

    /// Returns true if a zone has enough free CPUs and huge pages. Without such a zone the kubelet would refuse the
    /// pod, so the more expensive model of its admission is not needed.
    pub(super) fn fits_a_zone(&self, size: fleet::Size) -> bool {
        self.zones.iter().any(|zone| size.cpus <= zone.cpus && size.gib <= zone.gib)
    }

    fn update_zones(&mut self, page: PageSize) {
        self.change_count += 1;
        for (zone, seen) in self.zones.iter_mut().zip(self.state.free_by_zone()) {
            let (gib, all_gib) = seen.free_and_total_pages(page);
            *zone = Zone {
                cpus: seen.cpus,
                total_cpus: seen.total_cpus,
                gib: gib >> 30,
                total_gib: all_gib >> 30,
            };
        }
    }
}
