//! After any sequence of changes of hosts and pods, the indexes return the same results as a full scan.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_placement::rules::{
    ClusterState, NodeFields, PodFields, PodId, Rules, SchedulerBugs, Scorer,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use crate::random::{
    self, GeneratedHost, GeneratedPod, GeneratorOptions, NAMESPACES, RandomGenerator,
};
use crate::slow::ReferenceModel;

const OPTIONS: GeneratorOptions =
    GeneratorOptions { uses_current_features: true, is_for_api_server: false };

fn set_host(world: &mut ReferenceModel, counts: &mut ClusterState, made: GeneratedHost) {
    let parts = NodeFields::from_node(&made.node, &made.allocatable, made.pods_limit);
    counts.set_host(&parts).unwrap();
    world.hosts.insert(made.node.metadata.name.clone().unwrap(), made);
}

/// Compares the answers of the indexes and of the reference model for a pod on every host. Returns the hosts on
/// which the pod is allowed.
fn compare_with_model(
    world: &ReferenceModel,
    counts: &ClusterState,
    made: &GeneratedPod,
    rules: &Rules,
) -> Vec<String> {
    let filter = counts.pod_filter(rules);
    let mut allowed = Vec::new();
    for name in world.hosts.keys() {
        let host = counts.host(name).unwrap();
        let actual: Vec<String> =
            filter.reasons(host).iter().map(|reason| reason.summary().into_owned()).collect();
        let mut sorted = actual.clone();
        sorted.sort();
        let mut expected = world.rejection_reasons(made, name);
        expected.sort();
        assert_eq!(sorted, expected, "{name}: {:#?}", filter.reasons(host));
        assert_eq!(filter.allows(host), expected.is_empty(), "{name}");
        let allowed_except_resources = filter.allows_except_resources(host);
        let only_resources =
            actual.iter().all(|one| one.starts_with("Insufficient") || one == "Too many pods");
        assert!(only_resources || !allowed_except_resources, "{name}: {actual:?}");
        if expected.is_empty() {
            assert!(filter.candidate_hosts().any(|one| one == host), "{name} is not a candidate");
            allowed.push(name.clone());
        }
    }
    let hosts: Vec<_> = allowed.iter().map(|name| counts.host(name).unwrap()).collect();
    let scores = Scorer::new(&filter, &hosts).normalized_scores(&hosts);
    assert_eq!(scores, world.scores(made, &allowed), "{allowed:?}");
    allowed
}

/// Runs a sequence of random changes.
fn apply_random_changes(seed: u64, steps: u64) {
    let mut dice = RandomGenerator(seed);
    let is_flawed = dice.is_one_in(2);
    let mut counts = ClusterState::with_scheduler_bugs(SchedulerBugs {
        negative_namespace_selectors: is_flawed,
    });
    let mut world = ReferenceModel { has_scheduler_bug: is_flawed, ..ReferenceModel::default() };
    let mut ids: BTreeMap<String, (PodId, Arc<Rules>)> = BTreeMap::new();
    for step in 0..steps {
        let name = format!("host-{}", dice.next_below(8));
        match dice.next_below(12) {
            0 | 1 => {
                let made = random::random_host(&mut dice, &name);
                set_host(&mut world, &mut counts, made);
            }
            2 if dice.is_one_in(3) => {
                if world.hosts.remove(&name).is_some() {
                    let removed_pods: Vec<String> =
                        ids.keys().filter(|pod| world.pods[*pod].1 == name).cloned().collect();
                    assert_eq!(counts.remove_host(counts.host(&name).unwrap()), removed_pods.len());
                    for pod in removed_pods {
                        world.pods.remove(&pod);
                        assert!(
                            !counts.remove_pod(ids.remove(&pod).unwrap().0),
                            "the pod was removed with its host"
                        );
                    }
                    assert_eq!(counts.host(&name), None);
                }
            }
            3 if dice.is_one_in(2) => {
                let (name, labels) =
                    (dice.choose(&NAMESPACES), random::random_namespace_labels(&mut dice));
                counts.set_namespace(name, &labels);
                world.namespaces.insert(name.to_owned(), labels);
            }
            4 | 5 => {
                let at = usize::try_from(dice.next_below(ids.len() as u64)).unwrap();
                if let Some(name) = ids.keys().nth(at).cloned() {
                    assert!(counts.remove_pod(ids.remove(&name).unwrap().0));
                    world.pods.remove(&name);
                }
            }
            _ => {
                let mut made = random::random_pod(&mut dice, OPTIONS, &format!("pod-{step}"));
                if dice.is_one_in(10) {
                    let time = serde_json::from_str::<Time>("\"2026-01-01T00:00:00Z\"").unwrap();
                    made.pod.metadata.deletion_timestamp = Some(time);
                }
                let parts = PodFields::from_pod(&made.pod, &made.containers);
                let rules = Arc::new(Rules::compile(&mut counts, &parts).unwrap());
                let allowed = compare_with_model(&world, &counts, &made, &rules);
                // The pod may already be on any host, because a DaemonSet or a user (with nodeName) may have placed it
                // there.
                let all_hosts: Vec<String> = world.hosts.keys().cloned().collect();
                let hosts = if allowed.is_empty() { &all_hosts } else { &allowed };
                if !hosts.is_empty() {
                    let at = &hosts[usize::try_from(dice.next_below(hosts.len() as u64)).unwrap()];
                    let id = counts.add_pod(Arc::clone(&rules), counts.host(at).unwrap()).unwrap();
                    let name = made.pod.metadata.name.clone().unwrap();
                    ids.insert(name.clone(), (id, rules));
                    world.pods.insert(name, (made, at.clone()));
                }
            }
        }
    }
    // Rules that were compiled earlier give the same result as rules that are compiled now.
    for (name, (_, rules)) in &ids {
        compare_with_model(&world, &counts, &world.pods[name].0, rules);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_indexes_agree_with_a_full_scan(seed: u64, steps in 1u64..120) {
        apply_random_changes(seed, steps);
    }
}

/// Newly compiled rules apply to pods that existed before.
#[test]
fn new_counters_include_existing_pods() {
    let mut dice = RandomGenerator(7);
    let (mut world, mut counts) = (ReferenceModel::default(), ClusterState::new());
    for number in 0..8 {
        let made = random::random_host(&mut dice, &format!("host-{number}"));
        set_host(&mut world, &mut counts, made);
    }
    let mut refused = 0;
    for number in 0..400 {
        let made = random::random_pod(&mut dice, OPTIONS, &format!("pod-{number}"));
        let parts = PodFields::from_pod(&made.pod, &made.containers);
        let rules = Arc::new(Rules::compile(&mut counts, &parts).unwrap());
        let allowed = compare_with_model(&world, &counts, &made, &rules);
        refused += u64::from(allowed.is_empty());
        if let Some(at) = allowed.first() {
            counts.add_pod(Arc::clone(&rules), counts.host(at).unwrap()).unwrap();
            world.pods.insert(made.pod.metadata.name.clone().unwrap(), (made, at.clone()));
        }
    }
    assert!(refused > 20 && world.pods.len() > 20, "{refused}, {}", world.pods.len());
}
