//! Converts allocated resources, which are stored as indexes, to the CPU numbers, zone numbers and resource names of
//! the host, for reports, messages and tests.

use berth_api::CpuSet;

use super::host::KubeletHost;
use super::kubelet::MemoryPolicy;
use super::memory::{Block, MemoryKind};
use super::state::{Admission, HostState};
use super::zones::{ZoneMask, bit_indexes};

/// Resources that are allocated to one container, with the host's numbers of CPUs and zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Numbers of the zones that the Topology Manager selected for the container; `None` if it selected no specific
    /// zones.
    pub affinity: Option<Vec<u32>>,
    /// True if the Topology Manager's merged hint is preferred: each resource of the container is allocated from as few
    /// zones as would be sufficient on an empty host.
    pub is_preferred: bool,
    /// Numbers of the exclusive CPUs; empty if the container runs on the shared CPUs.
    pub cpus: CpuSet,
    /// Memory blocks of the container.
    pub memory: Vec<MemoryBlock>,
    /// Allocated devices: name of the resource, number of the zone (`None` for devices without a zone), and number of
    /// devices.
    pub devices: Vec<(String, Option<u32>, u32)>,
}

/// Memory of one kind that is allocated to a container on a set of zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    pub kind: MemoryKind,
    /// Size in bytes. For an init container, bytes that a later container has reused are not included.
    pub bytes: u64,
    /// Numbers of the zones on which the memory is allocated.
    pub zones: Vec<u32>,
}

/// The Memory Manager's data about a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneMemoryView {
    /// Number of the zone.
    pub zone: u32,
    /// Number of memory blocks that are allocated on the zone.
    pub assignments: u32,
    /// Numbers of the zones in the zone's group, including the zone itself. Zones form a group if an allocation needs
    /// the memory of several zones.
    pub group: Vec<u32>,
    /// Free bytes of each kind of memory that the host has.
    pub free: Vec<(MemoryKind, u64)>,
}

impl Admission {
    /// Returns the resources of each container, init containers first.
    #[must_use]
    pub fn placements(&self, host: &KubeletHost) -> Vec<Placement> {
        let grants = self.grants.iter();
        let placements = grants.map(|grant| Placement {
            affinity: grant.affinity.zones.map(|mask| host.zone_ids(mask)),
            is_preferred: grant.affinity.is_preferred,
            cpus: host.cpu_numbers(&grant.cpus.to_cpu_bits()),
            memory: grant.blocks.iter().map(|block| host.memory_block(block)).collect(),
            devices: grant
                .devices
                .iter()
                .map(|device| {
                    let pool = host.device_pools.get(usize::from(device.pool));
                    let zone = host.zones.get(usize::from(device.zone));
                    let name = pool.map(|pool| pool.name.clone()).unwrap_or_default();
                    (name, zone.map(|zone| zone.id), device.count)
                })
                .collect(),
        });
        placements.collect()
    }

    /// Returns the numbers of all exclusive CPUs of the pod's containers.
    #[must_use]
    pub fn cpus(&self, host: &KubeletHost) -> CpuSet {
        let cpus = self.grants.iter().fold(super::cpu_bits::CpuBits::default(), |all, grant| {
            all.union(&grant.cpus.to_cpu_bits())
        });
        host.cpu_numbers(&cpus)
    }
}

impl KubeletHost {
    pub(super) fn zone_ids(&self, mask: ZoneMask) -> Vec<u32> {
        bit_indexes(mask).map(|index| self.zone_id(index)).collect()
    }

    fn memory_block(&self, block: &Block) -> MemoryBlock {
        MemoryBlock {
            kind: self.memory_kind(usize::from(block.kind)),
            bytes: block.size,
            zones: self.zone_ids(block.zones),
        }
    }

    fn memory_kind(&self, kind: usize) -> MemoryKind {
        let page = kind.checked_sub(1).and_then(|page| self.page_sizes.get(page));
        page.map_or(MemoryKind::Memory, |&page| MemoryKind::HugePages(page))
    }
}

impl HostState {
    /// Returns the CPUs for containers without exclusive CPUs: `defaultCpuSet` of the CPU Manager's state.
    #[must_use]
    pub fn shared_cpus(&self) -> CpuSet {
        self.host().cpu_numbers(&self.shared_cpus)
    }

    /// Returns the CPUs that the kubelet can currently allocate exclusively.
    #[must_use]
    pub fn free_cpus(&self) -> CpuSet {
        self.host().cpu_numbers(&self.shared_cpus.difference(&self.host().reserved_cpus))
    }

    /// Returns the Memory Manager's data about each zone; empty if the Memory Manager is off.
    #[must_use]
    pub fn memory_by_zone(&self) -> Vec<ZoneMemoryView> {
        let host = self.host();
        if host.kubelet.memory_policy == MemoryPolicy::None {
            return Vec::new();
        }
        let zones = self.zones();
        let zones_with_memory = host.zones.iter().zip(&zones);
        let views = zones_with_memory.map(|(known, zone)| ZoneMemoryView {
            zone: known.id,
            assignments: zone.assignments,
            group: host.zone_ids(zone.group),
            free: (0..=host.page_sizes.len())
                .map(|kind| (host.memory_kind(kind), zone.free[kind]))
                .collect(),
        });
        views.collect()
    }
}
