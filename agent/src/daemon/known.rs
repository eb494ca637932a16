//! What was found out before and cannot be seen just now stays told, beside `unknown[]` that says since when it is
//! only remembered: a kubelet that restarts must not make devices vanish from the status.

use std::collections::BTreeMap;

use berth_api::InfraNodeStatus;
use berth_api::infra_node::{AllocatedContainer, Allocation, Unknown, UnknownReason};

use crate::observe::HostFacts;
use crate::observe::handed_out::DEVICES;

/// Fills in what this look could not see with what was told before. `unclear` says that which networks are asked for
/// is not known.
pub(super) fn keep(
    status: &mut InfraNodeStatus,
    before: &InfraNodeStatus,
    facts: &HostFacts,
    unclear: bool,
) {
    if facts.links.incomplete || unclear {
        status.networks.clone_from(&before.networks);
    }
    if status.unknown.iter().any(|unknown| unknown.path.starts_with("allocations")) {
        // All pods that have a control group are in there.
        let runs = |uid: &str| facts.handed_out.hugepages.contains_key(uid);
        keep_allocations(&mut status.allocations, &before.allocations, runs);
    }
    let is_silent =
        |unknown: &Unknown| unknown.path == DEVICES && unknown.reason == UnknownReason::Unreadable;
    if status.devices.is_empty() && status.unknown.iter().any(is_silent) {
        status.devices.clone_from(&before.devices);
    }
}

/// What a pod has been given it keeps as long as it runs.
fn keep_allocations(now: &mut Vec<Allocation>, before: &[Allocation], runs: impl Fn(&str) -> bool) {
    let mut all: BTreeMap<String, Allocation> =
        now.drain(..).map(|one| (one.pod_uid.clone(), one)).collect();
    for old in before.iter().filter(|old| runs(&old.pod_uid)) {
        let Some(one) = all.get_mut(&old.pod_uid) else {
            all.insert(old.pod_uid.clone(), old.clone());
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
        keep_containers(&mut one.containers, &old.containers);
        one.zones.extend(&old.zones);
        one.zones.sort_unstable();
        one.zones.dedup();
    }
    *now = all.into_values().collect();
}

/// The same by container.
fn keep_containers(now: &mut Vec<AllocatedContainer>, before: &[AllocatedContainer]) {
    for old in before {
        let Some(one) = now.iter_mut().find(|one| one.name == old.name) else {
            now.push(old.clone());
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
    now.sort_by(|one, other| one.name.cmp(&other.name));
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
            cpus: cpus.map(|cpus| cpus.parse().unwrap()),
            zones: zones.to_vec(),
            hugepages: Vec::new(),
            memory: None,
            devices: devices.iter().map(device).collect(),
            containers: Vec::new(),
        }
    }

    fn status(allocations: Vec<Allocation>, unknown: &[&str]) -> InfraNodeStatus {
        let unknown = unknown.iter().map(|path| Unknown {
            path: (*path).to_owned(),
            reason: UnknownReason::Unreadable,
            message: None,
        });
        InfraNodeStatus { allocations, unknown: unknown.collect(), ..InfraNodeStatus::default() }
    }

    fn facts(running: &[&str]) -> HostFacts {
        let mut facts = HostFacts::default();
        let groups = running.iter().map(|uid| ((*uid).to_owned(), BTreeMap::new()));
        facts.handed_out.hugepages = groups.collect();
        facts
    }

    #[test]
    fn a_kubelet_that_does_not_answer_takes_nothing_from_pods_that_run() {
        let before = status(
            vec![
                allocation("a", Some("2-3"), &["nic"], &[1]),
                allocation("b", None, &["gpu"], &[0]),
                allocation("gone", Some("7"), &[], &[1]),
            ],
            &[],
        );
        let now = || vec![allocation("a", Some("4"), &[], &[0])];
        let mut silent = status(now(), &["allocations.devices"]);
        keep(&mut silent, &before, &facts(&["a", "b"]), false);
        let kept =
            [allocation("a", Some("4"), &["nic"], &[0, 1]), allocation("b", None, &["gpu"], &[0])];
        assert_eq!(silent.allocations, kept);
        // Where all is known, all that is not there is gone.
        let mut answers = status(now(), &[]);
        keep(&mut answers, &before, &facts(&["a", "b"]), false);
        assert_eq!(answers.allocations, now());
    }

    /// A checkpoint tells the CPUs, and the kubelet that would tell the devices is silent.
    #[test]
    fn what_containers_have_is_kept_by_container() {
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
        let with = |containers| Allocation { containers, ..allocation("a", None, &[], &[1]) };
        let before = status(
            vec![with(vec![container("compute", Some("2"), 1), container("log", None, 2)])],
            &[],
        );
        let mut now = status(
            vec![with(vec![container("compute", Some("2-3"), 0)])],
            &["allocations.devices"],
        );
        keep(&mut now, &before, &facts(&["a"]), false);
        let kept = [container("compute", Some("2-3"), 1), container("log", None, 2)];
        assert_eq!(now.allocations[0].containers, kept);
    }

    #[test]
    fn networks_stay_where_links_or_what_is_asked_are_not_known() {
        let network = NetworkStatus { name: "n".to_owned(), ..NetworkStatus::default() };
        let before = InfraNodeStatus { networks: vec![network], ..InfraNodeStatus::default() };
        for (incomplete, unclear) in [(true, false), (false, true), (false, false)] {
            let mut facts = HostFacts::default();
            facts.links.incomplete = incomplete;
            let mut now = InfraNodeStatus::default();
            keep(&mut now, &before, &facts, unclear);
            assert_eq!(now.networks.len(), usize::from(incomplete || unclear));
        }
    }
}
