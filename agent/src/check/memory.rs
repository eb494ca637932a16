//! Checks of memory: huge pages per zone, KSM and swap.

use berth_api::infra_node::{KsmAdvisor, KsmOwner, Zone};
use berth_api::{Bytes, PageSize};

use super::definition::Check;
use super::input::Input;
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "hugepages.balance",
        title: "huge pages are balanced over zones",
        explanation: "A VM that is pinned to one NUMA zone needs huge pages of that zone. Pages reserved for the \
            whole host at boot may be unbalanced, so that the host has enough pages, but no single zone has enough.",
        run: check_balance,
    },
    Check {
        id: "hugepages.kubelet",
        title: "free huge pages of kernel and kubelet agree",
        explanation: "The kubelet's Memory Manager counts huge pages by the requests of pods. If another \
            program uses some, the kubelet admits a VM that cannot map its memory and is killed by SIGBUS.",
        run: check_kubelet_page_counts,
    },
    Check {
        id: "memory.swap-ksm",
        title: "KSM and swap are not used together",
        explanation: "A write to a page that KSM merged needs a new page at once. With swap on, a host with many \
            merged pages starts to swap and slows down without warning.",
        run: check_swap_and_ksm,
    },
    Check {
        id: "ksm.owner",
        title: "KSM has one owner",
        explanation: "If two programs (ksmtuned, KubeVirt's virt-handler, Berth) control KSM, it alternates \
            between their settings. Exactly one program may control it.",
        run: check_ksm_owner,
    },
    Check {
        id: "ksm.advisor",
        title: "KSM advisor does not conflict with other programs",
        explanation: "With the kernel's advisor (advisor_mode scan-time) pages_to_scan cannot be written, and \
            KubeVirt's KSM handler and ksmtuned fail with an error.",
        run: check_ksm_advisor,
    },
];

fn page_count(zone: &Zone, size: PageSize) -> u64 {
    zone.hugepages.iter().find(|pool| pool.size == size).map_or(0, |pool| pool.total)
}

fn pool_folder(size: PageSize) -> String {
    format!("hugepages-{}kB", size.kib())
}

fn check_balance(input: &Input) -> Outcome {
    let zones: Vec<&Zone> = input
        .facts
        .zones
        .iter()
        .filter(|zone| zone.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()))
        .collect();
    let sizes = input.facts.zones.iter().flat_map(|zone| &zone.hugepages);
    let mut used: Vec<PageSize> =
        sizes.filter(|pool| pool.total > 0).map(|pool| pool.size).collect();
    used.sort_unstable();
    used.dedup();
    if used.is_empty() {
        return Outcome::skip("no huge pages are reserved");
    }
    let uneven = used.iter().copied().find(|&size| {
        let first = zones.first().map_or(0, |zone| page_count(zone, size));
        zones.iter().any(|zone| page_count(zone, size) != first)
    });
    let evidence = |mut outcome: Outcome, size: PageSize| {
        for zone in &zones {
            let path = format!(
                "/sys/devices/system/node/node{}/hugepages/{}/nr_hugepages",
                zone.id,
                pool_folder(size)
            );
            outcome = outcome.with_evidence(path, page_count(zone, size));
        }
        outcome
    };
    let without_cpus =
        used.iter().copied().find(|&size| zones.iter().all(|z| page_count(z, size) == 0));
    if let Some(size) = without_cpus {
        let total: u64 = input.facts.zones.iter().map(|zone| page_count(zone, size)).sum();
        return evidence(Outcome::warn(format!("all {total} pages of {size} are in zones without CPUs")), size)
            .remedy("reserve them per zone: echo N > /sys/devices/system/node/nodeX/hugepages/.../nr_hugepages");
    }
    let Some(size) = uneven else {
        let size = used.last().copied().unwrap_or(PageSize::MIB_2);
        return evidence(Outcome::pass("equal huge pages in all zones with CPUs"), size);
    };
    let counts: Vec<String> = zones
        .iter()
        .map(|zone| format!("{} in zone {}", page_count(zone, size), zone.id))
        .collect();
    let max_pages = zones.iter().map(|zone| page_count(zone, size)).max().unwrap_or(0);
    let commands: Vec<String> = zones
        .iter()
        .filter(|zone| page_count(zone, size) < max_pages)
        .map(|zone| {
            let node = format!("/sys/devices/system/node/node{}", zone.id);
            format!("echo {max_pages} > {node}/hugepages/{}/nr_hugepages", pool_folder(size))
        })
        .collect();
    evidence(Outcome::warn(format!("{size} pages are unbalanced: {}", counts.join(", "))), size)
        .remedy(format!(
            "{}   # then restart the kubelet, which counts pages when it starts",
            commands.join("; ")
        ))
}

fn check_kubelet_page_counts(input: &Input) -> Outcome {
    let Some(state) = &input.facts.kubelet.memory_state else {
        let fault = input.facts.kubelet.checkpoint_errors.get("memory_manager_state");
        return Outcome::skip(fault.map_or_else(
            || "the kubelet's Memory Manager has no checkpoint on this host".to_owned(),
            |(_, message)| message.clone(),
        ));
    };
    if state.policy_name != "Static" {
        return Outcome::skip(format!(
            "the Memory Manager's policy is {}, which counts no huge pages",
            state.policy_name
        ));
    }
    let file = format!("{}/memory_manager_state", input.facts.kubelet.root_dir);
    let mut compared = 0;
    for zone in &input.facts.zones {
        let Some(node) = state.machine_state.get(&zone.id) else { continue };
        for pool in &zone.hugepages {
            let table = node.memory_map.get(&pool.size.resource_name());
            let (Some(table), Some(free)) = (table, pool.free) else { continue };
            let kubelet = table.free / pool.size.bytes();
            compared += 1;
            if free < kubelet {
                let path = format!(
                    "/sys/devices/system/node/node{}/hugepages/{}/free_hugepages",
                    zone.id,
                    pool_folder(pool.size)
                );
                return Outcome::warn(format!(
                    "zone {}: the kubelet counts {kubelet} free pages of {}, the kernel has {free}",
                    zone.id, pool.size
                ))
                .with_evidence(path, free)
                .with_evidence(&file, format!("{} free in hugepages-{}", Bytes(table.free), pool.size))
                .remedy("grep -l hugetlbfs /proc/[0-9]*/numa_maps; grep -s huge /proc/[0-9]*/numa_maps   # finds the processes that use them");
            }
        }
    }
    if compared == 0 {
        return Outcome::skip("the Memory Manager's checkpoint has no huge pages");
    }
    Outcome::pass("the kernel has at least as many free pages as the kubelet counts")
        .with_evidence(file, format!("{compared} pools compared"))
}

fn check_swap_and_ksm(input: &Input) -> Outcome {
    let memory = &input.facts.memory;
    let running = memory.ksm.as_ref().and_then(|ksm| ksm.running);
    let (Some(swap), Some(running)) = (memory.swap, running) else {
        return Outcome::skip("swap or KSM is unknown, or this kernel has no KSM");
    };
    let evidence = |outcome: Outcome| {
        outcome
            .with_evidence("/proc/meminfo SwapTotal", swap)
            .with_evidence("/sys/kernel/mm/ksm/run", u8::from(running))
    };
    if swap.0 > 0 && running {
        let remedy = if memory.zram == Some(true) {
            "swapoff /dev/zram0 and disable the zram generator, or stop KSM"
        } else {
            "swapoff -a and remove swap from /etc/fstab, or stop KSM"
        };
        evidence(Outcome::warn(format!("KSM runs and swap is on ({})", swap.to_human_readable())))
            .remedy(remedy)
    } else {
        evidence(Outcome::pass("KSM and swap are not both on"))
    }
}

fn check_ksm_owner(input: &Input) -> Outcome {
    let Some(ksm) = &input.facts.memory.ksm else {
        return Outcome::skip("this kernel or captured tree has no KSM");
    };
    let running = ksm.running == Some(true);
    let candidates = &input.facts.ksm.owner_candidates;
    // virt-handler runs on every KubeVirt host. It counts as the owner of KSM only if KSM runs, because it
    // may have started KSM.
    let active_owners: Vec<KsmOwner> =
        candidates.iter().copied().filter(|c| *c != KsmOwner::KubeVirt || running).collect();
    let names: Vec<String> = active_owners.iter().map(|owner| format!("{owner:?}")).collect();
    let evidence =
        |outcome: Outcome| outcome.with_evidence("/sys/kernel/mm/ksm/run", u8::from(running));
    match (active_owners.len(), ksm.owner) {
        (2.., _) => evidence(Outcome::warn(format!("{} may all control KSM", names.join(" and "))))
            .with_evidence("/proc/*/comm", names.join(", "))
            .remedy(
                "keep one of these programs: systemctl disable --now ksmtuned, or remove ksmConfiguration from the KubeVirt \
                 object, or ksm from the InfraNode",
            ),
        (_, Some(KsmOwner::Unknown)) => {
            evidence(Outcome::warn("KSM runs, and no known program on this host controls it")).remedy(
                "find the program that started it (tuned profile, old script) and stop it, then: echo 0 > /sys/kernel/mm/ksm/run",
            )
        }
        (_, Some(owner)) => evidence(Outcome::pass(format!("owner: {owner:?}"))),
        (_, None) => Outcome::skip("the captured tree has no processes"),
    }
}

fn check_ksm_advisor(input: &Input) -> Outcome {
    let Some(advisor) = input.facts.memory.ksm.as_ref().and_then(|ksm| ksm.advisor) else {
        return Outcome::skip("this kernel has no KSM advisor (Linux 6.8 and later have it)");
    };
    let others: Vec<String> = input
        .facts
        .ksm
        .owner_candidates
        .iter()
        .filter(|owner| **owner != KsmOwner::Berth)
        .map(|owner| format!("{owner:?}"))
        .collect();
    let outcome = match advisor {
        KsmAdvisor::ScanTime if !others.is_empty() => Outcome::warn(format!(
            "the advisor makes pages_to_scan read-only, but {} writes it",
            others.join(" and ")
        ))
        .remedy("echo none > /sys/kernel/mm/ksm/advisor_mode, or stop the other program"),
        KsmAdvisor::ScanTime => Outcome::pass("the kernel controls the scan rate"),
        KsmAdvisor::None => Outcome::pass("not in use"),
    };
    outcome.with_evidence("/sys/kernel/mm/ksm/advisor_mode", format!("{advisor:?}"))
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::{HugepagePool, Ksm};

    use super::*;
    use crate::check::Status;
    use crate::check::test_helpers::run_check_on_facts;
    use berth_host_facts::HostFacts;

    fn zone(id: u32, cpus: &str, total: u64, free: u64) -> Zone {
        let pool = HugepagePool {
            size: PageSize::MIB_2,
            total,
            free: Some(free),
            surplus: None,
            reserved: None,
        };
        Zone { id, cpus: Some(cpus.parse().unwrap()), hugepages: vec![pool], ..Zone::default() }
    }

    #[test]
    fn a_zone_without_cpus_needs_no_pages() {
        let facts = |zones| HostFacts { zones, ..HostFacts::default() };
        let status = |zones| run_check_on_facts("hugepages.balance", &facts(zones)).status;
        assert_eq!(status(vec![zone(0, "0", 8, 8), zone(1, "1", 8, 8)]), Status::Pass);
        assert_eq!(status(vec![zone(0, "0", 8, 8), zone(1, "", 0, 0)]), Status::Pass);
        assert_eq!(status(vec![zone(0, "0", 0, 0), zone(1, "1", 0, 0)]), Status::Skip);
        let uneven = run_check_on_facts(
            "hugepages.balance",
            &facts(vec![zone(0, "0", 8, 8), zone(1, "1", 6, 6)]),
        );
        assert_eq!(uneven.status, Status::Warn);
        assert!(uneven.remedy.unwrap().contains("echo 8 > /sys/devices/system/node/node1/"));
    }

    #[test]
    fn pages_that_another_program_uses_are_detected() {
        let state = r#"{"policyName":"Static","machineState":{"0":{"memoryMap":{"hugepages-2Mi":
            {"total":16777216,"free":16777216}}}}}"#;
        let mut facts = HostFacts { zones: vec![zone(0, "0", 8, 8)], ..HostFacts::default() };
        facts.kubelet.memory_state = Some(serde_json::from_str(state).unwrap());
        assert_eq!(run_check_on_facts("hugepages.kubelet", &facts).status, Status::Pass);
        facts.zones = vec![zone(0, "0", 8, 3)];
        let outcome = run_check_on_facts("hugepages.kubelet", &facts);
        assert_eq!(outcome.status, Status::Warn);
        assert!(outcome.message.contains("counts 8 free pages of 2Mi, the kernel has 3"));
    }

    #[test]
    fn ksm_with_two_owners_is_reported() {
        let mut facts = HostFacts::default();
        facts.memory.ksm =
            Some(Ksm { running: Some(true), owner: Some(KsmOwner::Ksmtuned), ..Ksm::default() });
        facts.ksm.owner_candidates = vec![KsmOwner::KubeVirt, KsmOwner::Ksmtuned];
        let outcome = run_check_on_facts("ksm.owner", &facts);
        assert_eq!(outcome.status, Status::Warn);
        assert!(outcome.message.contains("KubeVirt and Ksmtuned"));
        facts.ksm.owner_candidates.pop();
        assert_eq!(run_check_on_facts("ksm.owner", &facts).status, Status::Pass);
    }
}
