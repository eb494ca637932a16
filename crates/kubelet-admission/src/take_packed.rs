//! Selection of CPUs by the CPU Manager: `takeByTopologyNUMAPacked` of cpumanager/cpu_assignment.go.
//!
//! If enough CPUs are requested, the algorithm first takes whole sockets and zones. Then it takes whole uncore caches
//! if the option `prefer-align-cpus-by-uncorecache` is on, then whole cores, and then single CPUs. In each step, the
//! sockets, zones, caches or cores with the fewest free CPUs come first.

use super::cpu_bits::CpuBits;
use super::host::{CpuGroup, HostCore, KubeletHost};
use super::refusal::Reason;
use super::zones::bit_indexes;

/// State of the selection of CPUs for one container (`cpuAccumulator`): the CPUs that are still free, and the CPUs that
/// were taken.
pub(super) struct CpuAccumulator<'h> {
    pub(super) host: &'h KubeletHost,
    pub(super) free_cpus: CpuBits,
    pub(super) taken_cpus: CpuBits,
    /// Number of CPUs that must still be taken. It is negative if the kubelet has taken a socket or core with more CPUs
    /// than were needed, because the kubelet compared the free CPUs with the average size.
    pub(super) needed_cpus: i64,
}

/// Takes `requested` CPUs from the available CPUs.
pub(super) fn take_packed(
    host: &KubeletHost,
    available: &CpuBits,
    requested: i64,
    prefers_caches: bool,
) -> Result<CpuBits, Reason> {
    let mut accumulator = CpuAccumulator::new(host, available, requested);
    if accumulator.is_done() {
        return Ok(accumulator.taken_cpus);
    }
    accumulator.check_enough_cpus()?;
    // If there are at least as many sockets as zones, the kubelet assumes that a zone contains sockets, and otherwise
    // that a socket contains zones ("numaFirst").
    if are_zones_larger_than_sockets(host) {
        accumulator.take_zones();
        accumulator.take_sockets();
    } else {
        accumulator.take_sockets();
        accumulator.take_zones();
    }
    if prefers_caches && !accumulator.is_done() {
        accumulator.take_caches();
    }
    accumulator.take_cores();
    accumulator.take_threads();
    if accumulator.is_done() {
        return Ok(accumulator.taken_cpus);
    }
    Err(Reason::CpuError("failed to allocate cpus".to_owned()))
}

pub(super) fn are_zones_larger_than_sockets(host: &KubeletHost) -> bool {
    host.sockets.len() >= host.cpu_zones.count_ones() as usize
}

impl<'h> CpuAccumulator<'h> {
    pub(super) fn new(host: &'h KubeletHost, available: &CpuBits, wanted: i64) -> Self {
        Self { host, free_cpus: *available, taken_cpus: CpuBits::default(), needed_cpus: wanted }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.needed_cpus < 1
    }

    pub(super) fn check_enough_cpus(&self) -> Result<(), Reason> {
        let free = self.free_cpus.count();
        if self.needed_cpus <= i64::from(free) {
            return Ok(());
        }
        let wanted = self.needed_cpus.unsigned_abs();
        Err(Reason::InsufficientCpus {
            wanted,
            free,
            counted: self.host.features.has_counts_in_message,
        })
    }

    pub(super) fn take_cpus(&mut self, cpus: &CpuBits) {
        self.taken_cpus = self.taken_cpus.union(cpus);
        self.free_cpus = self.free_cpus.difference(cpus);
        self.needed_cpus = self.needed_cpus.saturating_sub(i64::from(cpus.count()));
    }

    const fn needs_at_least(&self, size: u32) -> bool {
        self.needed_cpus >= size as i64
    }

    pub(super) fn free_in_zone(&self, zone: usize) -> u32 {
        self.host
            .zones
            .get(zone)
            .map_or(0, |zone| self.free_cpus.count_range(zone.cpus.0, zone.cpus.1))
    }

    fn free_in_socket(&self, socket: usize) -> u32 {
        let Some(group) = self.host.sockets.get(socket) else { return 0 };
        bit_indexes(group.zones)
            .filter_map(|zone| self.host.zones.get(zone))
            .map(|zone| match zone.sockets.len() {
                1 => self.free_cpus.count_range(zone.cpus.0, zone.cpus.1),
                _ => self
                    .free_cpus
                    .intersection(&CpuBits::from_range(zone.cpus.0, zone.cpus.1))
                    .intersection(&group.cpus)
                    .count(),
            })
            .sum()
    }

    /// Returns true if a socket has free CPUs of a zone. The kubelet then treats the zone as part of the socket and the
    /// socket as part of the zone.
    fn zone_overlaps_socket(&self, zone: usize, socket: usize) -> bool {
        let (Some(zone), Some(socket)) = (self.host.zones.get(zone), self.host.sockets.get(socket))
        else {
            return false;
        };
        let in_zone = CpuBits::from_range(zone.cpus.0, zone.cpus.1);
        !self.free_cpus.intersection(&in_zone).intersection(&socket.cpus).is_empty()
    }

    /// Returns the indexes of the sockets with free CPUs, sorted by the number of free CPUs, fewest first.
    fn sockets_by_use(&self) -> Vec<usize> {
        order_by_free(
            (0..self.host.sockets.len()).map(|socket| (self.free_in_socket(socket), socket)),
        )
    }

    /// Returns the indexes of the zones in the kubelet's order (`sortAvailableNUMANodes`). As in the kubelet, a zone
    /// that spans two sockets may be listed twice.
    pub(super) fn zones_in_order(&self) -> Vec<usize> {
        let zones = 0..self.host.zones.len();
        if are_zones_larger_than_sockets(self.host) {
            return order_by_free(zones.map(|zone| (self.free_in_zone(zone), zone)));
        }
        let sockets = self.sockets_by_use();
        let mut order = Vec::with_capacity(self.host.zones.len());
        for socket in sockets {
            let zones_in_socket =
                zones.clone().filter(|&zone| self.zone_overlaps_socket(zone, socket));
            order
                .extend(order_by_free(zones_in_socket.map(|zone| (self.free_in_zone(zone), zone))));
        }
        order
    }

    /// Returns the indexes of the sockets in the kubelet's order (`sortAvailableSockets`).
    fn sockets_in_order(&self) -> Vec<usize> {
        if !are_zones_larger_than_sockets(self.host) {
            return self.sockets_by_use();
        }
        let mut order = Vec::with_capacity(self.host.sockets.len());
        for zone in self.zones_in_order() {
            let sockets_in_zone = (0..self.host.sockets.len())
                .filter(|&socket| self.zone_overlaps_socket(zone, socket));
            order.extend(order_by_free(
                sockets_in_zone.map(|socket| (self.free_in_socket(socket), socket)),
            ));
        }
        order
    }

    fn take_zones(&mut self) {
        let smallest = self.host.zones.iter().map(|zone| zone.cpus.1 - zone.cpus.0);
        let smallest = smallest.filter(|&size| size > 0).min().unwrap_or(0);
        if self.is_done() || !self.needs_at_least(u32::from(smallest)) {
            return;
        }
        let cpu_range = |zone: usize| {
            let zone = self.host.zones.get(zone);
            zone.map_or((0, 0), |zone| zone.cpus)
        };
        let order = self.zones_in_order();
        let is_free = |&zone: &usize| {
            self.free_in_zone(zone) == u32::from(cpu_range(zone).1 - cpu_range(zone).0)
        };
        let ranges: Vec<(u16, u16)> = order.into_iter().filter(is_free).map(cpu_range).collect();
        for range in ranges {
            if self.needs_at_least(u32::from(range.1 - range.0)) {
                self.take_cpus(&CpuBits::from_range(range.0, range.1));
            }
        }
    }

    /// Takes whole free sockets. The kubelet treats a socket as free if its number of free CPUs equals the average size
    /// of a socket (`isSocketFree`). If the sockets have different sizes, the kubelet can therefore take a socket of
    /// which other pods use some CPUs.
    fn take_sockets(&mut self) {
        let smallest = self.host.sockets.iter().map(|socket| socket.size).min().unwrap_or(0);
        if self.is_done() || !self.needs_at_least(smallest) {
            return;
        }
        let average = self.host.cpus_per_socket;
        let order = self.sockets_in_order();
        let free = order.into_iter().filter(|&socket| self.free_in_socket(socket) == average);
        for socket in free.collect::<Vec<_>>() {
            self.take_group(self.host.sockets.get(socket));
        }
    }

    fn take_group(&mut self, group: Option<&CpuGroup>) {
        if let Some(group) = group.filter(|group| self.needs_at_least(group.size)) {
            self.take_cpus(&group.cpus);
        }
    }

    /// Returns lists of cores in the kubelet's order, each sorted by core number (`sortAvailableCores`). There is one
    /// list per socket if zones contain sockets, and otherwise one list per zone.
    fn core_lists(&self) -> Vec<CoreList<'h>> {
        if are_zones_larger_than_sockets(self.host) {
            let sockets = self.sockets_in_order().into_iter();
            sockets
                .filter_map(|socket| self.host.sockets.get(socket))
                .map(|socket| CoreList::Listed(&socket.cores))
                .collect()
        } else {
            let zones = self.zones_in_order().into_iter();
            zones
                .filter_map(|zone| self.host.zones.get(zone))
                .map(|zone| CoreList::Range(zone.cores.0, zone.cores.1))
                .collect()
        }
    }

    /// Takes whole free cores. As in the kubelet, the free cores are determined before the first core is taken
    /// (`freeCores`). Because all free cores have the same number of free CPUs, they are taken in the order of their
    /// numbers.
    fn take_cores(&mut self) {
        if self.is_done() {
            return;
        }
        let host = self.host;
        let free_before = self.free_cpus;
        for list in self.core_lists() {
            for core in list.iter(host) {
                let free = free_before.count_range(core.cpus.0, core.cpus.1);
                // Like the size of sockets, the size of cores is an average: if cores have different sizes, other pods
                // may use some CPUs of a core that counts as free.
                if free == host.cpus_per_core
                    && self.needs_at_least(u32::from(core.cpus.1 - core.cpus.0))
                {
                    self.take_cpus(&CpuBits::from_range(core.cpus.0, core.cpus.1));
                }
                if self.is_done() {
                    return;
                }
            }
        }
    }

    /// Takes single CPUs, beginning with the CPUs of the cores that have the fewest free CPUs
    /// (`sortAvailableCPUsPacked`).
    fn take_threads(&mut self) {
        if self.is_done() {
            return;
        }
        let host = self.host;
        let free_before = self.free_cpus;
        let size = |core: &HostCore| u32::from(core.cpus.1 - core.cpus.0);
        for list in self.core_lists() {
            let max_size = list.iter(host).map(size).max().unwrap_or(0);
            for free in 1..=max_size {
                let has_free_count =
                    |core: &&HostCore| free_before.count_range(core.cpus.0, core.cpus.1) == free;
                for core in list.iter(host).filter(has_free_count) {
                    for cpu in (core.cpus.0..core.cpus.1).filter(|&cpu| free_before.contains(cpu)) {
                        self.take_cpus(&CpuBits::from_range(cpu, cpu + 1));
                        if self.is_done() {
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Takes CPUs by uncore cache (`takeUncoreCache`, option `prefer-align-cpus-by-uncorecache`). Takes whole free
    /// caches while the request still needs at least an average cache's number of CPUs; then takes the rest from one
    /// cache.
    fn take_caches(&mut self) {
        for cache in self.caches_in_order() {
            if self.needs_at_least(self.host.cpus_per_cache) {
                let is_free = |&cache: &usize| {
                    let group = self.host.caches.get(cache);
                    group.is_some_and(|group| {
                        self.free_cpus.intersection(&group.cpus).count() == group.size
                    })
                };
                let order = self.caches_in_order();
                for free in order.into_iter().filter(is_free).collect::<Vec<_>>() {
                    self.take_group(self.host.caches.get(free));
                }
            }
            if self.is_done() {
                return;
            }
            self.take_partial_cache(cache);
            if self.is_done() {
                return;
            }
        }
    }

    /// Returns the indexes of the caches in the kubelet's order (`sortAvailableUncoreCaches`).
    fn caches_in_order(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.host.caches.len());
        for zone in self.zones_in_order() {
            let Some(zone) = self.host.zones.get(zone) else { continue };
            let in_zone =
                self.free_cpus.intersection(&CpuBits::from_range(zone.cpus.0, zone.cpus.1));
            let free = |group: &CpuGroup| self.free_cpus.intersection(&group.cpus).count();
            let caches_in_zone = self.host.caches.iter().enumerate();
            let caches_in_zone =
                caches_in_zone.filter(|(_, group)| !in_zone.intersection(&group.cpus).is_empty());
            order.extend(order_by_free(caches_in_zone.map(|(cache, group)| (free(group), cache))));
        }
        order
    }

    /// Takes all CPUs that are still needed from one cache, or none if this cache has too few (`takePartialUncore`).
    fn take_partial_cache(&mut self, cache: usize) {
        let Some(group) = self.host.caches.get(cache) else { return };
        let per_core = i64::from(self.host.cpus_per_core).max(1);
        let cores = self.needed_cpus.saturating_add(per_core - 1) / per_core;
        let cores = usize::try_from(cores).unwrap_or(usize::MAX);
        let mut found = CpuBits::default();
        for core in CoreList::Listed(&group.cores)
            .iter(self.host)
            .filter(|core| self.free_cpus.count_range(core.cpus.0, core.cpus.1) > 0)
            .take(cores)
        {
            found = found.union(
                &self.free_cpus.intersection(&CpuBits::from_range(core.cpus.0, core.cpus.1)),
            );
        }
        let is_odd = self.needed_cpus % 2 != 0 && per_core > 1;
        if is_odd && i64::from(found.count()) > self.needed_cpus {
            // The kubelet excludes the CPU with the highest number, whatever its core is.
            let number = |&cpu: &u16| self.host.cpus.get(usize::from(cpu)).copied();
            if let Some(last) = found.iter().max_by_key(number) {
                found = found.difference(&CpuBits::from_range(last, last + 1));
            }
        }
        if i64::from(found.count()) == self.needed_cpus {
            self.take_cpus(&found);
        }
    }
}

/// A list of cores, sorted by core number.
#[derive(Clone, Copy)]
enum CoreList<'h> {
    Range(u16, u16),
    Listed(&'h [u16]),
}

impl<'h> CoreList<'h> {
    fn iter(self, host: &'h KubeletHost) -> impl Iterator<Item = &'h HostCore> {
        let (range, list) = match self {
            Self::Range(start, end) => (start..end, [].as_slice()),
            Self::Listed(list) => (0..0, list),
        };
        range.chain(list.iter().copied()).filter_map(|core| host.cores.get(usize::from(core)))
    }
}

/// `free` contains pairs of a number of free CPUs and an index. Returns the indexes of the pairs with at least one free
/// CPU, sorted by the number of free CPUs, and then by index.
fn order_by_free(free: impl Iterator<Item = (u32, usize)>) -> Vec<usize> {
    let mut order: Vec<(u32, usize)> = free.filter(|&(free, _)| free > 0).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}
