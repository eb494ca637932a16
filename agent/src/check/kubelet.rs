//! Will the kubelet start again, and does it place VMs as pinned VMs need.
//!
//! Rules: `pkg/kubelet/cm/cpumanager/policy_static.go` (validateState) and
//! `pkg/kubelet/cm/memorymanager/policy_static.go`; a checkpoint that breaks one keeps the kubelet
//! from starting, which shows only at the next restart.

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

fn remove(file: &str) -> String {
    format!(
        "kubectl drain <node>, then: systemctl stop kubelet && rm {file} && systemctl start kubelet, then kubectl uncordon <node>"
    )
}

fn cpu_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/cpu_manager_state", kubelet.folder);
    let Some(state) = &kubelet.cpu_state else {
        return Outcome::skip("there is no cpu_manager_state, or it may not be read");
    };
    let Some(config) = &kubelet.config else {
        return Outcome::skip("no kubelet configuration was found to compare it with");
    };
    match cpu_state_fault(state, config, &input.facts.topology.online) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .because(file, &state.default_cpu_set),
        Some(fault) => Outcome::fail(format!("the kubelet will not start again: {fault}"))
            .because(&file, format!("policy {}, CPUs {}", state.policy_name, state.all()))
            .because("/sys/devices/system/cpu/online", &input.facts.topology.online)
            .remedy(remove(&file)),
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
    let expected = if strict { online.difference(reserved) } else { online.clone() };
    let known = state.all();
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
        return Outcome::skip("no kubelet configuration was found to compare it with");
    };
    match memory_state_fault(state, config, &input.facts.zones) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .because(file, format!("{} zones", state.machine_state.len())),
        Some(fault) => Outcome::fail(format!("the kubelet will not start again: {fault}"))
            .because(
                &file,
                format!("policy {}, {} zones", state.policy_name, state.machine_state.len()),
            )
            .remedy(remove(&file)),
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
            node.memory_map.iter().find_map(|(resource, table)| differs(zone, resource, table))
        }
    })
}

fn differs(zone: &Zone, resource: &str, table: &MemoryTable) -> Option<String> {
    let now = match page_size(resource) {
        Some(size) => {
            let pool = zone.hugepages.iter().find(|pool| pool.size == size);
            pool.map(|pool| Bytes(pool.total.saturating_mul(size.bytes())))
        }
        None if resource == "memory" => zone.memory,
        None => None,
    }?;
    (now.0 != table.total)
        .then(|| format!("zone {}: {resource} was {}, now {now}", zone.id, Bytes(table.total)))
}

fn reserved(input: &Input) -> Outcome {
    let Some(config) = &input.facts.kubelet.config else {
        return Outcome::skip("no kubelet configuration was found");
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
        return Outcome::skip("no kubelet configuration was found");
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

fn swap(input: &Input) -> Outcome {
    let (Some(swap), Some(config)) = (input.facts.memory.swap, &input.facts.kubelet.config) else {
        return Outcome::skip("swap or the kubelet's configuration is not known");
    };
    let evidence = |outcome: Outcome| {
        outcome.because("/proc/meminfo SwapTotal", swap).because("failSwapOn", config.fail_swap_on)
    };
    if swap.0 > 0 && config.fail_swap_on {
        evidence(Outcome::fail("swap is on, and this kubelet refuses to start with it"))
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
        let text = r#"{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":{"total":1073741824}}}}}"#;
        let state: MemoryManagerState = serde_json::from_str(text).unwrap();
        let config = KubeletConfig {
            memory_manager_policy: "Static".to_owned(),
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
    }
}
