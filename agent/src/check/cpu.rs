//! Checks of processors: NUMA zones, whole cores, and consistent CPU isolation.

use std::collections::BTreeSet;

use berth_api::CpuSet;

use super::definition::Check;
use super::input::Input;
use berth_host_facts::HostFacts;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu.zones",
        title: "NUMA zones do not overlap",
        explanation: "Every CPU belongs to exactly one NUMA zone. If the firmware lists a CPU in several zones, \
            NUMA placement by the kubelet and KubeVirt is meaningless.",
        run: check_zones,
    },
    Check {
        id: "cpu.online",
        title: "all CPUs are online",
        explanation: "Offline CPUs reduce the number of CPUs that can be pinned, and a core with one sibling \
            offline cannot be allocated as a whole core. Offline CPUs may be intended (security, power), so \
            this is a warning.",
        run: check_online_cpus,
    },
    Check {
        id: "cpu.smt-alignment",
        title: "pinned VMs get whole cores",
        explanation: "With SMT, the kubelet's static CPU manager may allocate the two threads of one core to \
            two VMs unless its option full-pcpus-only is on. Reserved CPUs must be whole cores too.",
        run: check_smt_alignment,
    },
    Check {
        id: "cpu.isolation",
        title: "isolcpus, nohz_full and reserved CPUs agree",
        explanation: "isolcpus and nohz_full list CPUs for pinned work, reservedSystemCPUs lists CPUs for the \
            system. They must not overlap, nohz_full CPUs should be isolated, and the kubelet's shared pool should \
            not contain isolated CPUs, because the scheduler does not balance load on them.",
        run: check_isolation,
    },
    Check {
        id: "cpu.irq-affinity",
        title: "interrupts stay off isolated CPUs",
        explanation: "An interrupt on an isolated or nohz_full CPU takes time from the VM pinned there. Only the \
            boot parameter isolcpus=managed_irq moves managed interrupts (NVMe, some NICs).",
        run: check_irq_affinity,
    },
    Check {
        id: "cpu.governor",
        title: "CPU frequency governor is performance",
        explanation: "With acpi-cpufreq, the governor powersave keeps the lowest frequency; with intel_pstate \
            and amd_pstate in active mode it saves power only when idle. Pinned VMs need the governor performance.",
        run: check_governor,
    },
    Check {
        id: "cpu.hybrid",
        title: "all cores are of one type",
        explanation: "On hybrid processors the kubelet does not distinguish performance cores from efficiency \
            cores, so a pinned VM may get CPUs of both types.",
        run: check_core_types,
    },
];

fn check_zones(input: &Input) -> Outcome {
    let zones = &input.facts.zones;
    let known = zones.iter().filter_map(|zone| Some((zone.id, zone.cpus.as_ref()?)));
    let known: Vec<(u32, &CpuSet)> = known.collect();
    if known.is_empty() {
        return Outcome::skip("no NUMA zone with a CPU list was found");
    }
    for (index, (a, cpus)) in known.iter().enumerate() {
        let overlapping = known.iter().skip(index + 1).find(|(_, other)| cpus.intersects(other));
        if let Some((b, other)) = overlapping {
            return Outcome::warn(format!("zones {a} and {b} both contain CPUs {}", cpus.intersection(other)))
                .with_evidence(format!("/sys/devices/system/node/node{a}/cpulist"), cpus)
                .with_evidence(format!("/sys/devices/system/node/node{b}/cpulist"), other)
                .remedy("update the BIOS; until then boot with numa=off, so that NUMA placement is not used");
        }
    }
    let count = known.len();
    Outcome::pass(format!(
        "{count} zone{}, each CPU in exactly one",
        if count == 1 { "" } else { "s" }
    ))
    .with_evidence("/sys/devices/system/node", format!("{count} nodes"))
}

fn check_online_cpus(input: &Input) -> Outcome {
    let (Some(online), Some(offline)) = (&input.facts.cpu.online, &input.facts.cpu.offline) else {
        return Outcome::skip("the lists of online and offline CPUs cannot be read");
    };
    let path = "/sys/devices/system/cpu/offline";
    if offline.is_empty() {
        return Outcome::pass(format!("CPUs {online}"))
            .with_evidence("/sys/devices/system/cpu/online", online);
    }
    let outcome = match input.smt_control.as_deref() {
        Some(off @ ("off" | "forceoff")) => {
            let remedy = if off == "off" {
                "if this is not intended: echo on > /sys/devices/system/cpu/smt/control"
            } else {
                "if this is not intended: remove nosmt=force from the kernel command line and reboot"
            };
            Outcome::warn(format!("SMT is switched off: CPUs {offline} are offline"))
                .with_evidence("/sys/devices/system/cpu/smt/control", off)
                .remedy(remedy)
        }
        _ => Outcome::warn(format!("CPUs {offline} are offline")).remedy(format!(
            "if this is not intended: for c in {}; do echo 1 > /sys/devices/system/cpu/cpu$c/online; done",
            space_separated(offline)
        )),
    };
    outcome.with_evidence(path, offline)
}

fn space_separated(set: &CpuSet) -> String {
    set.iter().map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(" ")
}

fn check_smt_alignment(input: &Input) -> Outcome {
    let facts = input.facts;
    let Some(threads) = facts.cpu.threads_per_core else {
        return Outcome::skip("the number of threads per core is unknown");
    };
    if threads == 1 {
        return Outcome::pass("one thread per core: every CPU is a whole core").with_evidence(
            "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
            "one CPU each",
        );
    }
    let Some(config) = &facts.kubelet.config else {
        return Outcome::skip(format!(
            "{threads} threads per core, but no kubelet configuration was found"
        ));
    };
    if config.cpu_manager_policy != "static" {
        return Outcome::skip("the kubelet does not pin CPUs (cpuManagerPolicy is none)")
            .with_evidence("cpuManagerPolicy", &config.cpu_manager_policy);
    }
    if let Some(reserved) = &config.reserved_system_cpus {
        let whole = facts
            .topology
            .cores_with_cpus(reserved)
            .into_iter()
            .fold(CpuSet::new(), |all, core| all.union(core));
        let missing = whole.difference(reserved);
        if !missing.is_empty() {
            return Outcome::warn(format!(
                "reserved CPUs {reserved} split cores: their siblings {missing} can be allocated to VMs"
            ))
            .with_evidence("reservedSystemCPUs", reserved)
            .with_evidence("/sys/devices/system/cpu/cpu*/topology/thread_siblings_list", &whole)
            .remedy(format!(
                "reservedSystemCPUs: \"{whole}\" in the kubelet's configuration, on a drained node"
            ));
        }
    }
    if config.is_cpu_option_enabled("full-pcpus-only") {
        return Outcome::pass(format!(
            "full-pcpus-only is on: VMs must request multiples of {threads} CPUs"
        ))
        .with_evidence("cpuManagerPolicyOptions", "full-pcpus-only=true");
    }
    Outcome::warn("two VMs may share one core: full-pcpus-only is off")
        .with_evidence("cpuManagerPolicyOptions", format_policy_options(config))
        .remedy("cpuManagerPolicyOptions: {full-pcpus-only: \"true\"} in the kubelet's configuration, on a drained node")
}

fn format_policy_options(config: &berth_host_facts::kubelet::KubeletConfig) -> String {
    let pairs =
        config.cpu_manager_policy_options.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

fn check_isolation(input: &Input) -> Outcome {
    let facts = input.facts;
    let none = CpuSet::new();
    let isolated = facts.cpu.isolated.as_ref().unwrap_or(&none);
    let tickless = facts.cpu.nohz_full.as_ref().unwrap_or(&none);
    if facts.cpu.isolated.is_none() && facts.cpu.nohz_full.is_none() {
        return Outcome::skip("the captured tree has no list of isolated or nohz_full CPUs");
    }
    let with_paths = |outcome: Outcome| {
        outcome
            .with_evidence("/sys/devices/system/cpu/isolated", isolated)
            .with_evidence("/sys/devices/system/cpu/nohz_full", tickless)
    };
    let config = facts.kubelet.config.as_ref();
    let reserved = config.and_then(|config| config.reserved_system_cpus.as_ref()).unwrap_or(&none);
    let isolated_or_tickless = isolated.union(tickless);
    let both = isolated_or_tickless.intersection(reserved);
    if !both.is_empty() {
        return with_paths(Outcome::warn(format!(
            "CPUs {both} are isolated or nohz_full and also reserved for the system"
        )))
        .with_evidence("reservedSystemCPUs", reserved)
        .remedy(format!(
            "boot with isolcpus= and nohz_full= without {both}, or reserve other CPUs for the system"
        ));
    }
    // `isolcpus=managed_irq,...` isolates CPUs from interrupts only, and not from the scheduler.
    let exposed = tickless.difference(isolated);
    if !exposed.is_empty() && !isolated.is_empty() {
        return with_paths(Outcome::warn(format!("CPUs {exposed} are nohz_full but not isolated")))
            .remedy(format!(
                "boot with isolcpus=managed_irq,domain,{tickless} nohz_full={tickless}"
            ));
    }
    if let Some(state) = &facts.kubelet.cpu_state {
        let shared = state.default_cpu_set.intersection(isolated);
        if !shared.is_empty() {
            return with_paths(Outcome::warn(format!(
                "the kubelet's shared pool contains isolated CPUs {shared}, on which the scheduler does not balance load"
            )))
            .with_evidence(format!("{}/cpu_manager_state", facts.kubelet.root_dir), &state.default_cpu_set)
            .remedy("use the kubelet's static CPU manager policy instead of isolcpus=, and boot without isolcpus=");
        }
    }
    if isolated_or_tickless.is_empty() {
        with_paths(Outcome::pass("no CPU is isolated or nohz_full"))
    } else {
        with_paths(Outcome::pass(format!("CPUs {isolated_or_tickless} are isolated consistently")))
    }
}

fn check_irq_affinity(input: &Input) -> Outcome {
    let dedicated_cpus = dedicated_cpus(input.facts);
    if input.irqs.is_empty() {
        return Outcome::skip("no interrupt has a readable affinity");
    }
    if dedicated_cpus.is_empty() {
        return Outcome::skip(
            "no CPU is isolated, nohz_full or pinned, so interrupts may run on any CPU",
        );
    }
    let uses_dedicated_cpus = |irq: &&berth_host_facts::irqs::Irq| {
        irq.effective_affinity.as_ref().unwrap_or(&irq.affinity).intersects(&dedicated_cpus)
    };
    let affected: Vec<_> = input.irqs.iter().filter(uses_dedicated_cpus).collect();
    if affected.is_empty() {
        return Outcome::pass(format!(
            "none of {} interrupts runs on CPUs {dedicated_cpus}",
            input.irqs.len()
        ))
        .with_evidence("/proc/irq/*/effective_affinity_list", format!("none in {dedicated_cpus}"));
    }
    let cpus = affected
        .iter()
        .map(|irq| {
            irq.effective_affinity.as_ref().unwrap_or(&irq.affinity).intersection(&dedicated_cpus)
        })
        .fold(CpuSet::new(), |all, set| all.union(&set));
    let numbers: CpuSet = affected.iter().map(|irq| irq.number).collect();
    let other_cpus = input.facts.topology.online.difference(&dedicated_cpus);
    Outcome::warn(format!(
        "{} of {} interrupts may run on isolated, nohz_full or pinned CPUs {cpus}",
        affected.len(),
        input.irqs.len()
    ))
    .with_evidence("/proc/irq/*/smp_affinity_list", format!("interrupts {numbers}"))
    .with_evidence("isolated, nohz_full, cpu_manager_state", &dedicated_cpus)
    .remedy(format!(
        "for i in /proc/irq/[0-9]*; do echo {other_cpus} > $i/smp_affinity_list; done 2>/dev/null   # managed \
         interrupts cannot be moved: boot with isolcpus=managed_irq,{dedicated_cpus}; irqbalance: set IRQBALANCE_BANNED_CPULIST"
    ))
}

/// Returns the CPUs that no interrupt should use: isolated CPUs, nohz_full CPUs, and CPUs pinned to
/// a container.
fn dedicated_cpus(facts: &HostFacts) -> CpuSet {
    let sets = [facts.cpu.isolated.as_ref(), facts.cpu.nohz_full.as_ref()];
    let pinned = facts.kubelet.cpu_state.as_ref().map(|state| state.exclusive_cpus());
    sets.into_iter().flatten().chain(&pinned).fold(CpuSet::new(), |all, set| all.union(set))
}

fn check_governor(input: &Input) -> Outcome {
    let path = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
    match input.facts.cpu.governor.as_deref() {
        None => Outcome::skip(
            "no cpufreq driver: the firmware or the hypervisor controls the frequency",
        ),
        Some("performance") => Outcome::pass("performance").with_evidence(path, "performance"),
        Some(other) => Outcome::warn(format!(
            "{other}: the clock frequency of pinned VMs changes with the load"
        ))
        .with_evidence(path, other)
        .remedy("cpupower frequency-set --governor performance"),
    }
}

fn check_core_types(input: &Input) -> Outcome {
    let kinds: BTreeSet<_> = input.facts.cpu.core_kinds.iter().map(|kind| kind.kind).collect();
    match input.facts.cpu.hybrid {
        None => Outcome::skip("the lists of online and offline CPUs cannot be read"),
        Some(false) => Outcome::pass("all cores are of one type")
            .with_evidence("/sys/devices/cpu_atom", "absent"),
        Some(true) => {
            let mut outcome = Outcome::warn(format!(
                "cores are of {} types; a pinned VM may get a mixture",
                kinds.len()
            ));
            for kind in &input.facts.cpu.core_kinds {
                outcome = outcome.with_evidence(format!("{:?} cores", kind.kind), &kind.cpus);
            }
            outcome.remedy(
                "disable the efficiency cores in the firmware setup, or reserve them for the system",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::{run_check_on_facts, run_check_with_irqs};
    use berth_host_facts::irqs::Irq;
    use berth_host_facts::kubelet::{KubeletConfig, KubeletFacts};

    fn parse_cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn facts_with_cpu_lists(isolated: &str, tickless: &str, reserved: &str) -> HostFacts {
        let mut facts = HostFacts::default();
        facts.cpu.isolated = Some(parse_cpus(isolated));
        facts.cpu.nohz_full = Some(parse_cpus(tickless));
        facts.topology.online = parse_cpus("0-7");
        facts.kubelet = KubeletFacts {
            config: Some(KubeletConfig {
                reserved_system_cpus: Some(parse_cpus(reserved)),
                ..KubeletConfig::default()
            }),
            ..KubeletFacts::default()
        };
        facts
    }

    #[test]
    fn overlaps_of_isolated_and_reserved_cpus_are_reported() {
        for (isolated, tickless, reserved, status, word) in [
            ("", "", "0", Status::Pass, "no CPU"),
            ("2-7", "2-7", "0-1", Status::Pass, "2-7"),
            ("1-7", "2-7", "0-1", Status::Warn, "CPUs 1 are isolated"),
            ("2-5", "2-7", "0-1", Status::Warn, "CPUs 6-7 are nohz_full"),
        ] {
            let outcome = run_check_on_facts(
                "cpu.isolation",
                &facts_with_cpu_lists(isolated, tickless, reserved),
            );
            assert_eq!(outcome.status, status, "{isolated} {tickless} {reserved}");
            assert!(outcome.message.contains(word), "{}", outcome.message);
        }
    }

    #[test]
    fn effective_affinity_takes_precedence_over_the_allowed_affinity() {
        let facts = facts_with_cpu_lists("2-7", "", "0-1");
        let irq = |effective: Option<&str>| Irq {
            number: 9,
            affinity: parse_cpus("0-7"),
            effective_affinity: effective.map(parse_cpus),
            driver_names: "eth0".to_owned(),
        };
        let status = |irq| run_check_with_irqs("cpu.irq-affinity", &facts, vec![irq]).status;
        assert_eq!(status(irq(Some("0"))), Status::Pass);
        assert_eq!(status(irq(Some("3"))), Status::Warn);
        assert_eq!(status(irq(None)), Status::Warn);
    }
}
