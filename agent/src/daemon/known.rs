//! What was found out before and cannot be seen just now stays told, beside `unknown[]` that says since when it is
//! only remembered: a kubelet that restarts must not make devices vanish from the status.

use std::collections::BTreeMap;

use berth_api::InfraNodeStatus;
use berth_api::infra_node::Allocation;

use crate::observe::HostFacts;

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
        one.zones.extend(&old.zones);
        one.zones.sort_unstable();
        one.zones.dedup();
    }
    *now = all.into_values().collect();
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::{AllocatedDevices, NetworkStatus, Unknown, UnknownReason};

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
