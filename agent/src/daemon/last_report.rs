//! Copies facts from the last report that cannot be read now and are listed in `unknown[]`. A restart of the kubelet
//! must not remove devices from the status.

use std::collections::BTreeMap;

use berth_api::InfraNodeStatus;
use berth_api::infra_node::{AllocatedContainer, Allocation, UnknownFact, UnknownReason};

use berth_host_facts::HostFacts;
use berth_host_facts::pod_allocations::DEVICES_PATH;

/// Copies facts that are unknown now from the previous status. `unparsed` is true if the desired networks are
/// unknown.
pub(super) fn merge_unknown_facts(
    status: &mut InfraNodeStatus,
    previous: &InfraNodeStatus,
    facts: &HostFacts,
    unparsed: bool,
) {
    if facts.links.is_incomplete || unparsed {
        status.networks.clone_from(&previous.networks);
    }
    if status.unknown.iter().any(|unknown| unknown.path.starts_with("allocations")) {
        // `hugepage_limits` contains all pods that have a control group.
        let is_running = |uid: &str| facts.pod_allocations.hugepage_limits.contains_key(uid);
        merge_allocations(&mut status.allocations, &previous.allocations, is_running);
    }
    let is_unreadable = |unknown: &UnknownFact| {
        unknown.path == DEVICES_PATH && unknown.reason == UnknownReason::Unreadable
    };
    if status.devices.is_empty() && status.unknown.iter().any(is_unreadable) {
        status.devices.clone_from(&previous.devices);
    }
}

/// Copies unknown allocations of pods that are still running.
fn merge_allocations(
    current: &mut Vec<Allocation>,
    previous: &[Allocation],
    is_running: impl Fn(&str) -> bool,
) {
    let mut merged: BTreeMap<String, Allocation> =
        current.drain(..).map(|one| (one.pod_uid.clone(), one)).collect();
    for old in previous.iter().filter(|old| is_running(&old.pod_uid)) {
        let Some(one) = merged.get_mut(&old.pod_uid) else {
            let running = Allocation { has_control_group: Some(true), ..old.clone() };
            merged.insert(old.pod_uid.clone(), running);
            continue;
        };
        one.cpus = one.cpus.take().or_else(|| old.cpus.clone());
        one.memory = one.memory.or(old.memory);
        if one.hugepages.is_empty() {
            one.hugepages.clone_from(&old.hugepages);
        }
        if one.devices.is_empty() {
            one.devices.clone_from(&old.devices);
        }
        merge_containers(&mut one.containers, &old.containers);
        one.zones.extend(&old.zones);
        one.zones.sort_unstable();
        one.zones.dedup();
    }
    *current = merged.into_values().collect();
}

/// Copies unknown allocations of containers.
fn merge_containers(current: &mut Vec<AllocatedContainer>, previous: &[AllocatedContainer]) {
    for old in previous {
        let Some(one) = current.iter_mut().find(|one| one.name == old.name) else {
            current.push(old.clone());
            continue;
        };
        one.cpus = one.cpus.take().or_else(|| old.cpus.clone());
        if one.memory.is_empty() {
            one.memory.clone_from(&old.memory);
        }
        if one.devices.is_empty() {
            one.devices.clone_from(&old.devices);
        }
    }
    current.sort_by(|one, other| one.name.cmp(&other.name));
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::{AllocatedDevices, AllocatedZoneDevices, NetworkStatus};

    use super::*;

    fn allocation(uid: &str, cpus: Option<&str>, devices: &[&str], zones: &[u32]) -> Allocation {
        let device = |name: &&str| AllocatedDevices { resource: (*name).to_owned(), count: 1 };
        Allocation {
            pod_uid: uid.to_owned(),
            namespace: None,
            pod: None,
            has_control_group: None,
            cpus: cpus.map(|cpus| cpus.parse().unwrap()),
            zones: zones.to_vec(),
            hugepages: Vec::new(),
            memory: None,
            devices: devices.iter().map(device).collect(),
            containers: Vec::new(),
        }
    }

    fn status(allocations: Vec<Allocation>, unknown: &[&str]) -> InfraNodeStatus {
        let unknown = unknown.iter().map(|path| UnknownFact {
            path: (*path).to_owned(),
            reason: UnknownReason::Unreadable,
            message: None,
        });
        InfraNodeStatus { allocations, unknown: unknown.collect(), ..InfraNodeStatus::default() }
    }

    fn facts(running: &[&str]) -> HostFacts {
        let mut facts = HostFacts::default();
        let groups = running.iter().map(|uid| ((*uid).to_owned(), BTreeMap::new()));
        facts.pod_allocations.hugepage_limits = groups.collect();
        facts
    }

    #[test]
    fn an_unresponsive_kubelet_does_not_change_allocations_of_running_pods() {
        let before = status(
            vec![
                allocation("a", Some("2-3"), &["nic"], &[1]),
                allocation("b", None, &["gpu"], &[0]),
                allocation("gone", Some("7"), &[], &[1]),
            ],
            &[],
        );
        let reported = || vec![allocation("a", Some("4"), &[], &[0])];
        let mut unresponsive = status(reported(), &["allocations.devices"]);
        merge_unknown_facts(&mut unresponsive, &before, &facts(&["a", "b"]), false);
        // The pod that is only in the last report has a control group.
        let running =
            Allocation { has_control_group: Some(true), ..allocation("b", None, &["gpu"], &[0]) };
        let kept = [allocation("a", Some("4"), &["nic"], &[0, 1]), running];
        assert_eq!(unresponsive.allocations, kept);
        // If all allocations are known, an allocation that is missing was released.
        let mut responsive = status(reported(), &[]);
        merge_unknown_facts(&mut responsive, &before, &facts(&["a", "b"]), false);
        assert_eq!(responsive.allocations, reported());
    }

    /// Tests a checkpoint that contains the CPUs, while the kubelet, which reports the devices, is unresponsive.
    #[test]
    fn allocations_are_carried_over_by_container() {
        let container = |name: &str, cpus: Option<&str>, nics: u32| AllocatedContainer {
            name: name.to_owned(),
            cpus: cpus.map(|cpus| cpus.parse().unwrap()),
            devices: (nics > 0)
                .then(|| AllocatedZoneDevices {
                    resource: "nic".to_owned(),
                    zone: Some(1),
                    count: nics,
                })
                .into_iter()
                .collect(),
            ..AllocatedContainer::default()
        };
        let with_containers =
            |containers| Allocation { containers, ..allocation("a", None, &[], &[1]) };
        let before = status(
            vec![with_containers(vec![
                container("compute", Some("2"), 1),
                container("log", None, 2),
            ])],
            &[],
        );
        let mut current = status(
            vec![with_containers(vec![container("compute", Some("2-3"), 0)])],
            &["allocations.devices"],
        );
        merge_unknown_facts(&mut current, &before, &facts(&["a"]), false);
        let kept = [container("compute", Some("2-3"), 1), container("log", None, 2)];
        assert_eq!(current.allocations[0].containers, kept);
    }

    #[test]
    fn networks_are_carried_over_while_links_or_the_spec_are_unknown() {
        let network = NetworkStatus { name: "n".to_owned(), ..NetworkStatus::default() };
        let before = InfraNodeStatus { networks: vec![network], ..InfraNodeStatus::default() };
        for (incomplete, unparsed) in [(true, false), (false, true), (false, false)] {
            let mut facts = HostFacts::default();
            facts.links.is_incomplete = incomplete;
            let mut current = InfraNodeStatus::default();
            merge_unknown_facts(&mut current, &before, &facts, unparsed);
            assert_eq!(current.networks.len(), usize::from(incomplete || unparsed));
        }
    }
}
