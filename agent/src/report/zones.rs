//! NUMA zones, with the resources that the kubelet reserves, and with the topology of their cores for placement.

use berth_api::infra_node::{ReservedHugepages, Zone};
use berth_api::{Bytes, CpuSet};

use berth_host_facts::HostFacts;
use berth_host_facts::kubelet::KubeletFacts;
use berth_host_facts::kubelet::memory_state::parse_page_size;
use berth_host_facts::topology::Topology;

/// `maxItems` of `zones[].caches` in the CRD.
const MAX_CACHES: usize = 128;

/// Returns the zones of the host with the reservations of its kubelet.
pub(super) fn zones(facts: &HostFacts) -> Vec<Zone> {
    let mut zones = add_kubelet_cpus(&facts.zones, &facts.kubelet);
    for zone in &mut zones {
        let Some(cpus) = &zone.cpus else { continue };
        zone.socket = socket_of_cpus(&facts.topology, cpus);
        zone.threads = find_thread_sets(&facts.topology, cpus).unwrap_or_default();
        zone.caches = find_cache_sets(&facts.topology, cpus);
    }
    zones
}

/// Returns the CPU package that contains all these CPUs.
fn socket_of_cpus(topology: &Topology, cpus: &CpuSet) -> Option<u32> {
    let mut sockets = cpus.iter().map(|cpu| topology.cpus.get(&cpu)?.socket);
    let first = sockets.next()??;
    sockets.all(|socket| socket == Some(first)).then_some(first)
}

/// Returns sets of CPUs: the first threads of all cores, the second threads, and so on. `None` if the topology is
/// unknown, or if the CPUs of some core would be at different positions in these sets.
fn find_thread_sets(topology: &Topology, cpus: &CpuSet) -> Option<Vec<CpuSet>> {
    if !topology.are_core_ids_known {
        return None;
    }
    let members = |core: &CpuSet| core.intersection(cpus).iter().collect();
    let mut cores: Vec<Vec<u32>> =
        topology.cores_with_cpus(cpus).into_iter().map(members).collect();
    cores.sort_unstable();
    let max_threads = cores.iter().map(Vec::len).max()?;
    let mut threads = Vec::with_capacity(max_threads);
    for number in 0..max_threads {
        let siblings: Option<Vec<u32>> =
            cores.iter().map(|core| core.get(number).copied()).collect();
        let siblings = siblings?;
        // Each set must list the cores in this order, but a `CpuSet` is always in ascending order.
        if !siblings.is_sorted() {
            return None;
        }
        threads.push(siblings.into_iter().collect());
    }
    Some(threads)
}

/// Adds to each zone the CPUs that the kubelet reserves, the CPUs that it can allocate exclusively, and those that
/// it has allocated exclusively.
///
/// CPUs are pinnable only under the policy `static`, and only if the kubelet reserves CPUs by list
/// (`reservedSystemCPUs`). If it reserves an amount (`kubeReserved`), the kubelet itself selects the reserved CPUs,
/// and its checkpoint does not contain them.
fn add_kubelet_cpus(zones: &[Zone], kubelet: &KubeletFacts) -> Vec<Zone> {
    let config = kubelet.effective_config();
    let reserved = config.and_then(|config| config.reserved_system_cpus.as_ref());
    let valid_config = config.filter(|config| config.invalid_fields.is_empty());
    let policy_is_static = valid_config.map(|config| config.cpu_manager_policy == "static");
    let pinned = match (policy_is_static, &kubelet.cpu_state) {
        (Some(true), Some(state)) => Some(state.exclusive_cpus()),
        (Some(false), _) => Some(CpuSet::new()),
        _ => None,
    };
    zones
        .iter()
        .map(|zone| {
            let cpus = zone.cpus.as_ref();
            let within =
                |set: Option<&CpuSet>| cpus.zip(set).map(|(cpus, set)| cpus.intersection(set));
            let pinnable = match policy_is_static {
                Some(true) => cpus.zip(reserved).map(|(cpus, reserved)| cpus.difference(reserved)),
                Some(false) => cpus.map(|_| CpuSet::new()),
                None => None,
            };
            let zone_reserved = config.and_then(|config| config.reserved_memory.get(&zone.id));
            Zone {
                reserved_memory: zone_reserved
                    .and_then(|kept| kept.get("memory"))
                    .copied()
                    .filter(|kept| *kept > Bytes(0)),
                reserved_hugepages: zone_reserved
                    .into_iter()
                    .flatten()
                    .filter_map(reserved_pages)
                    .collect(),
                reserved_cpus: within(reserved),
                pinnable_cpus: pinnable,
                pinned_cpus: within(pinned.as_ref()),
                ..zone.clone()
            }
        })
        .collect()
}

/// Converts an entry of `reservedMemory` for huge pages.
fn reserved_pages((resource, reserved): (&String, &Bytes)) -> Option<ReservedHugepages> {
    let size = parse_page_size(resource)?;
    let count = reserved.0.div_ceil(size.bytes());
    (count > 0).then_some(ReservedHugepages { size, count })
}

/// Returns the sets of CPUs of the zone that share a last-level cache. The result is empty if all CPUs share one
/// cache, if a cache is unknown, or if there are more sets than the CRD's schema allows ([`MAX_CACHES`]).
fn find_cache_sets(topology: &Topology, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut remaining = cpus.clone();
    let mut caches = Vec::new();
    loop {
        let first = remaining.iter().next();
        let Some(first) = first else { return caches };
        let Some(cpu) = topology.cpus.get(&first) else { return Vec::new() };
        let shared = cpu.l3_cache_cpus.intersection(cpus);
        if !shared.contains(first) || shared == *cpus || caches.len() >= MAX_CACHES {
            return Vec::new();
        }
        remaining = remaining.difference(&shared);
        caches.push(shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_host_facts::kubelet::KubeletConfig;
    use berth_host_facts::topology::LogicalCpu;

    #[test]
    fn pinnable_cpus_require_a_list_of_reserved_cpus() {
        let zone = Zone { cpus: Some("0-3".parse().unwrap()), ..Zone::default() };
        let facts = |policy: &str, reserved: Option<&str>| KubeletFacts {
            config: Some(KubeletConfig {
                cpu_manager_policy: policy.to_owned(),
                reserved_system_cpus: reserved.map(|set| set.parse().unwrap()),
                ..KubeletConfig::default()
            }),
            ..KubeletFacts::default()
        };
        let pinnable = |facts: &KubeletFacts| {
            add_kubelet_cpus(std::slice::from_ref(&zone), facts)[0]
                .pinnable_cpus
                .as_ref()
                .map(CpuSet::to_string)
        };
        assert_eq!(pinnable(&facts("static", Some("0-1,9"))).as_deref(), Some("2-3"));
        assert_eq!(pinnable(&facts("static", None)), None);
        assert_eq!(pinnable(&facts("none", Some("0"))).as_deref(), Some(""));
        assert_eq!(pinnable(&KubeletFacts::default()), None);
    }

    #[test]
    fn reserved_memory_is_reported_by_page_size() {
        let zone = Zone { id: 1, ..Zone::default() };
        let reserved_memory =
            [("memory", 1 << 30), ("hugepages-2Mi", 5 << 20), ("hugepages-1Gi", 0)];
        let reserved_memory = reserved_memory.map(|(name, bytes)| (name.to_owned(), Bytes(bytes)));
        let config = KubeletConfig {
            reserved_memory: [(1, reserved_memory.into())].into(),
            ..KubeletConfig::default()
        };
        let facts = KubeletFacts { config: Some(config), ..KubeletFacts::default() };
        let reported = add_kubelet_cpus(&[zone], &facts).remove(0);
        assert_eq!(reported.reserved_memory, Some(Bytes(1 << 30)));
        // A page that is partly reserved is not available to pods.
        let pages = [ReservedHugepages { size: berth_api::PageSize::MIB_2, count: 3 }];
        assert_eq!(reported.reserved_hugepages, pages);
    }

    #[test]
    fn cpus_are_grouped_by_cache() {
        let caches_of = |known: &[&str], cpus: &str| {
            let mut topology = Topology::default();
            for cache in known {
                let shared: std::sync::Arc<CpuSet> = std::sync::Arc::new(cache.parse().unwrap());
                for cpu in shared.iter() {
                    let cpu_of =
                        LogicalCpu { l3_cache_cpus: shared.clone(), ..LogicalCpu::default() };
                    topology.cpus.insert(cpu, cpu_of);
                }
            }
            let cache_sets = find_cache_sets(&topology, &cpus.parse().unwrap());
            cache_sets.iter().map(CpuSet::to_string).collect::<Vec<_>>()
        };
        assert_eq!(caches_of(&["0-1,4-5", "2-3,6-7"], "0-7"), ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(caches_of(&["0-7", "8-15"], "0-7"), [""; 0], "one cache for the zone");
        assert_eq!(caches_of(&["0-1"], "0-3"), [""; 0], "unknown for some CPUs");
    }

    #[test]
    fn siblings_have_the_same_position_in_thread_sets() {
        let topology = |cores: &[&str]| {
            let mut topology = Topology::default();
            topology.are_core_ids_known = true;
            for core in cores {
                let siblings: std::sync::Arc<CpuSet> = std::sync::Arc::new(core.parse().unwrap());
                for cpu in siblings.iter() {
                    let cpu_of =
                        LogicalCpu { thread_siblings: siblings.clone(), ..LogicalCpu::default() };
                    topology.cpus.insert(cpu, cpu_of);
                }
            }
            topology
        };
        let thread_sets = |cores: &[&str], cpus: &str| {
            find_thread_sets(&topology(cores), &cpus.parse().unwrap())
                .map(|all| all.iter().map(CpuSet::to_string).collect::<Vec<_>>())
        };
        let expected =
            |all: &[&str]| Some(all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>());
        assert_eq!(
            thread_sets(&["0,70", "1,71", "2,72"], "0-2,70-72"),
            expected(&["0-2", "70-72"])
        );
        assert_eq!(thread_sets(&["0-1", "2-3"], "0-3"), expected(&["0,2", "1,3"]));
        assert_eq!(thread_sets(&["0", "1"], "0-1"), expected(&["0-1"]));
        assert_eq!(thread_sets(&["0-1", "2"], "0-2"), None, "one core has one thread");
        assert_eq!(thread_sets(&["0,9", "1,8"], "0-1,8-9"), None, "not in ascending order");
        assert_eq!(thread_sets(&[], "0-3"), None);
    }
}
