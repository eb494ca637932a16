//! Will the kubelet start again, and does it place VMs as pinned VMs need.
//!
//! Rules: `pkg/kubelet/cm/cpumanager/policy_static.go` (validateState) and
//! `pkg/kubelet/cm/memorymanager/policy_static.go`; a checkpoint that breaks one keeps the kubelet
//! from starting, which shows only at the next restart.

use std::collections::BTreeMap;

use berth_api::infra_node::Zone;
use berth_api::{Bytes, CpuSet};

use super::{Check, Input, Outcome};
use crate::observe::kubelet::memory_state::{MemoryTable, page_size};
use crate::observe::kubelet::{CpuManagerState, KubeletConfig, MemoryManagerState};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kubelet.cpu-state",
        title: "cpu_manager_state fits",
        explanation: "The kubelet refuses to start when its CPU checkpoint was written under another policy, \
            for other CPUs, or without the reserved ones: after a change of configuration, of the firmware, or \
            of CPUs online.",
        run: cpu_state,
    },
    Check {
        id: "kubelet.memory-state",
        title: "memory_manager_state fits",
        explanation: "The kubelet refuses to start when memory or huge pages of a zone differ from its memory \
            checkpoint, be it by a few kilobytes after a kernel update, or because pages were added.",
        run: memory_state,
    },
    Check {
        id: "kubelet.reserved",
        title: "reserved CPUs",
        explanation: "With the static policy the kubelet must keep at least one CPU for the system, by name \
            (reservedSystemCPUs) or amount, and names must be CPUs that are online.",
        run: reserved,
    },
    Check {
        id: "kubelet.zone-limit",
        title: "zones the Topology Manager takes",
        explanation: "With any policy but none the Topology Manager refuses to start on a host of more than 8 \
            NUMA zones, unless its option max-allowable-numa-nodes says more. EPYC hosts have up to 32 with \
            NPS4 or L3 caches as NUMA.",
        run: zone_limit,
    },
    Check {
        id: "kubelet.policies",
        title: "policies for pinned VMs",
        explanation: "VMs with dedicatedCpuPlacement need cpuManagerPolicy static; guests with NUMA passthrough \
            also want topologyManagerPolicy single-numa-node or restricted, and the Memory Manager Static.",
        run: policies,
    },
    Check {
        id: "kubelet.swap",
        title: "swap and the kubelet",
        explanation: "A kubelet with failSwapOn (the default) refuses to start while swap is on.",
        run: swap,
    },
];

/// The way out of a checkpoint that does not fit. The node must be empty first: without the checkpoint
/// the kubelet forgets which CPUs and pages are whose.
fn remove(input: &Input, file: &str) -> String {
    let name = input.facts.name.as_deref().unwrap_or("NODE");
    let unit = &input.facts.kubelet.unit;
    format!(
        "kubectl drain {name} --ignore-daemonsets --delete-emptydir-data; on the host: systemctl stop {unit} && \
         rm {file} && systemctl start {unit}; then: kubectl uncordon {name}"
    )
}

/// A fault the kubelet would not start with. How a kubelet that does not run will be started is known
/// only as far as files tell.
fn will_not_start(input: &Input, fault: &str) -> Outcome {
    if input.facts.kubelet.pid.is_some() {
        Outcome::fail(format!("the kubelet will not start again: {fault}"))
    } else {
        Outcome::warn(format!("as far as files tell, the kubelet will not start: {fault}"))
    }
}

/// Why there is no configuration to compare with.
fn no_config(input: &Input) -> Outcome {
    let fact = input.facts.notes.unknown.iter().find(|fact| fact.path == "capabilities.kubelet");
    let why = fact.and_then(|fact| fact.message.clone());
    Outcome::skip(why.unwrap_or_else(|| "no kubelet configuration was found".to_owned()))
}

fn cpu_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/cpu_manager_state", kubelet.folder);
    let Some(state) = &kubelet.cpu_state else {
        return Outcome::skip("there is no cpu_manager_state, or it may not be read");
    };
    let Some(config) = &kubelet.config else {
        return no_config(input);
    };
    match cpu_state_fault(state, config, &input.facts.topology.online) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .because(file, &state.default_cpu_set),
        Some(fault) => will_not_start(input, &fault)
            .because(&file, format!("policy {}, CPUs {}", state.policy_name, state.all()))
            .because("/sys/devices/system/cpu/online", &input.facts.topology.online)
            .remedy(remove(input, &file)),
    }
}

/// What the kubelet's own validation would say, in the order it asks.
fn cpu_state_fault(
    state: &CpuManagerState,
    config: &KubeletConfig,
    online: &CpuSet,
) -> Option<String> {
    if state.policy_name != config.cpu_manager_policy {
        return Some(format!(
            "the checkpoint is of policy {}, the configuration says {}",
            state.policy_name, config.cpu_manager_policy
        ));
    }
    if state.policy_name != "static" {
        return None;
    }
    let none = CpuSet::new();
    let reserved = config.reserved_system_cpus.as_ref().unwrap_or(&none);
    let strict = config.cpu_option("strict-cpu-reservation");
    let shared = &state.default_cpu_set;
    if shared.is_empty() {
        return (!state.entries.is_empty())
            .then(|| "CPUs are handed out, but none is left to share".to_owned());
    }
    if strict && reserved.intersects(shared) {
        return Some(format!(
            "strictly reserved CPUs {} are in the shared pool",
            reserved.intersection(shared)
        ));
    }
    if !strict && !reserved.is_subset(shared) {
        return Some(format!(
            "reserved CPUs {} are not in the shared pool",
            reserved.difference(shared)
        ));
    }
    if let Some((pod, cpus)) = state.by_pod().into_iter().find(|(_, cpus)| cpus.intersects(shared))
    {
        return Some(format!(
            "CPUs {} are pod {pod}'s and shared at once",
            cpus.intersection(shared)
        ));
    }
    let known = state.all();
    // With CPUs reserved by amount the kubelet chose which; strictly reserved ones are in no set.
    let chosen = strict && config.reserved_system_cpus.is_none();
    let expected = match (strict, chosen) {
        (true, true) => online.intersection(&known),
        (true, false) => online.difference(reserved),
        (false, _) => online.clone(),
    };
    if online.is_empty() || known == expected {
        return None;
    }
    let (gone, new) = (known.difference(&expected), expected.difference(&known));
    Some(match (gone.is_empty(), new.is_empty()) {
        (false, _) => format!("the checkpoint has CPUs {gone}, which are not online"),
        _ => format!("CPUs {new} are online, but not in the checkpoint"),
    })
}

fn memory_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/memory_manager_state", kubelet.folder);
    let Some(state) = &kubelet.memory_state else {
        return Outcome::skip("there is no memory_manager_state, or it may not be read");
    };
    let Some(config) = &kubelet.config else {
        return no_config(input);
    };
    match memory_state_fault(state, config, &input.facts.zones) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .because(file, format!("{} zones", state.machine_state.len())),
        Some(fault) => will_not_start(input, &fault)
            .because(
                &file,
                format!("policy {}, {} zones", state.policy_name, state.machine_state.len()),
            )
            .remedy(remove(input, &file)),
    }
}

fn memory_state_fault(
    state: &MemoryManagerState,
    config: &KubeletConfig,
    zones: &[Zone],
) -> Option<String> {
    if state.policy_name != config.memory_manager_policy {
        return Some(format!(
            "the checkpoint is of policy {}, the configuration says {}",
            state.policy_name, config.memory_manager_policy
        ));
    }
    if state.policy_name != "Static" || state.machine_state.is_empty() {
        return None;
    }
    if let Some(id) =
        state.machine_state.keys().find(|id| !zones.iter().any(|zone| zone.id == **id))
    {
        return Some(format!("the checkpoint has zone {id}, which this host has not"));
    }
    zones.iter().find_map(|zone| match state.machine_state.get(&zone.id) {
        None => Some(format!("zone {} is not in the checkpoint", zone.id)),
        Some(node) => {
            let none = BTreeMap::new();
            let reserved = config.reserved_memory.get(&zone.id).unwrap_or(&none);
            zone_fault(zone, &node.memory_map, reserved)
        }
    })
}

/// What the kubelet compares for each zone: which resources there are, how much of each, how much is
/// kept for the system, and how much of the memory is left to promise.
fn zone_fault(
    zone: &Zone,
    tables: &BTreeMap<String, MemoryTable>,
    reserved: &BTreeMap<String, Bytes>,
) -> Option<String> {
    let id = zone.id;
    let mut now: BTreeMap<String, Bytes> = BTreeMap::new();
    for pool in &zone.hugepages {
        let bytes = Bytes(pool.total.saturating_mul(pool.size.bytes()));
        now.insert(format!("hugepages-{}", pool.size), bytes);
    }
    // Without pools or MemTotal of the zone there is nothing to compare with.
    let pages_known = !now.is_empty();
    now.extend(zone.memory.map(|memory| ("memory".to_owned(), memory)));
    let gone = tables
        .keys()
        .find(|name| page_size(name).is_some() && pages_known && !now.contains_key(*name));
    if let Some(resource) = gone {
        return Some(format!(
            "zone {id}: {resource} is in the checkpoint, and this kernel has none"
        ));
    }
    for (resource, amount) in &now {
        let Some(table) = tables.get(resource) else {
            return Some(format!("zone {id}: {resource} is not in the checkpoint"));
        };
        if table.total != amount.0 {
            return Some(format!("zone {id}: {resource} was {}, now {amount}", Bytes(table.total)));
        }
        let kept = reserved.get(resource).copied().unwrap_or_default();
        if table.system_reserved != kept.0 {
            return Some(format!(
                "zone {id}: of {resource} {} was kept for the system, reservedMemory says {kept}",
                Bytes(table.system_reserved)
            ));
        }
    }
    None
}

fn reserved(input: &Input) -> Outcome {
    let Some(config) = &input.facts.kubelet.config else {
        return no_config(input);
    };
    let online = &input.facts.topology.online;
    match &config.reserved_system_cpus {
        Some(reserved) if !online.is_empty() && !reserved.is_subset(online) => {
            let missing = reserved.difference(online);
            Outcome::fail(format!(
                "reserved CPUs {missing} are not online: the kubelet will not start"
            ))
            .because("reservedSystemCPUs", reserved)
            .because("/sys/devices/system/cpu/online", online)
            .remedy(format!("reservedSystemCPUs: \"{}\"", reserved.intersection(online)))
        }
        Some(reserved) if !online.is_empty() && online.is_subset(reserved) => {
            Outcome::fail("every CPU is reserved; none is left for VMs")
                .because("reservedSystemCPUs", reserved)
                .remedy("reserve one or two cores per zone")
        }
        Some(reserved) => {
            Outcome::pass(format!("CPUs {reserved}")).because("reservedSystemCPUs", reserved)
        }
        None if config.cpu_manager_policy != "static" => Outcome::skip(
            "no CPU is reserved by name, and with cpuManagerPolicy none there is no need",
        ),
        None if config.reserves_cpu_by_amount => Outcome::warn(
            "CPUs are reserved by amount: the kubelet chooses which, and nobody else knows",
        )
        .because("kubeReserved, systemReserved", "cpu by amount")
        .remedy("name them: reservedSystemCPUs in the kubelet's configuration, on a drained node"),
        None => {
            Outcome::fail("the static policy without reserved CPUs: the kubelet will not start")
                .because("cpuManagerPolicy", "static")
                .because("reservedSystemCPUs", "")
                .remedy("set reservedSystemCPUs in the kubelet's configuration")
        }
    }
}

fn policies(input: &Input) -> Outcome {
    let Some(config) = &input.facts.kubelet.config else {
        return no_config(input);
    };
    let source = input.facts.kubelet.sources.last().cloned();
    let source = source.unwrap_or_else(|| "the kubelet's defaults".to_owned());
    let said = format!(
        "cpuManagerPolicy {}, topologyManagerPolicy {}, memoryManagerPolicy {}",
        config.cpu_manager_policy, config.topology_manager_policy, config.memory_manager_policy
    );
    let message = if config.cpu_manager_policy != "static" {
        "VMs with dedicatedCpuPlacement cannot run here: cpuManagerPolicy is none"
    } else if matches!(config.topology_manager_policy.as_str(), "none" | "best-effort")
        && input.facts.zones.len() > 1
    {
        "pinned VMs may be spread over zones: topologyManagerPolicy is not strict"
    } else {
        return Outcome::pass("pinned VMs get CPUs of their own").because(source, said);
    };
    Outcome::warn(message).because(source, said).remedy(
        "cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node, reservedSystemCPUs: \"...\" in \
         the kubelet's configuration; take effect on a drained node after removing cpu_manager_state",
    )
}

/// Zones the Topology Manager takes unless told otherwise (`maxAllowableNUMANodes`).
const ZONES: usize = 8;

fn zone_limit(input: &Input) -> Outcome {
    let Some(config) = &input.facts.kubelet.config else {
        return no_config(input);
    };
    let count = input.facts.zones.len();
    let option = config.topology_manager_policy_options.get("max-allowable-numa-nodes");
    let limit = option.and_then(|value| value.parse().ok()).unwrap_or(ZONES);
    let policy = &config.topology_manager_policy;
    if count > limit && policy != "none" {
        will_not_start(input, &format!("{count} zones, and the Topology Manager takes {limit}"))
            .because("/sys/devices/system/node", format!("{count} nodes"))
            .because("topologyManagerPolicy", policy)
            .remedy(format!(
                "topologyManagerPolicyOptions: {{max-allowable-numa-nodes: \"{count}\"}} in the kubelet's \
                 configuration, or fewer nodes per socket (NPS) in the firmware setup"
            ))
    } else {
        Outcome::pass(format!("{count} of {limit}"))
            .because("/sys/devices/system/node", format!("{count} nodes"))
    }
}

fn swap(input: &Input) -> Outcome {
    let (Some(swap), Some(config)) = (input.facts.memory.swap, &input.facts.kubelet.config) else {
        return Outcome::skip("swap or the kubelet's configuration is not known");
    };
    let evidence = |outcome: Outcome| {
        outcome.because("/proc/meminfo SwapTotal", swap).because("failSwapOn", config.fail_swap_on)
    };
    if swap.0 > 0 && config.fail_swap_on {
        evidence(will_not_start(input, "swap is on, and failSwapOn is set"))
            .remedy("swapoff -a and remove swap from /etc/fstab, or failSwapOn: false")
    } else {
        evidence(Outcome::pass("no conflict"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(policy: &str, shared: &str, pod: &str) -> CpuManagerState {
        let entries =
            if pod.is_empty() { "{}".to_owned() } else { format!(r#"{{"uid":{{"c":"{pod}"}}}}"#) };
        serde_json::from_str(&format!(
            r#"{{"policyName":"{policy}","defaultCpuSet":"{shared}","entries":{entries}}}"#
        ))
        .unwrap()
    }

    fn config(policy: &str, reserved: &str, options: &[&str]) -> KubeletConfig {
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

    fn by_amount(options: &[&str]) -> KubeletConfig {
        KubeletConfig { reserved_system_cpus: None, ..config("static", "", options) }
    }

    #[test]
    fn cpu_checkpoints_are_judged_as_the_kubelet_does() {
        let strict = ["strict-cpu-reservation"];
        for (state, config, fault) in [
            (state("static", "0-7", ""), config("static", "0", &[]), None),
            (state("static", "0-3,6-7", "4-5"), config("static", "0", &[]), None),
            (state("static", "", ""), config("static", "0", &[]), None),
            (state("none", "", ""), config("none", "0", &[]), None),
            (state("none", "", ""), config("static", "0", &[]), Some("is of policy none")),
            (state("static", "0-3", ""), config("static", "0", &[]), Some("CPUs 4-7 are online")),
            (state("static", "0-8", ""), config("static", "0", &[]), Some("has CPUs 8,")),
            (
                state("static", "1-7", "0"),
                config("static", "0", &[]),
                Some("reserved CPUs 0 are not"),
            ),
            (state("static", "0-7", "4"), config("static", "0", &[]), Some("CPUs 4 are pod uid's")),
            (state("static", "", "0-7"), config("static", "0", &[]), Some("none is left")),
            (state("static", "1-7", ""), config("static", "0", &strict), None),
            (state("static", "0-7", ""), config("static", "0", &strict), Some("strictly reserved")),
            (state("static", "2-7", ""), by_amount(&strict), None),
            (state("static", "2-8", ""), by_amount(&strict), Some("has CPUs 8,")),
        ] {
            let found = cpu_state_fault(&state, &config, &"0-7".parse().unwrap());
            match fault {
                None => assert_eq!(found, None),
                Some(words) => {
                    assert!(found.as_deref().is_some_and(|f| f.contains(words)), "{found:?}")
                }
            }
        }
    }

    #[test]
    fn a_zone_that_grew_or_shrank_is_named_with_both_numbers() {
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
        assert_eq!(memory_state_fault(&state, &config, &[zone(1 << 30)]), None);
        assert_eq!(
            memory_state_fault(&state, &config, &[zone((1 << 30) - 4096)]).as_deref(),
            Some("zone 0: memory was 1Gi, now 1048572Ki")
        );
        let two = [zone(1 << 30), Zone { id: 1, ..Zone::default() }];
        assert_eq!(
            memory_state_fault(&state, &config, &two).as_deref(),
            Some("zone 1 is not in the checkpoint")
        );
        assert!(memory_state_fault(&state, &config, &[]).is_some());
        let more =
            KubeletConfig { reserved_memory: BTreeMap::from([(0, reserved(2048))]), ..config };
        assert_eq!(
            memory_state_fault(&state, &more, &[zone(1 << 30)]).as_deref(),
            Some("zone 0: of memory 1Ki was kept for the system, reservedMemory says 2Ki")
        );
    }
}
