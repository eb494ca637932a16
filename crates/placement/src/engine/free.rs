//! What of a host is free, in a form that many hosts can be compared by quickly.
//!
//! It says what certainly does not fit. Whether the rest fits is for [`berth_kubelet_admission`] to say.

use berth_api::PageSize;

use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubelet_admission::{CpuPolicy, MemoryPolicy, State, TopologyPolicy, TopologyScope};

/// Zones that are looked at one by one; the kubelet aligns on at most eight, too.
pub(crate) const ZONES: usize = 8;
/// Sizes of huge pages that are looked at zone by zone: the two that VMs have.
pub(crate) const PAGES: [PageSize; 2] = [PageSize::MIB_2, PageSize::GIB_1];

/// What a zone has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    /// CPUs that can be pinned now, and in all.
    pub(crate) cpus: Of<u32>,
    /// Huge pages by [`PAGES`], in MiB.
    pub(crate) pages: [Of<u32>; 2],
    /// Plain memory in MiB, where the kubelet keeps account of it.
    pub(crate) memory: Of<u32>,
}

/// Free, of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Of<T> {
    pub(crate) free: T,
    pub(crate) all: T,
}

/// What a host has, laid out so that hosts with one or two zones are looked at in two neighbouring cache lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Free {
    pub(crate) zone_count: u8,
    /// Whether CPUs can be pinned at all.
    pub(crate) pins: bool,
    /// Whether what a container has must be of one zone.
    pub(crate) one_zone: bool,
    /// Whether that goes for all containers of a pod together.
    whole_pods: bool,
    /// Whether the kubelet keeps account of huge pages by zone. Where it does not, they may come from any.
    keeps_pages: bool,
    /// By place in the kubelet's order; beyond `zone_count` nothing.
    pub(crate) zones: [Zone; ZONES],
    /// Zones beyond those, together: the kubelet aligns on none where there are more.
    rest: Zone,
}

impl Free {
    /// What is free in this state.
    pub(crate) fn of(state: &State) -> Self {
        let kubelet = state.host().kubelet();
        let mut free = Self {
            pins: kubelet.cpu_policy == CpuPolicy::Static,
            one_zone: kubelet.topology_policy == TopologyPolicy::SingleNumaNode,
            whole_pods: kubelet.topology_scope == TopologyScope::Pod,
            keeps_pages: kubelet.memory_policy == MemoryPolicy::Static,
            ..Self::default()
        };
        for (at, seen) in state.free_by_zone().enumerate() {
            let memory = seen.memory();
            let mut zone = Zone {
                cpus: Of { free: seen.cpus, all: seen.all_cpus },
                memory: Of { free: mib(memory.0), all: mib(memory.1) },
                ..Zone::default()
            };
            for (pages, size) in zone.pages.iter_mut().zip(PAGES) {
                let (now, all) = seen.pages(size);
                *pages = Of { free: mib(now), all: mib(all) };
            }
            match free.zones.get_mut(at) {
                Some(known) => {
                    *known = zone;
                    free.zone_count += 1;
                }
                None => free.rest = free.rest.and(&zone),
            }
        }
        free
    }

    pub(crate) fn zones(&self) -> &[Zone] {
        self.zones.get(..usize::from(self.zone_count)).unwrap_or(&self.zones)
    }

    /// The zone that the kubelet would take, if one is enough: the first that has all (`bitmask.IsNarrowerThan`).
    pub(crate) fn first_zone(&self, wants: &Wants) -> Option<&Zone> {
        self.zones().iter().find(|zone| zone.has(wants))
    }

    /// What all zones have together.
    pub(crate) fn sum(&self) -> Zone {
        self.zones().iter().fold(self.rest, |sum, zone| sum.and(zone))
    }

    /// Whether all that is wanted must be of one zone.
    pub(crate) const fn wants_one_zone(&self, wants: &Wants) -> bool {
        self.one_zone && (self.whole_pods || wants.is_of_one)
    }

    /// What of it zones matter to.
    pub(crate) const fn by_zone(&self, wants: &Wants) -> Wants {
        let pages = if self.keeps_pages { wants.pages } else { [0; 2] };
        Wants { pages, ..*wants }
    }
}

impl Zone {
    fn and(&self, other: &Self) -> Self {
        let add = |sum: Of<u32>, one: Of<u32>| Of {
            free: sum.free.saturating_add(one.free),
            all: sum.all.saturating_add(one.all),
        };
        let [small, large] = self.pages;
        Self {
            cpus: add(self.cpus, other.cpus),
            pages: [add(small, other.pages[0]), add(large, other.pages[1])],
            memory: add(self.memory, other.memory),
        }
    }

    pub(crate) fn has(&self, wants: &Wants) -> bool {
        let pages = self.pages.iter().zip(wants.pages).all(|(pages, wanted)| wanted <= pages.free);
        wants.cpus <= self.cpus.free && pages
    }
}

/// What a pod wants of zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wants {
    /// CPUs of its own; 0 if it shares them.
    pub(crate) cpus: u32,
    /// Huge pages by [`PAGES`], in whole MiB.
    pub(crate) pages: [u32; 2],
    /// Whether anything of it is bound to zones.
    pub(crate) is_pinned: bool,
    /// Whether it is all for one container.
    pub(crate) is_of_one: bool,
}

impl Wants {
    /// What the containers want together. Sidecars are left out: kubelets that do not know them have them share
    /// with the others, and this is about what certainly does not fit.
    pub(crate) fn of(pod: &Pod) -> Self {
        let is_guaranteed = pod.is_guaranteed();
        let (mut wants, mut containers, mut bytes) = (Self::default(), 0_usize, [0_u64; 2]);
        for container in &pod.containers {
            let own = if is_guaranteed { own_cpus(container) } else { 0 };
            wants.cpus = wants.cpus.saturating_add(own);
            let pages = PAGES.map(|size| container.requests.hugepages.get(&size).copied());
            containers += usize::from(own > 0 || pages.iter().flatten().any(|pages| *pages > 0));
            for (sum, pages) in bytes.iter_mut().zip(pages) {
                *sum = sum.saturating_add(pages.unwrap_or_default());
            }
        }
        wants.pages = bytes.map(mib);
        wants.is_pinned = wants.cpus > 0;
        wants.is_of_one = containers <= 1;
        wants
    }
}

/// CPUs that the static policy gives to a container of a Guaranteed pod: whole ones (`guaranteedCPUs`).
fn own_cpus(container: &Container) -> u32 {
    let Resources { cpu_millis, .. } = container.requests;
    if cpu_millis.is_multiple_of(1000) { clamp(cpu_millis / 1000) } else { 0 }
}

fn mib(bytes: u64) -> u32 {
    clamp(bytes >> 20)
}

fn clamp(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
