//! Checks that the kubelet can start again, and that it places pinned VMs on exclusive CPUs and in one zone. Without
//! these checks, a fault that prevents the kubelet from starting would be noticed only at its next restart.

use berth_api::Bytes;
use berth_api::infra_node::UnknownReason;

use super::definition::Check;
use super::input::Input;
use crate::plan::kubelet::{next_start_failure, restart_procedure};
use berth_host_facts::kubelet::checkpoints::{find_cpu_state_error, find_memory_state_error};
use berth_host_facts::kubelet::{KubeletConfig, RunningConfig};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kubelet.config",
        title: "kubelet configuration is valid",
        explanation: "The kubelet refuses to start if its configuration is missing, does not parse or has an \
            unknown value. Other checks that depend on an invalid value are skipped.",
        run: check_config,
    },
    Check {
        id: "kubelet.started-with",
        title: "kubelet runs with its current configuration",
        explanation: "The kubelet reads its configuration when it starts. If its files changed since then, it admits pods \
            by the old values, and Berth reports the old values. If the old values are unknown, Berth reports none, and \
            no pinned VM is placed here.",
        run: check_running_config,
    },
    Check {
        id: "kubelet.cpu-state",
        title: "cpu_manager_state matches the configuration",
        explanation: "The kubelet refuses to start if its CPU checkpoint has another policy, other CPUs, or lacks \
            the reserved CPUs: after a change of the configuration, of the firmware, or of the online CPUs.",
        run: check_cpu_state,
    },
    Check {
        id: "kubelet.memory-state",
        title: "memory_manager_state matches the host",
        explanation: "The kubelet refuses to start if the memory or huge pages of a zone differ from its memory \
            checkpoint: even by a few kilobytes after a kernel update, or because huge pages were added.",
        run: check_memory_state,
    },
    Check {
        id: "kubelet.reserved",
        title: "CPUs are reserved for the system",
        explanation: "With the static policy the kubelet must reserve at least one CPU for the system, by list \
            (reservedSystemCPUs) or by amount, and all listed CPUs must be online.",
        run: check_reserved_cpus,
    },
    Check {
        id: "kubelet.reserved-memory",
        title: "reservedMemory adds up",
        explanation: "With the Memory Manager's policy Static the kubelet refuses to start unless reservedMemory, \
            summed over zones, is exactly kubeReserved plus systemReserved plus the hard eviction threshold of \
            memory (100Mi unless set).",
        run: check_reserved_memory,
    },
    Check {
        id: "kubelet.zone-limit",
        title: "NUMA zones within the Topology Manager's limit",
        explanation: "With any policy other than none, the Topology Manager refuses to start on a host with more than 8 \
            NUMA zones, unless its option max-allowable-numa-nodes allows more. EPYC hosts have up to 32 zones with \
            NPS4 or with L3 caches as NUMA nodes.",
        run: check_zone_limit,
    },
    Check {
        id: "kubelet.policies",
        title: "kubelet policies for pinned VMs",
        explanation: "VMs with dedicatedCpuPlacement need cpuManagerPolicy static; guests with NUMA passthrough \
            also need topologyManagerPolicy single-numa-node or restricted, and the Memory Manager Static.",
        run: check_policies,
    },
    Check {
        id: "kubelet.swap",
        title: "swap is off or allowed by the kubelet",
        explanation: "With failSwapOn (the default) the kubelet refuses to start while swap is on.",
        run: check_swap,
    },
];

/// Returns the steps that remove a checkpoint that the kubelet would refuse.
fn checkpoint_removal_steps(input: &Input, file: &str) -> String {
    restart_procedure(input.facts, &[file.to_owned()])
}

/// Returns the outcome of a fault that prevents the kubelet from starting. The outcome is only a warning if no kubelet
/// runs, because the command line of its next start is then not certain.
fn start_failure_outcome(input: &Input, fault: &str) -> Outcome {
    if input.facts.kubelet.pid.is_some() {
        Outcome::fail(format!("the kubelet will not start again: {fault}"))
    } else {
        Outcome::warn(format!("according to its files, the kubelet will not start: {fault}"))
    }
}

/// Returns the outcome of a check that is skipped, because the kubelet's configuration is unknown.
fn skip_without_config(input: &Input) -> Outcome {
    let fault = input.facts.kubelet.config_error.as_ref().map(|(_, message)| message.clone());
    Outcome::skip(fault.unwrap_or_else(|| "no kubelet configuration was found".to_owned()))
}

/// Returns the configuration if it is known and the kubelet accepts every value in it; otherwise the outcome of a
/// skipped check.
fn valid_config<'a>(input: &Input<'a>) -> Result<&'a KubeletConfig, Outcome> {
    match &input.facts.kubelet.config {
        None => Err(skip_without_config(input)),
        Some(config) if !config.invalid_fields.is_empty() => Err(Outcome::skip(
            "the configuration has values that the kubelet does not accept, see kubelet.config",
        )),
        Some(config) => Ok(config),
    }
}

fn check_config(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    if let Some((reason, message)) = &kubelet.config_error {
        // A missing file is a fault only if the command line of a running kubelet contains its
        // path.
        let broken = *reason == UnknownReason::Malformed
            || *reason == UnknownReason::NotFound && kubelet.pid.is_some();
        return if broken {
            start_failure_outcome(input, message)
                .with_evidence("kubelet configuration", message)
                .remedy(format!(
                    "correct the file, then: systemctl restart {}; journalctl -u {0} -n 20",
                    kubelet.systemd_unit
                ))
        } else {
            Outcome::skip(message.clone())
        };
    }
    let Some(config) = &kubelet.config else { return skip_without_config(input) };
    let sources = kubelet.sources.join(", ");
    if config.invalid_fields.is_empty() {
        return Outcome::pass("the kubelet accepts all values that VMs depend on")
            .with_evidence(sources, "read");
    }
    let faults: Vec<&str> = config.invalid_fields.values().map(String::as_str).collect();
    start_failure_outcome(input, &faults.join("; ")).with_evidence(sources, faults.join("; ")).remedy(
        "correct the value; valid are cpuManagerPolicy none, static; topologyManagerPolicy none, best-effort, \
         restricted, single-numa-node; topologyManagerScope container, pod; memoryManagerPolicy None, Static",
    )
}

fn check_running_config(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let sources = kubelet.sources.join(", ");
    let (message, evidence) = match &kubelet.running_config {
        RunningConfig::NotRunning => return Outcome::skip("no kubelet is running"),
        _ if kubelet.config.is_none() => return skip_without_config(input),
        RunningConfig::Unknown(reason) => (
            "the configuration that the kubelet was started with is unknown".to_owned(),
            reason.clone(),
        ),
        RunningConfig::Known(_) => match kubelet.fields_pending_restart() {
            fields if fields.is_empty() => {
                return Outcome::pass("the kubelet runs with the configuration in its files")
                    .with_evidence(sources, "unchanged since it started");
            }
            fields => {
                let fields = fields.join(", ");
                (format!("{fields}: changed since the kubelet was started"), fields)
            }
        },
    };
    let remedy = next_start_failure(input.facts).map_or_else(
        || format!("systemctl restart {}", kubelet.systemd_unit),
        |refused| refused.remedy,
    );
    Outcome::warn(message).with_evidence(sources, evidence).remedy(remedy)
}

/// Returns the outcome of a check whose checkpoint could not be read. A damaged checkpoint prevents the kubelet from
/// starting; without a readable checkpoint, the check is skipped.
fn unreadable_checkpoint(input: &Input, name: &str) -> Outcome {
    let file = format!("{}/{name}", input.facts.kubelet.root_dir);
    match input.facts.kubelet.checkpoint_errors.get(name) {
        None => Outcome::skip(format!("{file} does not exist")),
        Some((UnknownReason::Malformed, message)) => {
            start_failure_outcome(input, &format!("its checkpoint is damaged: {message}"))
                .with_evidence(&file, message)
                .remedy(checkpoint_removal_steps(input, &file))
        }
        Some((_, message)) => Outcome::skip(message.clone()),
    }
}

fn check_cpu_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/cpu_manager_state", kubelet.root_dir);
    let Some(state) = &kubelet.cpu_state else {
        return unreadable_checkpoint(input, "cpu_manager_state");
    };
    let config = match valid_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    let online = &input.facts.topology.online;
    if config.reserved_system_cpus.as_ref().is_some_and(|cpus| !cpus.is_subset(online)) {
        return Outcome::skip("reserved CPUs are not online, see kubelet.reserved");
    }
    match find_cpu_state_error(state, config, online) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .with_evidence(file, &state.default_cpu_set),
        Some(fault) => start_failure_outcome(input, &fault)
            .with_evidence(
                &file,
                format!("policy {}, CPUs {}", state.policy_name, state.all_cpus()),
            )
            .with_evidence("/sys/devices/system/cpu/online", online)
            .remedy(checkpoint_removal_steps(input, &file)),
    }
}

fn check_memory_state(input: &Input) -> Outcome {
    let kubelet = &input.facts.kubelet;
    let file = format!("{}/memory_manager_state", kubelet.root_dir);
    let Some(state) = &kubelet.memory_state else {
        return unreadable_checkpoint(input, "memory_manager_state");
    };
    let config = match valid_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    match find_memory_state_error(state, config, &input.facts.zones) {
        None => Outcome::pass(format!("policy {}", state.policy_name))
            .with_evidence(file, format!("{} zones", state.machine_state.len())),
        Some(fault) => start_failure_outcome(input, &fault)
            .with_evidence(
                &file,
                format!("policy {}, {} zones", state.policy_name, state.machine_state.len()),
            )
            .remedy(checkpoint_removal_steps(input, &file)),
    }
}

fn check_reserved_cpus(input: &Input) -> Outcome {
    let config = match valid_config(input) {
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
            .with_evidence("reservedSystemCPUs", reserved)
            .with_evidence("/sys/devices/system/cpu/online", online)
            .remedy(format!("reservedSystemCPUs: \"{}\"", reserved.intersection(online)))
        }
        Some(reserved) if !online.is_empty() && online.is_subset(reserved) => {
            Outcome::fail("every CPU is reserved; no CPU is left for VMs")
                .with_evidence("reservedSystemCPUs", reserved)
                .remedy("reserve one or two cores per zone")
        }
        Some(reserved) => {
            Outcome::pass(format!("CPUs {reserved}")).with_evidence("reservedSystemCPUs", reserved)
        }
        None if config.cpu_manager_policy != "static" => {
            Outcome::skip("no CPU is reserved by list, and cpuManagerPolicy none does not need it")
        }
        None if config.reserves_cpu_by_amount => Outcome::warn(
            "CPUs are reserved by amount: the kubelet does not report which CPUs it selects",
        )
        .with_evidence("kubeReserved, systemReserved", "cpu by amount")
        .remedy(
            "list the CPUs: reservedSystemCPUs in the kubelet's configuration, on a drained node",
        ),
        None => Outcome::fail("the static policy has no reserved CPUs: the kubelet will not start")
            .with_evidence("cpuManagerPolicy", "static")
            .with_evidence("reservedSystemCPUs", "")
            .remedy("set reservedSystemCPUs in the kubelet's configuration"),
    }
}

fn check_reserved_memory(input: &Input) -> Outcome {
    let config = match valid_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    if config.memory_manager_policy != "Static" {
        return Outcome::skip("the Memory Manager is off, so reservedMemory is not used");
    }
    let zones = &input.facts.zones;
    let unknown_zone =
        config.reserved_memory.keys().find(|id| zones.iter().all(|zone| zone.id != **id));
    if let Some(id) = unknown_zone {
        return start_failure_outcome(
            input,
            &format!("reservedMemory names zone {id}, which this host does not have"),
        )
        .with_evidence("reservedMemory numaNode", id)
        .remedy("name the zones of `berth-agent report` in reservedMemory");
    }
    let Some(needed) = config.node_reserved_memory(input.facts.memory.total) else {
        return Outcome::skip("the amount of memory reserved for the system is unknown");
    };
    let amounts = config.reserved_memory.values().filter_map(|zone| zone.get("memory"));
    let sum = Bytes(amounts.fold(0, |sum, amount| sum.saturating_add(amount.0)));
    let evidence = |outcome: Outcome| {
        outcome
            .with_evidence("reservedMemory", sum)
            .with_evidence("kubeReserved + systemReserved + evictionHard memory.available", needed)
    };
    if sum == needed {
        return evidence(Outcome::pass(format!("{sum}")));
    }
    let share = Bytes(needed.0 / zones.len().max(1) as u64);
    evidence(start_failure_outcome(
        input,
        &format!("reservedMemory adds up to {sum}, but {needed} is reserved for the system"),
    ))
    .remedy(format!(
        "make reservedMemory add up to {needed}, for example {share} in each of {} zones",
        zones.len()
    ))
}

fn check_policies(input: &Input) -> Outcome {
    let config = match valid_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    let sources = &input.facts.kubelet.sources;
    let source =
        if sources.is_empty() { "the kubelet's defaults".to_owned() } else { sources.join(", ") };
    let policy_summary = format!(
        "cpuManagerPolicy {}, topologyManagerPolicy {}, memoryManagerPolicy {}",
        config.cpu_manager_policy, config.topology_manager_policy, config.memory_manager_policy
    );
    let message = if config.cpu_manager_policy != "static" {
        "VMs with dedicatedCpuPlacement cannot run here: cpuManagerPolicy is none"
    } else if matches!(config.topology_manager_policy.as_str(), "none" | "best-effort")
        && input.facts.zones.len() > 1
    {
        "pinned VMs may be spread over several zones: topologyManagerPolicy is not strict"
    } else {
        let memory = if config.memory_manager_policy == "Static" {
            "pinned VMs get exclusive CPUs and NUMA-local memory"
        } else {
            "pinned VMs get exclusive CPUs; their memory may come from other zones (memoryManagerPolicy None)"
        };
        return Outcome::pass(memory).with_evidence(source, policy_summary);
    };
    Outcome::warn(message).with_evidence(source, policy_summary).remedy(
        "cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node, reservedSystemCPUs: \"...\" in \
         the kubelet's configuration; these fields take effect on a drained node after cpu_manager_state was removed",
    )
}

/// Default limit of NUMA zones of the Topology Manager (`maxAllowableNUMANodes`).
const DEFAULT_MAX_ZONES: usize = 8;

fn check_zone_limit(input: &Input) -> Outcome {
    let config = match valid_config(input) {
        Ok(config) => config,
        Err(skipped) => return skipped,
    };
    let count = input.facts.zones.len();
    let option = config.topology_manager_policy_options.get("max-allowable-numa-nodes");
    let limit = option.and_then(|value| value.parse().ok()).unwrap_or(DEFAULT_MAX_ZONES);
    let policy = &config.topology_manager_policy;
    if count > limit && policy != "none" {
        start_failure_outcome(input, &format!("the host has {count} zones, and the Topology Manager accepts at most {limit}"))
            .with_evidence("/sys/devices/system/node", format!("{count} nodes"))
            .with_evidence("topologyManagerPolicy", policy)
            .remedy(format!(
                "topologyManagerPolicyOptions: {{max-allowable-numa-nodes: \"{count}\"}} in the kubelet's \
                 configuration, or fewer nodes per socket (NPS) in the firmware setup"
            ))
    } else {
        Outcome::pass(format!("{count} of at most {limit} zones"))
            .with_evidence("/sys/devices/system/node", format!("{count} nodes"))
    }
}

fn check_swap(input: &Input) -> Outcome {
    let (Some(swap), Some(config)) = (input.facts.memory.swap, &input.facts.kubelet.config) else {
        return Outcome::skip("swap or the kubelet's configuration is unknown");
    };
    let evidence = |outcome: Outcome| {
        outcome
            .with_evidence("/proc/meminfo SwapTotal", swap)
            .with_evidence("failSwapOn", config.fail_swap_on)
    };
    if swap.0 > 0 && config.fail_swap_on {
        evidence(start_failure_outcome(input, "swap is on, and failSwapOn is true"))
            .remedy("swapoff -a and remove swap from /etc/fstab, or failSwapOn: false")
    } else {
        evidence(Outcome::pass("swap and failSwapOn do not conflict"))
    }
}
