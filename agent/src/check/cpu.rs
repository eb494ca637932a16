//! Processors: zones that make sense, whole cores, and CPUs that are kept apart consistently.

use std::collections::BTreeSet;

use berth_api::CpuSet;

use super::{Check, Input, Outcome};
use crate::observe::HostFacts;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu.zones",
        title: "NUMA zones do not overlap",
        explanation: "Every CPU belongs to one NUMA zone. Firmware that puts a CPU in several makes the \
            kubelet's and KubeVirt's NUMA placement meaningless.",
        run: zones,
    },
    Check {
        id: "cpu.online",
        title: "all CPUs are online",
        explanation: "CPUs taken offline lower what can be pinned, and a core with one sibling offline cannot \
            be handed out whole. They may be meant (security, power), so this is a warning.",
        run: online,
    },
    Check {
        id: "cpu.smt-alignment",
        title: "pinned VMs get whole cores",
        explanation: "With SMT, the kubelet's static CPU manager may give the two threads of one core to two \
            VMs, unless its option full-pcpus-only is on; reserved CPUs must be whole cores too.",
        run: smt_alignment,
    },
    Check {
        id: "cpu.isolation",
        title: "isolcpus, nohz_full and reserved CPUs agree",
        explanation: "isolcpus and nohz_full name CPUs for pinned work, reservedSystemCPUs those for the \
            system: they must not overlap, tickless CPUs should be isolated, and the kubelet's shared pool \
            should not run on isolated CPUs, where nothing balances load.",
        run: isolation,
    },
    Check {
        id: "cpu.irq-affinity",
        title: "interrupts stay off isolated CPUs",
        explanation: "An interrupt on an isolated or tickless CPU takes time from the VM pinned there. Managed \
            interrupts (NVMe, some NICs) are moved by the boot parameter isolcpus=managed_irq alone.",
        run: irq_affinity,
    },
    Check {
        id: "cpu.governor",
        title: "frequency governor",
        explanation: "The governor powersave of acpi-cpufreq keeps the lowest frequency; with intel_pstate and \
            amd_pstate in active mode it only saves when idle. Pinned VMs want performance.",
        run: governor,
    },
    Check {
        id: "cpu.hybrid",
        title: "one kind of core",
        explanation: "On processors with fast and frugal cores the kubelet does not know which is which, and \
            a pinned VM gets a mixture.",
        run: hybrid,
    },
];

fn zones(input: &Input) -> Outcome {
    let zones = &input.facts.zones;
    let known = zones.iter().filter_map(|zone| Some((zone.id, zone.cpus.as_ref()?)));
    let known: Vec<(u32, &CpuSet)> = known.collect();
    if known.is_empty() {
        return Outcome::skip("no zone with a list of CPUs is known");
    }
    for (index, (a, cpus)) in known.iter().enumerate() {
        let overlapping = known.iter().skip(index + 1).find(|(_, other)| cpus.intersects(other));
        if let Some((b, other)) = overlapping {
            return Outcome::warn(format!("zones {a} and {b} both claim CPUs {}", cpus.intersection(other)))
                .because(format!("/sys/devices/system/node/node{a}/cpulist"), cpus)
                .because(format!("/sys/devices/system/node/node{b}/cpulist"), other)
                .remedy("update the BIOS; until then boot with numa=off, so that nothing relies on the zones");
        }
    }
    let count = known.len();
    Outcome::pass(format!("{count} zone{}, each CPU in one", if count == 1 { "" } else { "s" }))
        .because("/sys/devices/system/node", format!("{count} nodes"))
}

fn online(input: &Input) -> Outcome {
    let (Some(online), Some(offline)) = (&input.facts.cpu.online, &input.facts.cpu.offline) else {
        return Outcome::skip("no CPU is known");
    };
    let path = "/sys/devices/system/cpu/offline";
    if offline.is_empty() {
        return Outcome::pass(format!("CPUs {online}"))
            .because("/sys/devices/system/cpu/online", online);
    }
    let outcome = match input.smt_control.as_deref() {
        Some(off @ ("off" | "forceoff")) => {
            let remedy = if off == "off" {
                "if that is not meant: echo on > /sys/devices/system/cpu/smt/control"
            } else {
                "if that is not meant: remove nosmt=force from the kernel command line and reboot"
            };
            Outcome::warn(format!("SMT is switched off: CPUs {offline} are offline"))
                .because("/sys/devices/system/cpu/smt/control", off)
                .remedy(remedy)
        }
        _ => Outcome::warn(format!("CPUs {offline} are offline")).remedy(format!(
            "if that is not meant: for c in {}; do echo 1 > /sys/devices/system/cpu/cpu$c/online; done",
            words(offline)
        )),
    };
    outcome.because(path, offline)
}

fn words(set: &CpuSet) -> String {
    set.iter().map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(" ")
}

fn smt_alignment(input: &Input) -> Outcome {
    let facts = input.facts;
    let Some(threads) = facts.cpu.threads_per_core else {
        return Outcome::skip("threads per core are not known");
    };
    if threads == 1 {
        return Outcome::pass("one thread per core: every CPU is a whole core")
            .because("/sys/devices/system/cpu/cpu*/topology/thread_siblings_list", "one CPU each");
    }
    let Some(config) = &facts.kubelet.config else {
        return Outcome::skip(format!(
            "{threads} threads per core, but no kubelet configuration was found"
        ));
    };
    if config.cpu_manager_policy != "static" {
        return Outcome::skip("the kubelet's CPU manager pins nothing (cpuManagerPolicy is none)")
            .because("cpuManagerPolicy", &config.cpu_manager_policy);
    }
    if let Some(reserved) = &config.reserved_system_cpus {
        let whole = facts
            .topology
            .cores_of(reserved)
            .into_iter()
            .fold(CpuSet::new(), |all, core| all.union(core));
        let missing = whole.difference(reserved);
        if !missing.is_empty() {
            return Outcome::warn(format!(
                "reserved CPUs {reserved} split cores: their siblings {missing} are handed to VMs"
            ))
            .because("reservedSystemCPUs", reserved)
            .because("/sys/devices/system/cpu/cpu*/topology/thread_siblings_list", &whole)
            .remedy(format!(
                "reservedSystemCPUs: \"{whole}\" in the kubelet's configuration, on a drained node"
            ));
        }
    }
    if config.cpu_option("full-pcpus-only") {
        return Outcome::pass(format!(
            "full-pcpus-only is on: VMs must ask for multiples of {threads} CPUs"
        ))
        .because("cpuManagerPolicyOptions", "full-pcpus-only=true");
    }
    Outcome::warn("two VMs may share a core: full-pcpus-only is off")
        .because("cpuManagerPolicyOptions", options(config))
        .remedy("cpuManagerPolicyOptions: {full-pcpus-only: \"true\"} in the kubelet's configuration, on a drained node")
}

fn options(config: &crate::observe::kubelet::KubeletConfig) -> String {
    let pairs =
        config.cpu_manager_policy_options.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

fn isolation(input: &Input) -> Outcome {
    let facts = input.facts;
    let none = CpuSet::new();
    let isolated = facts.cpu.isolated.as_ref().unwrap_or(&none);
    let tickless = facts.cpu.nohz_full.as_ref().unwrap_or(&none);
    if facts.cpu.isolated.is_none() && facts.cpu.nohz_full.is_none() {
        return Outcome::skip(
            "the tree says neither which CPUs are isolated nor which are tickless",
        );
    }
    let with_paths = |outcome: Outcome| {
        outcome
            .because("/sys/devices/system/cpu/isolated", isolated)
            .because("/sys/devices/system/cpu/nohz_full", tickless)
    };
    let config = facts.kubelet.config.as_ref();
    let reserved = config.and_then(|config| config.reserved_system_cpus.as_ref()).unwrap_or(&none);
    let kept_apart = isolated.union(tickless);
    let both = kept_apart.intersection(reserved);
    if !both.is_empty() {
        return with_paths(Outcome::warn(format!(
            "CPUs {both} are isolated or tickless and yet reserved for the system"
        )))
        .because("reservedSystemCPUs", reserved)
        .remedy(format!(
            "boot with isolcpus= and nohz_full= without {both}, or reserve other CPUs for the system"
        ));
    }
    // `isolcpus=managed_irq,...` isolates from interrupts alone and is no scheduler isolation.
    let exposed = tickless.difference(isolated);
    if !exposed.is_empty() && !isolated.is_empty() {
        return with_paths(Outcome::warn(format!("CPUs {exposed} are tickless but not isolated")))
            .remedy(format!(
                "boot with isolcpus=managed_irq,domain,{tickless} nohz_full={tickless}"
            ));
    }
    if let Some(state) = &facts.kubelet.cpu_state {
        let shared = state.default_cpu_set.intersection(isolated);
        if !shared.is_empty() {
            return with_paths(Outcome::warn(format!(
                "the kubelet runs ordinary pods on CPUs {shared}, which are isolated: nothing balances load there"
            )))
            .because(format!("{}/cpu_manager_state", facts.kubelet.folder), &state.default_cpu_set)
            .remedy("use the kubelet's static policy in place of isolcpus=, and boot without it");
        }
    }
    if kept_apart.is_empty() {
        with_paths(Outcome::pass("no CPU is isolated or tickless"))
    } else {
        with_paths(Outcome::pass(format!("CPUs {kept_apart} are kept apart consistently")))
    }
}

fn irq_affinity(input: &Input) -> Outcome {
    let kept_apart = kept_apart(input.facts);
    if input.irqs.is_empty() {
        return Outcome::skip("no interrupt with a readable affinity");
    }
    if kept_apart.is_empty() {
        return Outcome::skip("no CPU is isolated, tickless or pinned: interrupts may go anywhere");
    }
    let goes_there = |irq: &&crate::observe::irqs::Irq| {
        irq.effective.as_ref().unwrap_or(&irq.affinity).intersects(&kept_apart)
    };
    let there: Vec<_> = input.irqs.iter().filter(goes_there).collect();
    if there.is_empty() {
        return Outcome::pass(format!(
            "none of {} interrupts goes to CPUs {kept_apart}",
            input.irqs.len()
        ))
        .because("/proc/irq/*/effective_affinity_list", format!("none in {kept_apart}"));
    }
    let cpus = there
        .iter()
        .map(|irq| irq.effective.as_ref().unwrap_or(&irq.affinity).intersection(&kept_apart))
        .fold(CpuSet::new(), |all, set| all.union(&set));
    let numbers: CpuSet = there.iter().map(|irq| irq.number).collect();
    let elsewhere = input.facts.topology.online.difference(&kept_apart);
    Outcome::warn(format!(
        "{} of {} interrupts may go to isolated, tickless or pinned CPUs {cpus}",
        there.len(),
        input.irqs.len()
    ))
    .because("/proc/irq/*/smp_affinity_list", format!("interrupts {numbers}"))
    .because("isolated, nohz_full, cpu_manager_state", &kept_apart)
    .remedy(format!(
        "for i in /proc/irq/[0-9]*; do echo {elsewhere} > $i/smp_affinity_list; done 2>/dev/null   # managed \
         ones refuse: boot with isolcpus=managed_irq,{kept_apart}; irqbalance: set IRQBALANCE_BANNED_CPULIST"
    ))
}

/// CPUs an interrupt would steal from somebody: isolated, tickless, or pinned to a container.
fn kept_apart(facts: &HostFacts) -> CpuSet {
    let sets = [facts.cpu.isolated.as_ref(), facts.cpu.nohz_full.as_ref()];
    let pinned = facts.kubelet.cpu_state.as_ref().map(|state| state.exclusive());
    sets.into_iter().flatten().chain(&pinned).fold(CpuSet::new(), |all, set| all.union(set))
}

fn governor(input: &Input) -> Outcome {
    let path = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
    match input.facts.cpu.governor.as_deref() {
        None => {
            Outcome::skip("no cpufreq driver: the firmware or the hypervisor sets the frequency")
        }
        Some("performance") => Outcome::pass("performance").because(path, "performance"),
        Some(other) => {
            Outcome::warn(format!("{other}: pinned VMs see a clock that changes under them"))
                .because(path, other)
                .remedy("cpupower frequency-set --governor performance")
        }
    }
}

fn hybrid(input: &Input) -> Outcome {
    let kinds: BTreeSet<_> = input.facts.cpu.core_kinds.iter().map(|kind| kind.kind).collect();
    match input.facts.cpu.hybrid {
        None => Outcome::skip("no CPU is known"),
        Some(false) => {
            Outcome::pass("all cores are alike").because("/sys/devices/cpu_atom", "not there")
        }
        Some(true) => {
            let mut outcome = Outcome::warn(format!(
                "cores are of {} kinds; a pinned VM gets a mixture",
                kinds.len()
            ));
            for kind in &input.facts.cpu.core_kinds {
                outcome = outcome.because(format!("{:?} cores", kind.kind), &kind.cpus);
            }
            outcome.remedy(
                "switch the frugal cores off in the firmware setup, or reserve them for the system",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::check::tests_support::{judge, judge_with_irqs};
    use crate::observe::irqs::Irq;
    use crate::observe::kubelet::{KubeletConfig, KubeletFacts};

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn facts(isolated: &str, tickless: &str, reserved: &str) -> HostFacts {
        let mut facts = HostFacts::default();
        facts.cpu.isolated = Some(set(isolated));
        facts.cpu.nohz_full = Some(set(tickless));
        facts.topology.online = set("0-7");
        facts.kubelet = KubeletFacts {
            config: Some(KubeletConfig {
                reserved_system_cpus: Some(set(reserved)),
                ..KubeletConfig::default()
            }),
            ..KubeletFacts::default()
        };
        facts
    }

    #[test]
    fn overlaps_are_named() {
        for (isolated, tickless, reserved, status, word) in [
            ("", "", "0", Status::Pass, "no CPU"),
            ("2-7", "2-7", "0-1", Status::Pass, "2-7"),
            ("1-7", "2-7", "0-1", Status::Warn, "CPUs 1 are isolated"),
            ("2-5", "2-7", "0-1", Status::Warn, "CPUs 6-7 are tickless"),
        ] {
            let outcome = judge("cpu.isolation", &facts(isolated, tickless, reserved));
            assert_eq!(outcome.status, status, "{isolated} {tickless} {reserved}");
            assert!(outcome.message.contains(word), "{}", outcome.message);
        }
    }

    #[test]
    fn interrupts_are_judged_by_where_they_go_not_where_they_might() {
        let facts = facts("2-7", "", "0-1");
        let irq = |effective: Option<&str>| Irq {
            number: 9,
            affinity: set("0-7"),
            effective: effective.map(set),
            users: "eth0".to_owned(),
        };
        let status = |irq| judge_with_irqs("cpu.irq-affinity", &facts, vec![irq]).status;
        assert_eq!(status(irq(Some("0"))), Status::Pass);
        assert_eq!(status(irq(Some("3"))), Status::Warn);
        assert_eq!(status(irq(None)), Status::Warn);
    }
}
