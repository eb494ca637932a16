//! What is handed out, in the numbers of the host: for reports, for people and for tests.

use std::fmt;

use berth_api::{CpuSet, PageSize};

use super::host::Host;
use super::memory::Block;
use super::state::{Admission, State};
use super::zones::{ZoneMask, places};

/// A kind of memory that the Memory Manager keeps account of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Plain memory.
    Memory,
    /// Huge pages of a size.
    HugePages(PageSize),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::HugePages(size) => write!(f, "hugepages-{size}"),
        }
    }
}

/// What one container has been given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The Topology Manager's zones for it; `None` if any would do.
    pub affinity: Option<Vec<u32>>,
    /// Whether these are as few as possible for all it asks for.
    pub preferred: bool,
    /// CPUs of its own; none if it runs on the shared ones.
    pub cpus: CpuSet,
    /// Memory with the zones it is of.
    pub memory: Vec<MemoryBlock>,
    /// Devices: resource, zone (`None`: near none) and number.
    pub devices: Vec<(String, Option<u32>, u32)>,
}

/// Memory of one kind from a group of zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// Plain or huge pages.
    pub kind: MemoryKind,
    /// Bytes; of an init container, what no later container has taken over.
    pub bytes: u64,
    /// The whole group.
    pub zones: Vec<u32>,
}

/// What the Memory Manager keeps of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// The zone.
    pub zone: u32,
    /// How many blocks are on it.
    pub assignments: u32,
    /// Its group, itself included.
    pub group: Vec<u32>,
    /// Free bytes of each kind the host has.
    pub free: Vec<(MemoryKind, u64)>,
}

impl Admission {
    /// By container, init containers first.
    #[must_use]
    pub fn placements(&self, host: &Host) -> Vec<Placement> {
        let grants = self.grants.iter();
        let placements = grants.map(|grant| Placement {
            affinity: grant.affinity.zones.map(|mask| host.zone_ids(mask)),
            preferred: grant.affinity.preferred,
            cpus: host.numbers(&grant.cpus.bits()),
            memory: grant.blocks.iter().map(|block| host.memory_block(block)).collect(),
            devices: grant
                .devices
                .iter()
                .map(|device| {
                    let pool = host.pools.get(usize::from(device.pool));
                    let zone = host.zones.get(usize::from(device.zone));
                    let name = pool.map(|pool| pool.name.clone()).unwrap_or_default();
                    (name, zone.map(|zone| zone.id), device.count)
                })
                .collect(),
        });
        placements.collect()
    }

    /// All CPUs that containers of the pod have for themselves.
    #[must_use]
    pub fn cpus(&self, host: &Host) -> CpuSet {
        let all = self
            .grants
            .iter()
            .fold(super::bits::CpuBits::default(), |all, grant| all.or(&grant.cpus.bits()));
        host.numbers(&all)
    }
}

impl Host {
    pub(super) fn zone_ids(&self, mask: ZoneMask) -> Vec<u32> {
        places(mask).map(|place| self.zone_id(place)).collect()
    }

    fn memory_block(&self, block: &Block) -> MemoryBlock {
        MemoryBlock {
            kind: self.memory_kind(usize::from(block.kind)),
            bytes: block.size,
            zones: self.zone_ids(block.zones),
        }
    }

    fn memory_kind(&self, kind: usize) -> MemoryKind {
        let page = kind.checked_sub(1).and_then(|page| self.pages.get(page));
        page.map_or(MemoryKind::Memory, |&page| MemoryKind::HugePages(page))
    }
}

impl State {
    /// CPUs that containers without CPUs of their own run on: `defaultCpuSet` of the CPU Manager's state.
    #[must_use]
    pub fn shared_cpus(&self) -> CpuSet {
        self.host().numbers(&self.shared)
    }

    /// CPUs that can be handed out.
    #[must_use]
    pub fn free_cpus(&self) -> CpuSet {
        self.host().numbers(&self.shared.without(&self.host().reserved))
    }

    /// The Memory Manager's account, by zone; empty if it is off.
    #[must_use]
    pub fn memory(&self) -> Vec<MemoryView> {
        let host = self.host();
        if host.kubelet.memory_policy == super::MemoryPolicy::None {
            return Vec::new();
        }
        let zones = self.zones();
        let known = host.zones.iter().zip(&zones);
        let views = known.map(|(known, zone)| MemoryView {
            zone: known.id,
            assignments: zone.assignments,
            group: host.zone_ids(zone.cells),
            free: (0..=host.pages.len())
                .map(|kind| (host.memory_kind(kind), zone.free[kind]))
                .collect(),
        });
        views.collect()
    }
}
