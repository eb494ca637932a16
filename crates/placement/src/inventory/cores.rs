//! Groups a zone's CPUs into cores.

use berth_api::infra_node::Zone;
use berth_api::{CpuSet, InfraNodeStatus};

use berth_kubelet_admission::CoreSpec;

/// Returns the cores of a zone as the agent reports them. If the report has no cores, assumes one of the two usual CPU
/// numberings: all first threads before all second threads (Intel, AMD), or sibling threads with adjacent numbers (most
/// other CPUs).
pub(super) fn zone_cores(
    status: &InfraNodeStatus,
    zone: &Zone,
    zone_index: usize,
) -> Vec<CoreSpec> {
    let Some(cpus) = &zone.cpus else { return Vec::new() };
    let cpus: Vec<u32> = cpus.iter().collect();
    let socket = zone.socket.unwrap_or_else(|| infer_socket(status, zone_index));
    let grouped = reported_cores(zone, &cpus).unwrap_or_else(|| infer_cores(status, zone, &cpus));
    let cache = |cpus: &[u32]| {
        let first = cpus.first()?;
        let number = zone.caches.iter().position(|cache| cache.contains(*first))?;
        // Only a zone with several caches has uncore caches. If one cache serves the whole zone, the kubelet uses the
        // socket's number as the cache's number.
        (zone.caches.len() > 1).then(|| cache_number(status, zone_index, number))
    };
    let core = |cpus: Vec<u32>| CoreSpec { cache: cache(&cpus), cpus, socket };
    grouped.into_iter().map(core).collect()
}

/// Returns a number for a cache that is unique on the host. Caches are numbered zone by zone, in the order of the
/// agent's list.
fn cache_number(status: &InfraNodeStatus, zone_index: usize, cache_index: usize) -> u32 {
    let before: usize = status.zones.iter().take(zone_index).map(|other| other.caches.len()).sum();
    u32::try_from(before + cache_index).unwrap_or(u32::MAX)
}

/// Returns the CPUs of each core according to the report's `threads`; `None` unless `threads` lists each CPU of the
/// zone exactly once.
fn reported_cores(zone: &Zone, cpus: &[u32]) -> Option<Vec<Vec<u32>>> {
    let threads: Vec<Vec<u32>> = zone.threads.iter().map(|set| set.iter().collect()).collect();
    let cores = threads.first()?.len();
    if threads.iter().any(|thread| thread.len() != cores) {
        return None;
    }
    let mut all: Vec<u32> = threads.iter().flatten().copied().collect();
    all.sort_unstable();
    if all != cpus {
        return None;
    }
    Some((0..cores).map(|core| threads.iter().map(|thread| thread[core]).collect()).collect())
}

/// Infers the CPUs of each core. Of the two usual numberings, chooses that with which the kubelet's reserved and
/// exclusive CPUs form more whole cores: with the option `full-pcpus-only`, the kubelet allocates only whole cores on
/// hosts with sibling threads.
fn infer_cores(status: &InfraNodeStatus, zone: &Zone, cpus: &[u32]) -> Vec<Vec<u32>> {
    let one_core_per_cpu = |cpus: &[u32]| cpus.iter().map(|cpu| vec![*cpu]).collect();
    let threads = status.capabilities.cpu.threads_per_core.unwrap_or(1);
    let Some(threads) = usize::try_from(threads).ok().filter(|threads| (2..=8).contains(threads))
    else {
        return one_core_per_cpu(cpus);
    };
    if cpus.is_empty() || !cpus.len().is_multiple_of(threads) {
        return one_core_per_cpu(cpus);
    }
    let cores = cpus.len() / threads;
    let split_siblings: Vec<Vec<u32>> = (0..cores)
        .map(|core| (0..threads).map(|thread| cpus[thread * cores + core]).collect())
        .collect();
    let adjacent_siblings: Vec<Vec<u32>> = cpus.chunks(threads).map(<[u32]>::to_vec).collect();
    let count_partial_cores = |cores: &[Vec<u32>]| -> usize {
        [&zone.reserved_cpus, &zone.pinned_cpus]
            .into_iter()
            .flatten()
            .map(|set| partial_core_count(cores, set))
            .sum()
    };
    let is_contiguous = cpus.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let is_adjacent =
        match count_partial_cores(&adjacent_siblings).cmp(&count_partial_cores(&split_siblings)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => is_contiguous,
            std::cmp::Ordering::Greater => false,
        };
    if is_adjacent { adjacent_siblings } else { split_siblings }
}

/// Returns the number of cores of which some threads, but not all, are in the set.
fn partial_core_count(cores: &[Vec<u32>], set: &CpuSet) -> usize {
    let is_partial = |core: &&Vec<u32>| {
        let count = core.iter().filter(|cpu| set.contains(**cpu)).count();
        count > 0 && count < core.len()
    };
    cores.iter().filter(is_partial).count()
}

/// Returns the number of the zone's socket. Assumes that zones are numbered socket by socket, and that all sockets
/// have the same number of zones.
fn infer_socket(status: &InfraNodeStatus, zone_index: usize) -> u32 {
    let with_cpus =
        status.zones.iter().filter(|zone| zone.cpus.as_ref().is_some_and(|c| !c.is_empty()));
    let zones = with_cpus.count().max(1);
    let sockets = status.capabilities.cpu.sockets.unwrap_or(1);
    let sockets = usize::try_from(sockets).unwrap_or(1).clamp(1, zones);
    u32::try_from(zone_index * sockets / zones).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::infra_node::{Capabilities, Cpu};

    fn status(threads: u32, sockets: u32, zones: &[&str]) -> InfraNodeStatus {
        let cpu = Cpu { threads_per_core: Some(threads), sockets: Some(sockets), ..Cpu::default() };
        let zone = |cpus: &&str| Zone { cpus: Some(cpus.parse().unwrap()), ..Zone::default() };
        InfraNodeStatus {
            capabilities: Capabilities { cpu, ..Capabilities::default() },
            zones: zones.iter().map(zone).collect(),
            ..InfraNodeStatus::default()
        }
    }

    fn cpus_of_cores(status: &InfraNodeStatus) -> Vec<Vec<u32>> {
        zone_cores(status, &status.zones[0], 0).into_iter().map(|core| core.cpus).collect()
    }

    #[test]
    fn reported_threads_are_used() {
        let mut host = status(2, 1, &["0-3"]);
        host.zones[0].threads = vec!["0-1".parse().unwrap(), "2-3".parse().unwrap()];
        assert_eq!(cpus_of_cores(&host), [[0, 2], [1, 3]]);
        host.zones[0].threads = vec!["0-1".parse().unwrap(), "2".parse().unwrap()];
        assert_eq!(cpus_of_cores(&host), [[0, 1], [2, 3]], "invalid threads are ignored");
    }

    #[test]
    fn threads_are_inferred_if_not_reported() {
        assert_eq!(cpus_of_cores(&status(2, 1, &["0-1,8-9"])), [[0, 8], [1, 9]]);
        assert_eq!(cpus_of_cores(&status(2, 1, &["0-3"])), [[0, 1], [2, 3]]);
        assert_eq!(cpus_of_cores(&status(1, 1, &["0-1"])), [[0], [1]]);
        assert_eq!(
            cpus_of_cores(&status(2, 1, &["0-2"])),
            [[0], [1], [2]],
            "each CPU is a core if a sibling thread is missing"
        );
        let mut host = status(2, 1, &["0-3"]);
        host.zones[0].reserved_cpus = Some("0,2".parse().unwrap());
        assert_eq!(cpus_of_cores(&host), [[0, 2], [1, 3]], "the reserved CPUs form a whole core");
    }

    #[test]
    fn cores_that_share_a_cache_have_its_number() {
        let mut host = status(1, 1, &["0-3", "4-7"]);
        let caches = |host: &InfraNodeStatus, at: usize| -> Vec<Option<u32>> {
            zone_cores(host, &host.zones[at], at).iter().map(|core| core.cache).collect()
        };
        assert_eq!(caches(&host, 0), [None; 4], "the report has no caches");
        host.zones[0].caches = vec!["0-1".parse().unwrap(), "2-3".parse().unwrap()];
        host.zones[1].caches = vec!["4,6".parse().unwrap(), "5,7".parse().unwrap()];
        assert_eq!(caches(&host, 0), [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(caches(&host, 1), [Some(2), Some(3), Some(2), Some(3)]);
    }

    #[test]
    fn zones_are_assigned_to_sockets_in_order() {
        let host = status(1, 2, &["0", "1", "2", "3"]);
        let sockets: Vec<u32> =
            (0..4).map(|at| zone_cores(&host, &host.zones[at], at)[0].socket).collect();
        assert_eq!(sockets, [0, 0, 1, 1]);
        let host = status(1, 4_000_000_000, &["0", "1"]);
        assert_eq!(zone_cores(&host, &host.zones[1], 1)[0].socket, 1);
    }
}
