//! Rules by which a starting kubelet accepts or refuses the checkpoints of its CPU Manager and Memory Manager.
//!
//! Source: `pkg/kubelet/cm/cpumanager/policy_static.go` (validateState) and
//! `pkg/kubelet/cm/memorymanager/policy_static.go` of Kubernetes.

use std::collections::BTreeMap;

use berth_api::infra_node::Zone;
use berth_api::{Bytes, CpuSet};

use super::config::KubeletConfig;
use super::cpu_state::CpuManagerState;
use super::memory_state::{MemoryManagerState, MemoryTable, parse_page_size};

/// Returns the first error that the kubelet would find in its CPU Manager checkpoint; `None` if it accepts the
/// checkpoint.
pub fn find_cpu_state_error(
    state: &CpuManagerState,
    config: &KubeletConfig,
    online: &CpuSet,
) -> Option<String> {
    if state.policy_name != config.cpu_manager_policy {
        return Some(format!(
            "the checkpoint was written with policy {}, but the configuration has policy {}",
            state.policy_name, config.cpu_manager_policy
        ));
    }
    if state.policy_name != "static" {
        return None;
    }
    let no_cpus = CpuSet::new();
    let reserved = config.reserved_system_cpus.as_ref().unwrap_or(&no_cpus);
    let strict = config.is_cpu_option_enabled("strict-cpu-reservation");
    let shared = &state.default_cpu_set;
    if shared.is_empty() {
        return (!state.entries.is_empty())
            .then(|| "CPUs are allocated, but the shared pool is empty".to_owned());
    }
    if strict && reserved.intersects(shared) {
        return Some(format!(
            "CPUs {}, which are strictly reserved (strict-cpu-reservation), are in the shared pool",
            reserved.intersection(shared)
        ));
    }
    if !strict && !reserved.is_subset(shared) {
        return Some(format!(
            "reserved CPUs {} are not in the shared pool",
            reserved.difference(shared)
        ));
    }
    if let Some((pod, cpus)) =
        state.exclusive_cpus_by_pod().into_iter().find(|(_, cpus)| cpus.intersects(shared))
    {
        return Some(format!(
            "CPUs {} are allocated to pod {pod} and also in the shared pool",
            cpus.intersection(shared)
        ));
    }
    let checkpoint_cpus = state.all_cpus();
    // If the configuration reserves an amount of CPU and no CPU numbers, the kubelet itself has selected the reserved
    // CPUs. With the option `strict-cpu-reservation`, the checkpoint does not list these CPUs.
    let selected_by_kubelet = strict && config.reserved_system_cpus.is_none();
    let expected = match (strict, selected_by_kubelet) {
        (true, true) => online.intersection(&checkpoint_cpus),
        (true, false) => online.difference(reserved),
        (false, _) => online.clone(),
    };
    if online.is_empty() || checkpoint_cpus == expected {
        return None;
    }
    let (not_online, missing) =
        (checkpoint_cpus.difference(&expected), expected.difference(&checkpoint_cpus));
    Some(match (not_online.is_empty(), missing.is_empty()) {
        (false, _) => format!("the checkpoint has CPUs {not_online}, which are not online"),
        _ => format!("CPUs {missing} are online, but not in the checkpoint"),
    })
}

/// Returns the first error that the kubelet would find in its Memory Manager checkpoint; `None` if it accepts the
/// checkpoint.
pub fn find_memory_state_error(
    state: &MemoryManagerState,
    config: &KubeletConfig,
    zones: &[Zone],
) -> Option<String> {
    if state.policy_name != config.memory_manager_policy {
        return Some(format!(
            "the checkpoint was written with policy {}, but the configuration has policy {}",
            state.policy_name, config.memory_manager_policy
        ));
    }
    if state.policy_name != "Static" || state.machine_state.is_empty() {
        return None;
    }
    // Each host has a zone, so an empty list means that the zones could not be read, and the kubelet's comparison
    // cannot be predicted.
    if zones.is_empty() {
        return None;
    }
    if let Some(id) =
        state.machine_state.keys().find(|id| !zones.iter().any(|zone| zone.id == **id))
    {
        return Some(format!("the checkpoint has zone {id}, which this host does not have"));
    }
    zones.iter().find_map(|zone| match state.machine_state.get(&zone.id) {
        None => Some(format!("zone {} is not in the checkpoint", zone.id)),
        Some(node) => {
            let no_reservation = BTreeMap::new();
            let reserved = config.reserved_memory.get(&zone.id).unwrap_or(&no_reservation);
            find_zone_error(zone, &node.memory_map, reserved)
        }
    })
}

/// Returns the first difference between a zone and the zone's data in the checkpoint. Like the kubelet, compares the
/// names of the resources, their amounts, and the amounts that are reserved for the system.
fn find_zone_error(
    zone: &Zone,
    tables: &BTreeMap<String, MemoryTable>,
    reserved: &BTreeMap<String, Bytes>,
) -> Option<String> {
    let id = zone.id;
    let mut current: BTreeMap<String, Bytes> = BTreeMap::new();
    for pool in &zone.hugepages {
        let bytes = Bytes(pool.total.saturating_mul(pool.size.bytes()));
        current.insert(pool.size.resource_name(), bytes);
    }
    // If the huge page pools or MemTotal of the zone are unknown, the kubelet's comparison cannot be predicted.
    let pages_known = !current.is_empty();
    current.extend(zone.memory.map(|memory| ("memory".to_owned(), memory)));
    let missing = tables.keys().find(|name| {
        parse_page_size(name).is_some() && pages_known && !current.contains_key(*name)
    });
    if let Some(resource) = missing {
        return Some(format!(
            "zone {id}: {resource} is in the checkpoint, but the kernel has no pages of this size"
        ));
    }
    for (resource, amount) in &current {
        let Some(table) = tables.get(resource) else {
            return Some(format!("zone {id}: {resource} is not in the checkpoint"));
        };
        if table.total != amount.0 {
            return Some(format!(
                "zone {id}: the checkpoint has {} of {resource}, the host has {amount}",
                Bytes(table.total)
            ));
        }
        let reserved_amount = reserved.get(resource).copied().unwrap_or_default();
        if table.system_reserved != reserved_amount.0 {
            return Some(format!(
                "zone {id}: the checkpoint reserves {} of {resource}, reservedMemory has {}",
                Bytes(table.system_reserved),
                reserved_amount
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu_state(policy: &str, shared: &str, pod: &str) -> CpuManagerState {
        let entries =
            if pod.is_empty() { "{}".to_owned() } else { format!(r#"{{"uid":{{"c":"{pod}"}}}}"#) };
        serde_json::from_str(&format!(
            r#"{{"policyName":"{policy}","defaultCpuSet":"{shared}","entries":{entries}}}"#
        ))
        .unwrap()
    }

    fn cpu_config(policy: &str, reserved: &str, options: &[&str]) -> KubeletConfig {
        KubeletConfig {
            cpu_manager_policy: policy.to_owned(),
            reserved_system_cpus: Some(reserved.parse().unwrap()),
            cpu_manager_policy_options: options
                .iter()
                .map(|name| ((*name).to_owned(), "true".to_owned()))
                .collect(),
            ..KubeletConfig::default()
        }
    }

    fn config_without_cpu_list(options: &[&str]) -> KubeletConfig {
        KubeletConfig { reserved_system_cpus: None, ..cpu_config("static", "", options) }
    }

    #[test]
    fn cpu_checkpoint_is_validated_as_in_the_kubelet() {
        let strict = ["strict-cpu-reservation"];
        for (state, config, fault) in [
            (cpu_state("static", "0-7", ""), cpu_config("static", "0", &[]), None),
            (cpu_state("static", "0-3,6-7", "4-5"), cpu_config("static", "0", &[]), None),
            (cpu_state("static", "", ""), cpu_config("static", "0", &[]), None),
            (cpu_state("none", "", ""), cpu_config("none", "0", &[]), None),
            (
                cpu_state("none", "", ""),
                cpu_config("static", "0", &[]),
                Some("written with policy none"),
            ),
            (
                cpu_state("static", "0-3", ""),
                cpu_config("static", "0", &[]),
                Some("CPUs 4-7 are online"),
            ),
            (cpu_state("static", "0-8", ""), cpu_config("static", "0", &[]), Some("has CPUs 8,")),
            (
                cpu_state("static", "1-7", "0"),
                cpu_config("static", "0", &[]),
                Some("reserved CPUs 0 are not"),
            ),
            (
                cpu_state("static", "0-7", "4"),
                cpu_config("static", "0", &[]),
                Some("CPUs 4 are allocated to pod uid"),
            ),
            (
                cpu_state("static", "", "0-7"),
                cpu_config("static", "0", &[]),
                Some("the shared pool is empty"),
            ),
            (cpu_state("static", "1-7", ""), cpu_config("static", "0", &strict), None),
            (
                cpu_state("static", "0-7", ""),
                cpu_config("static", "0", &strict),
                Some("strictly reserved"),
            ),
            (cpu_state("static", "2-7", ""), config_without_cpu_list(&strict), None),
            (cpu_state("static", "2-8", ""), config_without_cpu_list(&strict), Some("has CPUs 8,")),
        ] {
            let found = find_cpu_state_error(&state, &config, &"0-7".parse().unwrap());
            match fault {
                None => assert_eq!(found, None),
                Some(words) => {
                    assert!(found.as_deref().is_some_and(|f| f.contains(words)), "{found:?}")
                }
            }
        }
    }

    #[test]
    fn changed_zone_memory_is_reported_with_both_amounts() {
        let text = r#"{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":{"total":1073741824,
            "systemReserved":1024}}}}}"#;
        let state: MemoryManagerState = serde_json::from_str(text).unwrap();
        let reserved = |bytes| BTreeMap::from([("memory".to_owned(), Bytes(bytes))]);
        let config = KubeletConfig {
            memory_manager_policy: "Static".to_owned(),
            reserved_memory: BTreeMap::from([(0, reserved(1024))]),
            ..KubeletConfig::default()
        };
        let zone = |bytes| Zone { memory: Some(Bytes(bytes)), ..Zone::default() };
        assert_eq!(find_memory_state_error(&state, &config, &[zone(1 << 30)]), None);
        assert_eq!(
            find_memory_state_error(&state, &config, &[zone((1 << 30) - 4096)]).as_deref(),
            Some("zone 0: the checkpoint has 1Gi of memory, the host has 1048572Ki")
        );
        let two = [zone(1 << 30), Zone { id: 1, ..Zone::default() }];
        assert_eq!(
            find_memory_state_error(&state, &config, &two).as_deref(),
            Some("zone 1 is not in the checkpoint")
        );
        let other_zone = [Zone { id: 1, ..Zone::default() }];
        assert_eq!(
            find_memory_state_error(&state, &config, &other_zone).as_deref(),
            Some("the checkpoint has zone 0, which this host does not have")
        );
        assert_eq!(find_memory_state_error(&state, &config, &[]), None, "the zones are unknown");
        let more =
            KubeletConfig { reserved_memory: BTreeMap::from([(0, reserved(2048))]), ..config };
        assert_eq!(
            find_memory_state_error(&state, &more, &[zone(1 << 30)]).as_deref(),
            Some("zone 0: the checkpoint reserves 1Ki of memory, reservedMemory has 2Ki")
        );
    }
}
