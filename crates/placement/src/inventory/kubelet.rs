//! The kubelet's configuration, from the agent's report.

use std::collections::BTreeMap;

use berth_api::{Bytes, CpuSet, InfraNodeStatus, Problem};
use k8s_openapi::api::core::v1;

use berth_kubelet_admission::{
    CpuOptions, CpuPolicy, HostSpec, Kubelet, KubeletVersion, ReservedMemory, TopologyOptions,
};

/// Reads all settings of the kubelet except reserved CPUs of which only the amount is configured: [`reserved_cpus`]
/// must derive these CPUs from the Node.
///
/// Options that do not affect admission and options that are not supported are added to `problems`; the host remains
/// usable.
pub(super) fn read_settings(
    object: &str,
    status: &InfraNodeStatus,
    version: KubeletVersion,
    problems: &mut Vec<Problem>,
) -> Result<Kubelet, (String, String)> {
    let mut settings = Kubelet {
        version,
        cpu_policy: CpuPolicy::None,
        cpu_options: CpuOptions::default(),
        reserved_cpus: CpuSet::new(),
        memory_policy: berth_kubelet_admission::MemoryPolicy::None,
        reserved_memory: Vec::new(),
        topology_policy: berth_kubelet_admission::TopologyPolicy::None,
        topology_scope: berth_kubelet_admission::TopologyScope::Container,
        topology_options: TopologyOptions::default(),
    };
    let Some(kubelet) = &status.capabilities.kubelet else { return Ok(settings) };
    let field_path = |field: &str| format!("status.capabilities.kubelet.{field}");
    let parse_error =
        |field: &str, error: &dyn std::fmt::Display| (field_path(field), error.to_string());
    if let Some(policy) = &kubelet.cpu_manager_policy {
        settings.cpu_policy =
            policy.parse().map_err(|error| parse_error("cpuManagerPolicy", &error))?;
    }
    if let Some(policy) = &kubelet.memory_manager_policy {
        settings.memory_policy =
            policy.parse().map_err(|error| parse_error("memoryManagerPolicy", &error))?;
    }
    if let Some(policy) = &kubelet.topology_manager_policy {
        settings.topology_policy =
            policy.parse().map_err(|error| parse_error("topologyManagerPolicy", &error))?;
    }
    if let Some(scope) = &kubelet.topology_manager_scope {
        settings.topology_scope =
            scope.parse().map_err(|error| parse_error("topologyManagerScope", &error))?;
    }
    match CpuOptions::parse(&parse_options(&kubelet.cpu_manager_policy_options)) {
        Ok(options) => settings.cpu_options = options,
        Err(error) => {
            return Err(parse_error("cpuManagerPolicyOptions", &error));
        }
    }
    match TopologyOptions::parse(&parse_options(&kubelet.topology_manager_policy_options)) {
        Ok(options) => settings.topology_options = options,
        Err(error) => {
            return Err(parse_error("topologyManagerPolicyOptions", &error));
        }
    }
    if let Some(reserved) = &kubelet.reserved_system_cpus {
        settings.reserved_cpus = reserved.clone();
    }
    for (at, zone) in status.zones.iter().enumerate() {
        let mut report_problem = |field: &str, amount: Bytes, message: &str| {
            let field = format!("status.zones[{at}].{field}");
            problems.push(Problem::new(object, field, amount, message));
        };
        let mut reserved_memory = zone.reserved_memory.unwrap_or_default();
        if zone.memory.is_some_and(|memory| reserved_memory > memory) {
            report_problem("reservedMemory", reserved_memory, "exceeds the zone's memory; ignored");
            reserved_memory = Bytes(0);
        }
        let mut hugepages = BTreeMap::new();
        for pages in &zone.reserved_hugepages {
            let pool = zone.hugepages.iter().find(|pool| pool.size == pages.size);
            let bytes = pages.count.saturating_mul(pages.size.bytes());
            if pool.is_none_or(|pool| pool.total < pages.count) {
                let message = "exceeds the zone's pool of huge pages; ignored";
                report_problem("reservedHugepages", Bytes(bytes), message);
            } else {
                hugepages.insert(pages.size, bytes);
            }
        }
        if reserved_memory > Bytes(0) || !hugepages.is_empty() {
            let reserved = ReservedMemory { zone: zone.id, memory: reserved_memory.0, hugepages };
            settings.reserved_memory.push(reserved);
        }
    }
    Ok(settings)
}

/// Parses options of the form `name=value`, or of the form `name`, which means `name=true`.
fn parse_options(listed: &[String]) -> BTreeMap<String, String> {
    let pair = |option: &String| match option.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (option.clone(), "true".to_owned()),
    };
    listed.iter().map(pair).collect()
}

/// Returns the CPUs that the kubelet reserves. If only an amount is configured (`kubeReserved`), these are the first
/// CPUs, core by core, and their number is the number of the host's CPUs minus the Node's allocatable CPUs, rounded up.
pub(super) fn reserved_cpus(
    settings: &Kubelet,
    spec: &HostSpec,
    node: Option<&v1::Node>,
) -> CpuSet {
    if settings.cpu_policy == CpuPolicy::None || !settings.reserved_cpus.is_empty() {
        return settings.reserved_cpus.clone();
    }
    let all = spec.zones.iter().flat_map(|zone| &zone.cores).flat_map(|core| &core.cpus);
    let count = all.clone().count() as u64;
    let Some(allocatable) = node.and_then(super::node::allocatable_cpu_millis) else {
        return CpuSet::new();
    };
    let reserved_count = count.saturating_mul(1000).saturating_sub(allocatable).div_ceil(1000);
    all.copied().take(usize::try_from(reserved_count).unwrap_or(usize::MAX)).collect()
}
