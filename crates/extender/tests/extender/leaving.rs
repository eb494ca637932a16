//! Deleted hosts and pods, and the release of their resources.

use std::collections::HashSet;
use std::time::Instant;

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use k8s_openapi::api::core::v1;
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, bound_to, observed};
use super::scenarios::{extender, report};

fn host(name: &str) -> HostForm {
    let zone = ZoneForm { cpus: 9, memory: 64, huge: 0, small: 0 };
    HostForm { name: name.to_owned(), zones: vec![zone], ..HostForm::default() }
}

/// A pod with a spread constraint: a host may have at most one such pod more than another host.
fn pod_with_spread_constraint(name: &str) -> v1::Pod {
    let mut pod = PodForm::vm(name, 1).build();
    pod.metadata.labels.get_or_insert_default().insert("app".to_owned(), "web".to_owned());
    let constraint = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
    let constraint = serde_json::from_value(constraint).expect("the constraint should be valid");
    pod.spec.get_or_insert_default().topology_spread_constraints = Some(vec![constraint]);
    pod
}

fn add_bound_pod(extender: &mut Extender, now: Instant, pod: v1::Pod, host: &str) {
    let bound_pod = bound_to(pod, host);
    extender
        .update_pod(now, bound_pod.clone(), &observed(&bound_pod))
        .expect("the pod should be counted");
}

#[test]
fn a_deleted_node_is_not_counted() {
    let now = Instant::now();
    let mut extender = extender(&[host("a"), host("b"), host("c")]);
    add_bound_pod(&mut extender, now, pod_with_spread_constraint("one"), "a");
    add_bound_pod(&mut extender, now, pod_with_spread_constraint("two"), "b");
    let third = pod_with_spread_constraint("three");
    // The scheduler does not offer host c, which has none of these pods.
    assert!(matches!(extender.filter(now, &third, &["a", "b"]), FilterAnswer::Refused(_)));
    extender.node_deleted("c");
    assert_eq!(
        extender.take_hosts_to_patch().len(),
        1,
        "the pod fits because the deleted host no longer counts for the spread constraint"
    );
    assert!(matches!(extender.filter(now, &third, &["a", "b"]), FilterAnswer::Host(_)));
    let names: Vec<_> = extender.engine().hosts().map(|(_, facts)| facts.name.clone()).collect();
    assert_eq!(names, ["a", "b"]);
    extender.node_deleted("no-such-host");
}

#[test]
fn recreated_node_keeps_its_pods() {
    let now = Instant::now();
    let mut extender = extender(&[host("a")]);
    add_bound_pod(&mut extender, now, PodForm::vm("vm", 8).build(), "a");
    extender.node_deleted("a");
    let other = PodForm::vm("other", 2).build();
    let FilterAnswer::Refused(reasons) = extender.filter(now, &other, &["a"]) else {
        unreachable!("the Node is deleted")
    };
    assert_eq!(reasons[0].1, "node(s) had no agent report");
    assert!(matches!(extender.bind(now, "other", "a", Some(&other)), BindAnswer::Refused(_)));
    report(&mut extender, &host("a"), 1);
    assert!(
        matches!(extender.filter(now, &other, &["a"]), FilterAnswer::Refused(_)),
        "the host is full"
    );
    assert_eq!(extender.stage_counts().bound, 1);
    extender.pod_deleted(now, "vm");
    extender.tick(now + std::time::Duration::from_secs(120));
    assert_eq!(extender.filter(now, &other, &["a"]), FilterAnswer::Host("a"));
}

/// The terminating pod has no exclusive CPUs and no huge pages.
#[test]
fn terminating_pod_without_exclusive_resources_does_not_block_a_recreated_node() {
    let now = Instant::now();
    let mut extender = extender(&[host("a")]);
    let mut terminating =
        PodForm { second_container_millis: 100, ..PodForm::vm("hangs", 0) }.build();
    terminating.metadata.deletion_timestamp = Some(
        serde_json::from_value(json!("2026-01-01T00:00:00Z"))
            .expect("the timestamp should be valid"),
    );
    let containers = &mut terminating.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    add_bound_pod(&mut extender, now, terminating, "a");
    extender.node_deleted("a");
    report(&mut extender, &host("a"), 1);
    let vm = PodForm::vm("vm", 8).build();
    assert_eq!(extender.filter(now, &vm, &["a"]), FilterAnswer::Host("a"));
}

/// The pods are deleted with the Node, but the kubelet runs the pods a moment longer.
#[test]
fn resources_of_a_deleted_node_are_released_after_a_delay() {
    let now = Instant::now();
    let mut extender = Extender::awaiting_pod_list();
    report(&mut extender, &host("a"), 1);
    extender.pods_listed(now, &HashSet::new());
    add_bound_pod(&mut extender, now, PodForm::vm("vm", 8).build(), "a");
    extender.node_deleted("a");
    extender.pod_deleted(now, "vm");
    report(&mut extender, &host("a"), 1);
    let other = PodForm::vm("other", 8).build();
    assert!(matches!(extender.filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
    extender.tick(now + std::time::Duration::from_secs(120));
    assert_eq!(extender.filter(now, &other, &["a"]), FilterAnswer::Host("a"));
}

/// A broken watch does not show deletions; the next list does.
#[test]
fn pods_missing_from_a_list_are_deleted() {
    let now = Instant::now();
    let mut extender = extender(&[host("a")]);
    let pod = PodForm::vm("vm", 8).build();
    extender.update_pod(now, pod.clone(), &observed(&pod)).expect("the pod should be counted");
    assert_eq!(extender.filter(now, &pod, &["a"]), FilterAnswer::Host("a"));
    let waiting = PodForm::vm("waits", 8).build();
    extender
        .update_pod(now, waiting.clone(), &observed(&waiting))
        .expect("the pod should be counted");
    assert!(matches!(extender.filter(now, &waiting, &["a"]), FilterAnswer::Refused(_)));
    assert!(extender.has_waiting_pods());
    extender.pods_listed(now, &HashSet::new());
    assert!(!extender.has_waiting_pods() && extender.can_be_rebuilt());
    let other = PodForm::vm("other", 8).build();
    assert_eq!(extender.filter(now, &other, &["a"]), FilterAnswer::Host("a"));
}

#[test]
fn all_waiting_request_classes_are_retried() {
    let now = Instant::now();
    let mut extender = extender(&[host("a")]);
    let first = PodForm::vm("first", 8).build();
    assert_eq!(extender.filter(now, &first, &["a"]), FilterAnswer::Host("a"));
    for cpus in 9..150 {
        let too_large = PodForm::vm(&format!("never-{cpus}"), cpus).build();
        assert!(matches!(extender.filter(now, &too_large, &["a"]), FilterAnswer::Refused(_)));
    }
    let small = PodForm::vm("small", 3).build();
    assert!(matches!(extender.filter(now, &small, &["a"]), FilterAnswer::Refused(_)));
    extender.pod_deleted(now, "first");
    let mut patched_hosts = Vec::new();
    for version in 2..6 {
        patched_hosts.extend(extender.take_hosts_to_patch());
        // A host changes in each round.
        let zone = ZoneForm { cpus: 2, memory: 64, huge: 0, small: 0 };
        report(&mut extender, &HostForm { zones: vec![zone], ..host("b") }, version);
    }
    assert_eq!(patched_hosts, ["a"]);
}
