//! Will the kubelet start again, and does it place VMs as pinned VMs need. What keeps it from starting
//! shows only at its next restart, so it is said before.

use berth_api::Bytes;
use berth_api::infra_node::UnknownReason;

use super::checkpoints::{cpu_state_fault, memory_state_fault};
use super::{Check, Input, Outcome};
use crate::observe::kubelet::{KubeletConfig, StartedWith};
use crate::plan::kubelet::{drain_stop_remove_start, next_start};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kubelet.config",
        title: "configuration the kubelet takes",
        explanation: "A kubelet whose configuration is missing, does not parse, or has a value it does not know \
            refuses to start. Other checks that depend on a broken value are skipped.",
        run: config,
    },
    Check {
        id: "kubelet.started-with",
        title: "the configuration is in force",
        explanation: "A kubelet reads its configuration when it starts. If its files were changed since, it admits pods \
            by the old values, and Berth reports those; if that is not known, it reports none, and no pinned VM is \
            placed here.",
        run: started_with,
    },
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
        id: "kubelet.reserved-memory",
        title: "reservedMemory adds up",
        explanation: "With the Memory Manager's policy Static the kubelet refuses to start unless reservedMemory, \
            summed over zones, is exactly kubeReserved plus systemReserved plus the hard eviction threshold of \
            memory (100Mi unless set).",
        run: reserved_memory,
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

/// Steps for a checkpoint that the kubelet refuses.
fn remove(input: &Input, file: &str) -> String {
    drain_stop_remove_start(input.facts, &[file.to_owned()])
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
    let fault = input.facts.kubelet.config_fault.as_ref().map(|(_, why)| why.clone());
    Outcome::skip(fault.unwrap_or_else(|| "no kubelet configuration was found".to_owned()))
}

/// The configuration, if there is one and every value of it is one the kubelet knows.
fn sound_config<'a>(input: &Input<'a>) -> Result<&'a KubeletConfig, Outcome> {
    match &input.facts.kubelet.config {
        None => Err(no_config(input)),
        Some(config) if !config.invalid.is_empty() => Err(Outcome::skip(
            "the configuration has values the kubelet does not know, see kubelet.config",
        )),
        Some(config) => Ok(config),
    }
}

fn config(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    if let Some((reason, why)) = &kubelet.config_fault {
        // Missing is a fault only if a running kubelet's command line names the file.
        let broken = *reason == UnknownReason::Malformed
            || *reason == UnknownReason::NotFound && kubelet.pid.is_some();
        return if broken {
            will_not_start(input, why).because("kubelet configuration", why).remedy(format!(
                "mend the file, then try it: systemctl restart {}; journalctl -u {0} -n 20",
                kubelet.unit
            ))
        } else {
            Outcome::skip(why.clone())
        };
    }
    let Some(config) = &kubelet.config else { return no_config(input) };
    let sources = kubelet.sources.join(", ");
    if config.invalid.is_empty() {
        return Outcome::pass("every value that matters here is one it knows")
            .because(sources, "read");
    }
    let faults: Vec<&str> = config.invalid.values().map(String::as_str).collect();
    will_not_start(input, &faults.join("; ")).because(sources, faults.join("; ")).remedy(
        "mend the value; known are cpuManagerPolicy none, static; topologyManagerPolicy none, best-effort, \
         restricted, single-numa-node; topologyManagerScope container, pod; memoryManagerPolicy None, Static",
    )
}

fn started_with(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let sources = kubelet.sources.join(", ");
    let (message, evidence) = match &kubelet.started_with {
        StartedWith::NotRunning => return Outcome::skip("no kubelet runs"),
        _ if kubelet.config.is_none() => return no_config(input),
        StartedWith::Unknown(why) => {
            ("what the kubelet was started with is not known".to_owned(), why.clone())
        }
        StartedWith::Known(_) => match kubelet.pending_restart() {
            fields if fields.is_empty() => {
                return Outcome::pass("the kubelet runs with what its files say")
                    .because(sources, "not changed since it started");
            }
            fields => {
                let fields = fields.join(", ");
                (format!("{fields}: changed since the kubelet was started"), fields)
            }
        },
    };
    let remedy = next_start(input.facts)
        .map_or_else(|| format!("systemctl restart {}", kubelet.unit), |refused| refused.steps);
    Outcome::warn(message).because(sources, evidence).remedy(remedy)
}

/// A checkpoint that could not be read: broken keeps the kubelet from starting, closed is no answer.
fn no_checkpoint(input: &Input, name: &str) -> Outcome {
    let file = format!("{}/{name}", input.facts.kubelet.folder);
    match input.facts.kubelet.state_faults.get(name) {
        None => Outcome::skip(format!("there is no {file}")),
        Some((UnknownReason::Malformed, why)) => {
            will_not_start(input, &format!("its checkpoint is damaged: {why}"))
                .because(&file, why)
                .remedy(remove(input, &file))
        }
        Some((_, why)) => Outcome::skip(why.clone()),
    }
}

fn cpu_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/cpu_manager_state", kubelet.folder);
    let Some(state) = &kubelet.cpu_state else {
        return no_checkpoint(input, "cpu_manager_state");
    };
    let config = match sound_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    let online = &input.facts.topology.online;
    if config.reserved_system_cpus.as_ref().is_some_and(|cpus| !cpus.is_subset(online)) {
        return Outcome::skip("reserved CPUs are not online, see kubelet.reserved");
    }
    match cpu_state_fault(state, config, online) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .because(file, &state.default_cpu_set),
        Some(fault) => will_not_start(input, &fault)
            .because(&file, format!("policy {}, CPUs {}", state.policy_name, state.all()))
            .because("/sys/devices/system/cpu/online", online)
            .remedy(remove(input, &file)),
    }
}

fn memory_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/memory_manager_state", kubelet.folder);
    let Some(state) = &kubelet.memory_state else {
        return no_checkpoint(input, "memory_manager_state");
    };
    let config = match sound_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
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

fn reserved(input: &Input) -> Outcome {
    let config = match sound_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
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

fn reserved_memory(input: &Input) -> Outcome {
    let config = match sound_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    if config.memory_manager_policy != "Static" {
        return Outcome::skip("the Memory Manager is off, so nothing need add up");
    }
    let zones = &input.facts.zones;
    let strange = config.reserved_memory.keys().find(|id| zones.iter().all(|zone| zone.id != **id));
    if let Some(id) = strange {
        return will_not_start(
            input,
            &format!("reservedMemory names zone {id}, which this host has not"),
        )
        .because("reservedMemory numaNode", id)
        .remedy("name the zones of `berth-agent report` in reservedMemory");
    }
    let Some(needed) = config.node_reserved_memory(input.facts.memory.total) else {
        return Outcome::skip("how much memory is kept for the system could not be worked out");
    };
    let amounts = config.reserved_memory.values().filter_map(|zone| zone.get("memory"));
    let sum = Bytes(amounts.fold(0, |sum, amount| sum.saturating_add(amount.0)));
    let evidence = |outcome: Outcome| {
        outcome
            .because("reservedMemory", sum)
            .because("kubeReserved + systemReserved + evictionHard memory.available", needed)
    };
    if sum == needed {
        return evidence(Outcome::pass(format!("{sum}")));
    }
    let share = Bytes(needed.0 / zones.len().max(1) as u64);
    evidence(will_not_start(
        input,
        &format!("reservedMemory adds up to {sum}, and {needed} is kept for the system"),
    ))
    .remedy(format!(
        "make reservedMemory add up to {needed}, for example {share} in each of {} zones",
        zones.len()
    ))
}

fn policies(input: &Input) -> Outcome {
    let config = match sound_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    let sources = &input.facts.kubelet.sources;
    let source =
        if sources.is_empty() { "the kubelet's defaults".to_owned() } else { sources.join(", ") };
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
        let memory = if config.memory_manager_policy == "Static" {
            "pinned VMs get CPUs and memory of their own"
        } else {
            "pinned VMs get CPUs of their own; their memory may come from other zones (memoryManagerPolicy None)"
        };
        return Outcome::pass(memory).because(source, said);
    };
    Outcome::warn(message).because(source, said).remedy(
        "cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node, reservedSystemCPUs: \"...\" in \
         the kubelet's configuration; take effect on a drained node after removing cpu_manager_state",
    )
}

/// Zones the Topology Manager takes unless told otherwise (`maxAllowableNUMANodes`).
const ZONES: usize = 8;

fn zone_limit(input: &Input) -> Outcome {
    let config = match sound_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
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
