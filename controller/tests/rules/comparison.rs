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
use crate::reference_model::ReferenceModel;

const OPTIONS: GeneratorOptions =
    GeneratorOptions { uses_current_features: true, is_for_api_server: false };

fn set_host(model: &mut ReferenceModel, cluster: &mut ClusterState, generated: GeneratedHost) {
    let fields =
        NodeFields::from_node(&generated.node, &generated.allocatable, generated.pods_limit);
    cluster.set_host(&fields).unwrap();
    model.hosts.insert(generated.node.metadata.name.clone().unwrap(), generated);
}

/// Asserts that the indexes and the reference model return the same reasons for a pod on every host. Returns the hosts
/// on which the pod is allowed.
fn compare_with_model(
    model: &ReferenceModel,
    cluster: &ClusterState,
    generated: &GeneratedPod,
    rules: &Rules,
) -> Vec<String> {
    let filter = cluster.pod_filter(rules);
    let mut allowed = Vec::new();
    for name in model.hosts.keys() {
        let host = cluster.host(name).unwrap();
        let actual: Vec<String> =
            filter.reasons(host).iter().map(|reason| reason.summary().into_owned()).collect();
        let mut sorted = actual.clone();
        sorted.sort();
        let mut expected = model.rejection_reasons(generated, name);
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
    let hosts: Vec<_> = allowed.iter().map(|name| cluster.host(name).unwrap()).collect();
    let scores = Scorer::new(&filter, &hosts).normalized_scores(&hosts);
    assert_eq!(scores, model.scores(generated, &allowed), "{allowed:?}");
    allowed
}

/// Applies random changes to the indexes and to the reference model, and compares both.
fn apply_random_changes(seed: u64, steps: u64) {
    let mut generator = RandomGenerator(seed);
    let is_flawed = generator.is_one_in(2);
    let mut cluster = ClusterState::with_scheduler_bugs(SchedulerBugs {
        negative_namespace_selectors: is_flawed,
    });
    let mut model = ReferenceModel { has_scheduler_bug: is_flawed, ..ReferenceModel::default() };
    let mut ids: BTreeMap<String, (PodId, Arc<Rules>)> = BTreeMap::new();
    for step in 0..steps {
        let name = format!("host-{}", generator.next_below(8));
        match generator.next_below(12) {
            0 | 1 => {
                let generated = random::random_host(&mut generator, &name);
                set_host(&mut model, &mut cluster, generated);
            }
            2 if generator.is_one_in(3) => {
                if model.hosts.remove(&name).is_some() {
                    let removed_pods: Vec<String> =
                        ids.keys().filter(|pod| model.pods[*pod].1 == name).cloned().collect();
                    assert_eq!(
                        cluster.remove_host(cluster.host(&name).unwrap()),
                        removed_pods.len()
                    );
                    for pod in removed_pods {
                        model.pods.remove(&pod);
                        assert!(
                            !cluster.remove_pod(ids.remove(&pod).unwrap().0),
                            "the pod was removed with its host"
                        );
                    }
                    assert_eq!(cluster.host(&name), None);
                }
            }
            3 if generator.is_one_in(2) => {
                let (name, labels) = (
                    generator.choose(&NAMESPACES),
                    random::random_namespace_labels(&mut generator),
                );
                cluster.set_namespace(name, &labels);
                model.namespaces.insert(name.to_owned(), labels);
            }
            4 | 5 => {
                let at = usize::try_from(generator.next_below(ids.len() as u64)).unwrap();
                if let Some(name) = ids.keys().nth(at).cloned() {
                    assert!(cluster.remove_pod(ids.remove(&name).unwrap().0));
                    model.pods.remove(&name);
                }
            }
            _ => {
                let mut generated =
                    random::random_pod(&mut generator, OPTIONS, &format!("pod-{step}"));
                if generator.is_one_in(10) {
                    let time = serde_json::from_str::<Time>("\"2026-01-01T00:00:00Z\"").unwrap();
                    generated.pod.metadata.deletion_timestamp = Some(time);
                }
                let fields = PodFields::from_pod(&generated.pod, &generated.containers);
                let rules = Arc::new(Rules::compile(&mut cluster, &fields).unwrap());
                let allowed = compare_with_model(&model, &cluster, &generated, &rules);
                // If the rules allow no host, the pod is added to any host, because a DaemonSet or a user (with
                // nodeName) may have placed the pod there.
                let all_hosts: Vec<String> = model.hosts.keys().cloned().collect();
                let hosts = if allowed.is_empty() { &all_hosts } else { &allowed };
                if !hosts.is_empty() {
                    let at =
                        &hosts[usize::try_from(generator.next_below(hosts.len() as u64)).unwrap()];
                    let id =
                        cluster.add_pod(Arc::clone(&rules), cluster.host(at).unwrap()).unwrap();
                    let name = generated.pod.metadata.name.clone().unwrap();
                    ids.insert(name.clone(), (id, rules));
                    model.pods.insert(name, (generated, at.clone()));
                }
            }
        }
    }
    // Rules that were compiled before later changes are still correct.
    for (name, (_, rules)) in &ids {
        compare_with_model(&model, &cluster, &model.pods[name].0, rules);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_indexes_agree_with_a_full_scan(seed: u64, steps in 1u64..120) {
        apply_random_changes(seed, steps);
    }
}

/// Rules count pods that were added before the rules were compiled.
#[test]
fn new_counters_include_existing_pods() {
    let mut generator = RandomGenerator(7);
    let (mut model, mut cluster) = (ReferenceModel::default(), ClusterState::new());
    for number in 0..8 {
        let generated = random::random_host(&mut generator, &format!("host-{number}"));
        set_host(&mut model, &mut cluster, generated);
    }
    let mut refused = 0;
    for number in 0..400 {
        let generated = random::random_pod(&mut generator, OPTIONS, &format!("pod-{number}"));
        let fields = PodFields::from_pod(&generated.pod, &generated.containers);
        let rules = Arc::new(Rules::compile(&mut cluster, &fields).unwrap());
        let allowed = compare_with_model(&model, &cluster, &generated, &rules);
        refused += u64::from(allowed.is_empty());
        if let Some(at) = allowed.first() {
            cluster.add_pod(Arc::clone(&rules), cluster.host(at).unwrap()).unwrap();
            model
                .pods
                .insert(generated.pod.metadata.name.clone().unwrap(), (generated, at.clone()));
        }
    }
    assert!(refused > 20 && model.pods.len() > 20, "{refused}, {}", model.pods.len());
}
