//! A host with the properties that its kubelet considers. The host is validated once, and stored in an order that is
//! fast to iterate.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{CpuSet, PageSize};

use super::cpu_bits::{CpuBits, MAX_CPUS};
use super::kubelet::{CpuPolicy, Kubelet, MemoryPolicy, TopologyPolicy, VersionFeatures};
use super::zones::{MAX_HINT_ZONES, ZoneMask};
use crate::pod::Resources;

/// Number of kinds of memory that are counted for each zone: memory without huge pages, and up to four sizes of huge
/// pages (arm64 has four).
pub(super) const MEMORY_KIND_COUNT: usize = 5;

/// Bytes by kind of memory: first memory without huge pages, then huge pages in the order of
/// [`KubeletHost::page_sizes`].
pub(super) type MemoryAmounts = [u64; MEMORY_KIND_COUNT];

/// Description of a host, which [`KubeletHost::new`] validates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSpec {
    /// NUMA zones of the host, in any order.
    pub zones: Vec<ZoneSpec>,
    /// Resources of the host's device plugins.
    pub devices: Vec<DevicePool>,
    /// `status.allocatable` of the Node.
    pub allocatable: Resources,
    /// Maximum number of pods (`status.allocatable["pods"]` of the Node).
    pub max_pods: u64,
}

/// A NUMA zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneSpec {
    /// The kernel's number of the zone.
    pub id: u32,
    /// Physical cores of the zone; empty for a zone that has only memory.
    pub cores: Vec<CoreSpec>,
    /// Total memory of the zone in bytes, including huge pages.
    pub memory: u64,
    /// Bytes in the zone's pools of huge pages, by page size. A pool without pages has the value 0.
    pub hugepages: BTreeMap<PageSize, u64>,
    /// Distances from this zone to all zones, in the order of `HostSpec::zones`; empty if the distances are unknown.
    pub distances: Vec<u64>,
}

/// A physical core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreSpec {
    /// Numbers of the CPUs (threads) of the core.
    pub cpus: Vec<u32>,
    /// Number of the package (socket) that contains the core.
    pub socket: u32,
    /// Number of the last-level cache that the core uses; `None` if it is unknown.
    pub cache: Option<u32>,
}

/// The devices of one resource. Each device is in one zone or in no zone. Devices of the same zone are interchangeable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePool {
    /// Name of the resource.
    pub name: String,
    /// Number of healthy devices by the zone's number.
    pub zones: BTreeMap<u32, u32>,
    /// Number of healthy devices without a zone.
    pub count_without_zone: u32,
}

/// Reason why no kubelet can run with this host and configuration, or why this crate does not support them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Two zones have this number.
    #[error("zone {0} is listed twice")]
    DuplicateZone(u32),
    /// The zone has this number, which is too large for the kubelet's 64-bit masks (bitmask.go).
    #[error("zone {0}: the kubelet supports only zone numbers up to 63")]
    ZoneNumberTooLarge(u32),
    /// The host has more zones than the kubelet permits for topology hints, or than this crate supports.
    #[error(
        "the host has {zones} zones: the kubelet aligns resources on up to {limit} zones, Berth supports up to \
         {MAX_HINT_ZONES}"
    )]
    TooManyZones {
        /// Number of the host's zones.
        zones: usize,
        /// Maximum number of zones that the kubelet permits (option `max-allowable-numa-nodes`).
        limit: u32,
    },
    /// The CPU with this number is listed more than once.
    #[error("CPU {0} is in more than one core")]
    DuplicateCpu(u32),
    /// A core has no CPUs, or too many CPUs.
    #[error("zone {zone}: a core has {cpus} CPUs; from 1 to 64 are supported")]
    InvalidCoreSize {
        /// Number of the core's zone.
        zone: u32,
        /// Number of the core's CPUs.
        cpus: usize,
    },
    /// The host has this number of CPUs, which is 0 or more than this crate supports.
    #[error("the host has {0} CPUs: from 1 to {MAX_CPUS} are supported")]
    InvalidCpuCount(usize),
    /// The host has this number of huge page sizes, which is more than any hardware supports.
    #[error("the host has {0} sizes of huge pages: at most {most} are supported", most = MEMORY_KIND_COUNT - 1)]
    TooManyPageSizes(usize),
    /// The CPU with this number is reserved, but is in no zone. A kubelet does not start with this configuration.
    #[error("reservedSystemCPUs: CPU {0} is in no zone")]
    UnknownReservedCpu(u32),
    /// The CPU Manager has the policy `static`, but no CPUs are reserved. A kubelet does not start with this
    /// configuration.
    #[error("reservedSystemCPUs: the policy static requires at least one reserved CPU")]
    NoReservedCpus,
    /// More memory is reserved in a zone than the zone has.
    #[error("reservedMemory: zone {zone} has less {kind} than the field reserves")]
    ReservedMemoryTooLarge {
        /// Number of the zone.
        zone: u32,
        /// Kind of memory: `memory`, or a huge page resource such as `hugepages-1Gi`.
        kind: String,
    },
    /// Memory is reserved in a zone with this number, but the zone does not exist. A kubelet does not start with this
    /// configuration.
    #[error("reservedMemory: zone {0} does not exist")]
    UnknownReservedZone(u32),
    /// Devices of a resource are in a zone that does not exist.
    #[error("{name}: some devices are in zone {zone}, which does not exist")]
    UnknownDeviceZone {
        /// Name of the devices' resource.
        name: String,
        /// Number of the zone.
        zone: u32,
    },
    /// Two device pools have this resource name.
    #[error("device resource {0} is listed twice")]
    DuplicatePool(String),
    /// This version of the kubelet does not support a setting, or refuses it in combination with another setting.
    #[error("{setting}: {message}")]
    UnsupportedSetting {
        /// Name of the setting.
        setting: &'static str,
        /// Description of the problem.
        message: String,
    },
}

/// A validated host with its kubelet's configuration. It is immutable, so identical hosts may share one value.
#[derive(Debug, PartialEq, Eq)]
pub struct KubeletHost {
    pub(super) kubelet: Kubelet,
    pub(super) features: VersionFeatures,
    /// Zones, sorted by number. All other fields identify a zone by its index in this vector.
    pub(super) zones: Vec<HostZone>,
    /// Numbers of the CPUs, ordered by zone, then by core, then by number. The indexes in every [`CpuBits`] refer to
    /// this list.
    pub(super) cpus: Vec<u32>,
    pub(super) cores: Vec<HostCore>,
    pub(super) sockets: Vec<CpuGroup>,
    /// Last-level caches with their CPUs; empty unless the kubelet aligns CPUs to caches
    /// (`prefer-align-cpus-by-uncorecache`).
    pub(super) caches: Vec<CpuGroup>,
    pub(super) all_cpus: CpuBits,
    pub(super) reserved_cpus: CpuBits,
    /// All CPUs of the cores that contain reserved CPUs.
    pub(super) reserved_core_cpus: CpuBits,
    /// Zones that have CPUs.
    pub(super) cpu_zones: ZoneMask,
    /// Sizes of the huge pages that the host has, in ascending order.
    pub(super) page_sizes: Vec<PageSize>,
    pub(super) device_pools: Vec<HostDevicePool>,
    pub(super) allocatable: Resources,
    pub(super) max_pods: u64,
    /// Average number of CPUs of a core, computed as in `topology.go`. It may match no core if cores differ.
    pub(super) cpus_per_core: u32,
    /// Average number of CPUs of a socket, computed as in `topology.go`.
    pub(super) cpus_per_socket: u32,
    /// Average number of CPUs of a last-level cache, computed as in `topology.go`.
    pub(super) cpus_per_cache: u32,
}

/// A NUMA zone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostZone {
    pub(super) id: u32,
    /// The indexes of the zone's CPUs: the first, and one more than the last.
    pub(super) cpus: (u16, u16),
    /// The indexes of the zone's cores: the first, and one more than the last.
    pub(super) cores: (u16, u16),
    /// Indexes of the sockets that contain the zone's cores.
    pub(super) sockets: Vec<u16>,
    /// Bytes of each kind of memory that the Memory Manager may allocate.
    pub(super) allocatable: MemoryAmounts,
    pub(super) distances: Vec<u64>,
}

/// A physical core. The CPUs of a core have contiguous indexes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostCore {
    pub(super) cpus: (u16, u16),
    /// The kubelet's number of the core, which is the lowest of the numbers of the core's CPUs (`getUniqueCoreID`).
    pub(super) id: u32,
    pub(super) zone: u8,
    pub(super) socket: u16,
    pub(super) cache: u16,
}

/// The CPUs of a socket or of a last-level cache. Their indexes need not be contiguous.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CpuGroup {
    pub(super) id: u32,
    pub(super) cpus: CpuBits,
    pub(super) size: u32,
    /// Indexes of the cores in the socket or cache, sorted by core number.
    pub(super) cores: Vec<u16>,
    pub(super) zones: ZoneMask,
}

/// The devices of one resource of a device plugin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostDevicePool {
    pub(super) name: String,
    /// Number of devices in each zone; the last element is the number of devices without a zone.
    pub(super) counts: Vec<u32>,
    pub(super) total: u64,
    /// Zones with at least one device.
    pub(super) zones: ZoneMask,
}

impl KubeletHost {
    /// Validates a host and a kubelet's configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if no kubelet would start with this host and configuration, or if this crate does not support
    /// them.
    pub fn new(spec: &HostSpec, kubelet: &Kubelet) -> Result<Self, HostError> {
        let features = VersionFeatures::for_version(kubelet.version);
        check_settings(kubelet, features)?;
        let order = sorted_zones(spec, kubelet)?;
        let pages: BTreeSet<PageSize> =
            order.iter().flat_map(|zone| zone.hugepages.keys().copied()).collect();
        if pages.len() >= MEMORY_KIND_COUNT {
            return Err(HostError::TooManyPageSizes(pages.len()));
        }
        let mut host = Self {
            kubelet: kubelet.clone(),
            features,
            zones: Vec::with_capacity(order.len()),
            cpus: Vec::new(),
            cores: Vec::new(),
            sockets: Vec::new(),
            caches: Vec::new(),
            all_cpus: CpuBits::default(),
            reserved_cpus: CpuBits::default(),
            reserved_core_cpus: CpuBits::default(),
            cpu_zones: 0,
            page_sizes: pages.into_iter().collect(),
            device_pools: Vec::new(),
            allocatable: spec.allocatable.clone(),
            max_pods: spec.max_pods,
            cpus_per_core: 0,
            cpus_per_socket: 0,
            cpus_per_cache: 0,
        };
        host.build_topology(&order)?;
        host.reserve_cpus()?;
        host.reserve_memory(&order)?;
        host.add_pools(&spec.devices)?;
        Ok(host)
    }

    /// Returns the kubelet's configuration.
    #[must_use]
    pub const fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    /// Returns the kernel's number of the zone with this index.
    pub(super) fn zone_id(&self, index: usize) -> u32 {
        self.zones.get(index).map_or(u32::MAX, |zone| zone.id)
    }

    /// Returns the number of sockets that contain cores of these zones (`SocketsInNUMANodes`).
    pub(super) fn sockets_in(&self, mask: ZoneMask) -> usize {
        self.sockets.iter().filter(|socket| socket.zones & mask != 0).count()
    }

    pub(super) fn all_zones(&self) -> ZoneMask {
        super::zones::mask_of_first_zones(self.zones.len())
    }

    /// Returns the kernel's numbers of the CPUs with these indexes.
    pub(super) fn cpu_numbers(&self, bits: &CpuBits) -> CpuSet {
        bits.iter().filter_map(|index| self.cpus.get(usize::from(index)).copied()).collect()
    }

    /// Returns the indexes of the CPUs with these kernel numbers. Numbers that no CPU has are ignored.
    pub(super) fn cpu_bits(&self, numbers: &CpuSet) -> CpuBits {
        let mut bits = CpuBits::default();
        for (index, number) in (0u16..).zip(&self.cpus) {
            if numbers.contains(*number) {
                bits.insert(index);
            }
        }
        bits
    }

    fn build_topology(&mut self, order: &[&ZoneSpec]) -> Result<(), HostError> {
        let mut seen = BTreeSet::new();
        let total: usize = order.iter().flat_map(|zone| &zone.cores).map(|c| c.cpus.len()).sum();
        if total == 0 || total > MAX_CPUS {
            return Err(HostError::InvalidCpuCount(total));
        }
        let socket_ids: BTreeSet<u32> =
            order.iter().flat_map(|zone| &zone.cores).map(|core| core.socket).collect();
        // If the cache of a core is unknown, the kubelet uses the number of the core's socket instead
        // (getUncoreCacheID).
        let cache_of = |core: &CoreSpec| core.cache.unwrap_or(core.socket);
        let cache_ids: BTreeSet<u32> =
            order.iter().flat_map(|zone| &zone.cores).map(cache_of).collect();
        let group = |&id: &u32| CpuGroup {
            id,
            cpus: CpuBits::default(),
            size: 0,
            cores: Vec::new(),
            zones: 0,
        };
        self.sockets = socket_ids.iter().map(group).collect();
        if self.kubelet.cpu_options.prefer_uncore_cache {
            self.caches = cache_ids.iter().map(group).collect();
        }
        for (index, zone) in order.iter().enumerate() {
            let start = (to_u16(self.cpus.len()), to_u16(self.cores.len()));
            let mut cores: Vec<(Vec<u32>, u32, u32)> = Vec::with_capacity(zone.cores.len());
            for core in &zone.cores {
                let mut cpus = core.cpus.clone();
                cpus.sort_unstable();
                if cpus.is_empty() || cpus.len() > 64 {
                    return Err(HostError::InvalidCoreSize { zone: zone.id, cpus: cpus.len() });
                }
                if let Some(&duplicate) = cpus.iter().find(|&&cpu| !seen.insert(cpu)) {
                    return Err(HostError::DuplicateCpu(duplicate));
                }
                cores.push((cpus, core.socket, cache_of(core)));
            }
            cores.sort();
            let mut sockets = BTreeSet::new();
            for (cpus, socket, cache) in cores {
                let range = (to_u16(self.cpus.len()), to_u16(self.cpus.len() + cpus.len()));
                let id = cpus.first().copied().unwrap_or_default();
                let socket = socket_ids.range(..socket).count();
                let cache = cache_ids.range(..cache).count();
                let bits = CpuBits::from_range(range.0, range.1);
                let groups = [self.sockets.get_mut(socket), self.caches.get_mut(cache)];
                for group in groups.into_iter().flatten() {
                    group.cpus = group.cpus.union(&bits);
                    group.size += u32::from(range.1 - range.0);
                    group.cores.push(to_u16(self.cores.len()));
                    group.zones |= 1 << index;
                }
                sockets.insert(to_u16(socket));
                self.cpus.extend(cpus);
                let zone = u8::try_from(index).unwrap_or(u8::MAX);
                let (socket, cache) = (to_u16(socket), to_u16(cache));
                self.cores.push(HostCore { cpus: range, id, zone, socket, cache });
            }
            let end = (to_u16(self.cpus.len()), to_u16(self.cores.len()));
            if end.0 > start.0 {
                self.cpu_zones |= 1 << index;
            }
            self.zones.push(HostZone {
                id: zone.id,
                cpus: (start.0, end.0),
                cores: (start.1, end.1),
                sockets: sockets.into_iter().collect(),
                allocatable: MemoryAmounts::default(),
                distances: zone.distances.clone(),
            });
        }
        for group in self.sockets.iter_mut().chain(&mut self.caches) {
            group.cores.sort_by_key(|&core| self.cores.get(usize::from(core)).map(|core| core.id));
        }
        self.all_cpus = CpuBits::from_range(0, to_u16(self.cpus.len()));
        let average =
            |count: usize| u32::try_from(total.checked_div(count).unwrap_or(0)).unwrap_or(0);
        self.cpus_per_core = average(self.cores.len());
        self.cpus_per_socket = average(socket_ids.len());
        self.cpus_per_cache = average(cache_ids.len());
        Ok(())
    }

    fn reserve_cpus(&mut self) -> Result<(), HostError> {
        let reserved = &self.kubelet.reserved_cpus;
        self.reserved_cpus = self.cpu_bits(reserved);
        if self.kubelet.cpu_policy == CpuPolicy::None {
            return Ok(());
        }
        if reserved.is_empty() {
            return Err(HostError::NoReservedCpus);
        }
        let known: BTreeSet<u32> = self.cpus.iter().copied().collect();
        if let Some(absent) = reserved.iter().find(|cpu| !known.contains(cpu)) {
            return Err(HostError::UnknownReservedCpu(absent));
        }
        for core in &self.cores {
            if self.reserved_cpus.count_range(core.cpus.0, core.cpus.1) > 0 {
                self.reserved_core_cpus =
                    self.reserved_core_cpus.union(&CpuBits::from_range(core.cpus.0, core.cpus.1));
            }
        }
        Ok(())
    }

    fn add_pools(&mut self, pools: &[DevicePool]) -> Result<(), HostError> {
        for pool in pools {
            let mut counts = vec![0; self.zones.len() + 1];
            for (&zone, &count) in &pool.zones {
                let index = self.zones.iter().position(|known| known.id == zone);
                let unknown_zone =
                    || HostError::UnknownDeviceZone { name: pool.name.clone(), zone };
                counts[index.ok_or_else(unknown_zone)?] = count;
            }
            let zones = (0..self.zones.len()).filter(|&zone| counts[zone] > 0);
            let zones = zones.fold(0, |mask, zone| mask | 1 << zone);
            counts[self.zones.len()] = pool.count_without_zone;
            let total = counts.iter().map(|&count| u64::from(count)).sum();
            self.device_pools.push(HostDevicePool {
                name: pool.name.clone(),
                counts,
                total,
                zones,
            });
        }
        self.device_pools.sort_by(|a, b| a.name.cmp(&b.name));
        match self.device_pools.windows(2).find(|pair| pair[0].name == pair[1].name) {
            Some(pair) => Err(HostError::DuplicatePool(pair[0].name.clone())),
            None => Ok(()),
        }
    }
}

/// Converts an index of a CPU, core or socket to 16 bits, which are sufficient because a host has at most [`MAX_CPUS`]
/// CPUs.
fn to_u16(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

fn sorted_zones<'a>(spec: &'a HostSpec, kubelet: &Kubelet) -> Result<Vec<&'a ZoneSpec>, HostError> {
    let mut order: Vec<&ZoneSpec> = spec.zones.iter().collect();
    order.sort_by_key(|zone| zone.id);
    if let Some(pair) = order.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(HostError::DuplicateZone(pair[0].id));
    }
    if let Some(zone) = order.iter().find(|zone| zone.id > 63) {
        return Err(HostError::ZoneNumberTooLarge(zone.id));
    }
    let aligns = kubelet.topology_policy != TopologyPolicy::None;
    let limit = kubelet.topology_options.max_allowable_zones;
    let allowed = usize::try_from(limit).unwrap_or(usize::MAX).min(MAX_HINT_ZONES);
    if order.len() > allowed && (aligns || kubelet.memory_policy == MemoryPolicy::Static) {
        return Err(HostError::TooManyZones { zones: order.len(), limit });
    }
    Ok(order)
}

fn check_settings(kubelet: &Kubelet, features: VersionFeatures) -> Result<(), HostError> {
    let options = kubelet.cpu_options;
    let unknown = |setting| {
        let message = format!("kubelet {} does not support this setting", kubelet.version);
        Err(HostError::UnsupportedSetting { setting, message })
    };
    let conflict = |setting, other: &str| {
        Err(HostError::UnsupportedSetting {
            setting,
            message: format!("the kubelet refuses this setting in combination with {other}"),
        })
    };
    if kubelet.memory_policy == MemoryPolicy::Static && !features.has_memory_manager {
        return unknown("memoryManagerPolicy");
    }
    if options.is_any_set() && !features.has_cpu_options {
        return unknown("cpuManagerPolicyOptions");
    }
    if kubelet.topology_options.prefers_closest_zones && !features.has_topology_options {
        return unknown("topologyManagerPolicyOptions");
    }
    if options.prefer_uncore_cache && options.distribute_across_numa {
        return conflict("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa");
    }
    if options.align_by_socket && kubelet.topology_policy == TopologyPolicy::SingleNumaNode {
        return conflict("align-by-socket", "single-numa-node");
    }
    Ok(())
}
