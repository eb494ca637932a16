//! Free resources of a host, in a form that allows a quick comparison of many hosts.
//!
//! This module excludes only requests that certainly do not fit. [`berth_kubelet_admission`] decides about the
//! remaining requests.

use berth_api::PageSize;

use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubelet_admission::{CpuPolicy, HostState, MemoryPolicy, TopologyPolicy, TopologyScope};

/// Maximum number of zones whose resources are stored separately. The kubelet, too, aligns resources only on hosts with
/// at most eight zones.
pub(crate) const MAX_ZONES: usize = 8;
/// Sizes of huge pages that are counted for each zone: the two sizes that VMs use.
pub(crate) const PAGE_SIZES: [PageSize; 2] = [PageSize::MIB_2, PageSize::GIB_1];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZoneResources {
    /// Free and total number of CPUs that the kubelet can allocate exclusively.
    pub(crate) cpus: FreeAmount<u32>,
    /// Free and total huge pages in MiB, for each size in [`PAGE_SIZES`].
    pub(crate) pages: [FreeAmount<u32>; 2],
    /// Free and total memory without huge pages, in MiB. If the kubelet does not account for memory by zone, all memory
    /// counts as free.
    pub(crate) memory: FreeAmount<u32>,
}

/// Free and total amount of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeAmount<T> {
    pub(crate) free: T,
    pub(crate) total: T,
}

/// Free and total resources of a host. The fields are ordered so that a check of a host with one or two zones reads two
/// adjacent cache lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct FreeResources {
    pub(crate) zone_count: u8,
    /// True if the kubelet's CPU Manager has the policy `static`, so that VMs can get exclusive CPUs.
    pub(crate) has_static_cpu_policy: bool,
    /// True if the Topology Manager has the policy `single-numa-node`: the resources of a container must come from
    /// one zone.
    pub(crate) is_single_numa_node: bool,
    /// True if the Topology Manager has the scope `pod`: all containers of a pod get their resources from the same
    /// zones.
    has_pod_scope: bool,
    /// True if the kubelet's Memory Manager accounts for huge pages by zone. If false, huge pages may come from any
    /// zone.
    has_static_memory_policy: bool,
    /// The first [`MAX_ZONES`] zones in the kubelet's order; entries from `zone_count` on are unused.
    pub(crate) zones: [ZoneResources; MAX_ZONES],
    /// Sum of the resources of the zones beyond the first [`MAX_ZONES`] zones. On a host with so many zones, the
    /// kubelet does not align resources to zones.
    other_zones_sum: ZoneResources,
}

impl FreeResources {
    /// Returns the free resources according to the predicted state of a host's kubelet.
    pub(crate) fn from_state(state: &HostState) -> Self {
        let kubelet = state.host().kubelet();
        let mut free = Self {
            has_static_cpu_policy: kubelet.cpu_policy == CpuPolicy::Static,
            is_single_numa_node: kubelet.topology_policy == TopologyPolicy::SingleNumaNode,
            has_pod_scope: kubelet.topology_scope == TopologyScope::Pod,
            has_static_memory_policy: kubelet.memory_policy == MemoryPolicy::Static,
            ..Self::default()
        };
        for (at, seen) in state.free_by_zone().enumerate() {
            let memory = seen.free_and_total_memory();
            let mut zone = ZoneResources {
                cpus: FreeAmount { free: seen.cpus, total: seen.total_cpus },
                memory: FreeAmount { free: to_mib(memory.0), total: to_mib(memory.1) },
                ..ZoneResources::default()
            };
            for (pages, size) in zone.pages.iter_mut().zip(PAGE_SIZES) {
                let (now, all) = seen.free_and_total_pages(size);
                *pages = FreeAmount { free: to_mib(now), total: to_mib(all) };
            }
            match free.zones.get_mut(at) {
                Some(known) => {
                    *known = zone;
                    free.zone_count += 1;
                }
                None => free.other_zones_sum = free.other_zones_sum.saturating_add(&zone),
            }
        }
        free
    }

    pub(crate) fn zones(&self) -> &[ZoneResources] {
        self.zones.get(..usize::from(self.zone_count)).unwrap_or(&self.zones)
    }

    /// Returns the zone that the kubelet would select if one zone is sufficient: the first zone that has all
    /// requested resources (`bitmask.IsNarrowerThan`).
    pub(crate) fn first_fitting_zone(&self, request: &ZoneRequest) -> Option<&ZoneResources> {
        self.zones().iter().find(|zone| zone.fits(request))
    }

    /// Returns the sum of the resources of all zones.
    pub(crate) fn sum(&self) -> ZoneResources {
        self.zones().iter().fold(self.other_zones_sum, |sum, zone| sum.saturating_add(zone))
    }

    /// Returns true if all requested resources must come from one zone, according to the policy and the scope of the
    /// Topology Manager.
    pub(crate) const fn requires_single_zone(&self, request: &ZoneRequest) -> bool {
        self.is_single_numa_node && (self.has_pod_scope || request.is_single_container)
    }

    /// Returns the request without the resources for which the kubelet does not account by zone: huge pages are 0 if
    /// the Memory Manager has the policy `None`.
    pub(crate) const fn zone_accounted_request(&self, request: &ZoneRequest) -> ZoneRequest {
        let pages = if self.has_static_memory_policy { request.pages } else { [0; 2] };
        ZoneRequest { pages, ..*request }
    }
}

impl ZoneResources {
    fn saturating_add(&self, other: &Self) -> Self {
        let add = |sum: FreeAmount<u32>, one: FreeAmount<u32>| FreeAmount {
            free: sum.free.saturating_add(one.free),
            total: sum.total.saturating_add(one.total),
        };
        let [small, large] = self.pages;
        Self {
            cpus: add(self.cpus, other.cpus),
            pages: [add(small, other.pages[0]), add(large, other.pages[1])],
            memory: add(self.memory, other.memory),
        }
    }

    pub(crate) fn fits(&self, request: &ZoneRequest) -> bool {
        let pages =
            self.pages.iter().zip(request.pages).all(|(pages, wanted)| wanted <= pages.free);
        request.cpus <= self.cpus.free && pages
    }
}

/// A pod's request for resources that the kubelet allocates by zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ZoneRequest {
    /// Number of exclusive CPUs; 0 if the pod runs on shared CPUs.
    pub(crate) cpus: u32,
    /// Huge pages in MiB, rounded down, for each size in [`PAGE_SIZES`].
    pub(crate) pages: [u32; 2],
    /// True if the pod requests exclusive CPUs.
    pub(crate) is_pinned: bool,
    /// True if at most one container requests exclusive CPUs or huge pages.
    pub(crate) is_single_container: bool,
}

impl ZoneRequest {
    /// Returns the sum of the requests of the pod's containers, without sidecars. Kubelets without sidecar support let
    /// the other containers reuse a sidecar's resources, and the sum must not exceed the resources that the pod really
    /// needs.
    pub(crate) fn from_pod(pod: &Pod) -> Self {
        let is_guaranteed = pod.is_guaranteed();
        let (mut request, mut containers, mut bytes) = (Self::default(), 0_usize, [0_u64; 2]);
        for container in &pod.containers {
            let container_cpus = if is_guaranteed { exclusive_cpus(container) } else { 0 };
            request.cpus = request.cpus.saturating_add(container_cpus);
            let pages = PAGE_SIZES.map(|size| container.requests.hugepages.get(&size).copied());
            containers +=
                usize::from(container_cpus > 0 || pages.iter().flatten().any(|pages| *pages > 0));
            for (sum, pages) in bytes.iter_mut().zip(pages) {
                *sum = sum.saturating_add(pages.unwrap_or_default());
            }
        }
        request.pages = bytes.map(to_mib);
        request.is_pinned = request.cpus > 0;
        request.is_single_container = containers <= 1;
        request
    }
}

/// Returns the number of exclusive CPUs that the static policy allocates to a container of a Guaranteed pod: the
/// requested CPUs if they are an integer, otherwise 0 (`guaranteedCPUs`).
fn exclusive_cpus(container: &Container) -> u32 {
    let Resources { cpu_millis, .. } = container.requests;
    if cpu_millis.is_multiple_of(1000) { saturating_u32(cpu_millis / 1000) } else { 0 }
}

fn to_mib(bytes: u64) -> u32 {
    saturating_u32(bytes >> 20)
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
