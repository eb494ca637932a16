//! Usage of each host and zone after placement.

use serde::Serialize;

use berth_kubelet_admission::HostState;
use berth_placement::engine::Engine;
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::HostId;

/// Used and total amount of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResourceUsage {
    /// Used amount, in the unit of the field that contains this value.
    pub used: u64,
    /// Total amount, in the same unit.
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostUsage {
    pub name: String,
    /// Number of pods on the host.
    pub pods: usize,
    /// Memory that pods request, without huge pages, in bytes.
    pub memory: ResourceUsage,
    /// Huge pages that pods request, in bytes.
    pub hugepages: ResourceUsage,
    /// CPU requests of pods in millicores.
    pub cpu_millis: ResourceUsage,
    pub zones: Vec<ZoneUsage>,
}

/// Usage of a NUMA zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneUsage {
    /// Number of the NUMA node in the kernel.
    pub id: u32,
    /// CPUs that can be allocated exclusively.
    pub cpus: ResourceUsage,
    /// Huge pages in bytes; `None` if the kubelet does not account for huge pages by zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<ResourceUsage>,
}

/// Returns the usage of all hosts, sorted by name.
pub(super) fn host_usages(engine: &Engine) -> Vec<HostUsage> {
    let mut all: Vec<HostUsage> =
        engine.hosts().map(|(id, facts)| host_usage(engine, id, facts)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn host_usage(engine: &Engine, id: HostId, facts: &ReportedHost) -> HostUsage {
    let sum = |all: u64, more: u64| all.saturating_add(more);
    let mut usage = HostUsage {
        name: facts.name.clone(),
        memory: ResourceUsage { used: 0, total: facts.allocatable.memory },
        hugepages: ResourceUsage {
            used: 0,
            total: facts.allocatable.hugepages.values().copied().fold(0, sum),
        },
        cpu_millis: ResourceUsage { used: 0, total: facts.allocatable.cpu_millis },
        zones: zone_usages(engine.kubelet_state(id)),
        ..HostUsage::default()
    };
    let assumed = engine.pods_on_host(id).map(|request| (request.uid(), request.pod().requests()));
    let unknown = facts.allocations.iter().filter(|one| engine.host_of_pod(&one.uid).is_none());
    let unknown = unknown.map(|one| (one.uid.as_str(), one.requests()));
    for (_, requests) in assumed.chain(unknown) {
        usage.pods += 1;
        usage.memory.used = usage.memory.used.saturating_add(requests.memory);
        usage.cpu_millis.used = usage.cpu_millis.used.saturating_add(requests.cpu_millis);
        let pages = requests.hugepages.values().copied().fold(0, sum);
        usage.hugepages.used = usage.hugepages.used.saturating_add(pages);
    }
    usage
}

fn zone_usages(state: Option<&HostState>) -> Vec<ZoneUsage> {
    let Some(state) = state else { return Vec::new() };
    let host = state.host();
    let tracks_hugepages =
        host.kubelet().memory_policy == berth_kubelet_admission::MemoryPolicy::Static;
    let zones = host.zone_numbers().zip(state.free_by_zone());
    zones
        .map(|(id, zone)| ZoneUsage {
            id,
            cpus: ResourceUsage {
                used: zone.total_cpus.saturating_sub(zone.cpus).into(),
                total: zone.total_cpus.into(),
            },
            hugepages: tracks_hugepages.then(|| {
                let (free, total) = zone.free_and_total_pages_of_all_sizes();
                ResourceUsage { used: total.saturating_sub(free), total }
            }),
        })
        .collect()
}
