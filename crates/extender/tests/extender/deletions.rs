//! Deleted hosts and pods, and the release of their resources.

use std::collections::HashSet;
use std::time::Instant;

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use k8s_openapi::api::core::v1;
use serde_json::json;

use super::host::{HostDescription, ZoneDescription};
use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::{extender_with_hosts, report_host};

fn host_with_one_zone(name: &str) -> HostDescription {
    let zone = ZoneDescription { cpus: 9, memory: 64, huge_pages_gib: 0, small_pages_mib: 0 };
    HostDescription { name: name.to_owned(), zones: vec![zone], ..HostDescription::default() }
}

/// Returns a pod with a topology spread constraint: the numbers of such pods on two hosts may differ by at most one.
fn pod_with_spread_constraint(name: &str) -> v1::Pod {
    let mut pod = PodBuilder::vm(name, 1).build();
    pod.metadata.labels.get_or_insert_default().insert("app".to_owned(), "web".to_owned());
    let constraint = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
    let constraint = serde_json::from_value(constraint).expect("the constraint should be valid");
    pod.spec.get_or_insert_default().topology_spread_constraints = Some(vec![constraint]);
    pod
}

fn add_bound_pod(extender: &mut Extender, now: Instant, pod: v1::Pod, host: &str) {
    let bound_pod = bind_to(pod, host);
    extender
        .update_pod(now, bound_pod.clone(), &observe_pod(&bound_pod))
        .expect("the pod should be counted");
}

#[test]
fn a_deleted_node_is_not_counted() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[
        host_with_one_zone("a"),
        host_with_one_zone("b"),
        host_with_one_zone("c"),
    ]);
    add_bound_pod(&mut extender, now, pod_with_spread_constraint("one"), "a");
    add_bound_pod(&mut extender, now, pod_with_spread_constraint("two"), "b");
    let third = pod_with_spread_constraint("three");
    // kube-scheduler does not offer host c. Because host c has none of these pods, the constraint permits no second
    // such pod on host a or b.
    assert!(matches!(extender.answer_filter(now, &third, &["a", "b"]), FilterAnswer::Refused(_)));
    extender.delete_node("c");
    assert_eq!(
        extender.take_hosts_to_patch().len(),
        1,
        "the pod fits because the deleted host no longer counts for the spread constraint"
    );
    assert!(matches!(
        extender.answer_filter(now, &third, &["a", "b"]),
        FilterAnswer::ReservedHost(_)
    ));
    let names: Vec<_> = extender.engine().hosts().map(|(_, facts)| facts.name.clone()).collect();
    assert_eq!(names, ["a", "b"]);
    extender.delete_node("no-such-host");
}

#[test]
fn recreated_node_keeps_its_pods() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
    add_bound_pod(&mut extender, now, PodBuilder::vm("vm", 8).build(), "a");
    extender.delete_node("a");
    let other = PodBuilder::vm("other", 2).build();
    let FilterAnswer::Refused(reasons) = extender.answer_filter(now, &other, &["a"]) else {
        unreachable!("the Node is deleted")
    };
    assert_eq!(reasons[0].1, "node(s) had no agent report");
    assert!(matches!(
        extender.answer_bind(now, "other", "a", Some(&other)),
        BindAnswer::Refused(_)
    ));
    report_host(&mut extender, &host_with_one_zone("a"), 1);
    assert!(
        matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)),
        "the host is full"
    );
    assert_eq!(extender.stage_counts().bound, 1);
    extender.delete_pod(now, "vm");
    extender.expire_timeouts(now + std::time::Duration::from_secs(120));
    assert_eq!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::ReservedHost("a"));
}

/// The terminating pod has no exclusive CPUs and no huge pages.
#[test]
fn terminating_pod_without_exclusive_resources_does_not_block_a_recreated_node() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
    let mut terminating =
        PodBuilder { second_container_millis: 100, ..PodBuilder::vm("hangs", 0) }.build();
    terminating.metadata.deletion_timestamp = Some(
        serde_json::from_value(json!("2026-01-01T00:00:00Z"))
            .expect("the timestamp should be valid"),
    );
    let containers = &mut terminating.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    add_bound_pod(&mut extender, now, terminating, "a");
    extender.delete_node("a");
    report_host(&mut extender, &host_with_one_zone("a"), 1);
    let vm = PodBuilder::vm("vm", 8).build();
    assert_eq!(extender.answer_filter(now, &vm, &["a"]), FilterAnswer::ReservedHost("a"));
}

/// The API server deletes a Node's pods together with the Node, but the kubelet runs the pods for a moment longer.
#[test]
fn resources_of_a_deleted_node_are_released_after_a_delay() {
    let now = Instant::now();
    let mut extender = Extender::new_awaiting_pod_list();
    report_host(&mut extender, &host_with_one_zone("a"), 1);
    extender.handle_pod_list(now, &HashSet::new());
    add_bound_pod(&mut extender, now, PodBuilder::vm("vm", 8).build(), "a");
    extender.delete_node("a");
    extender.delete_pod(now, "vm");
    report_host(&mut extender, &host_with_one_zone("a"), 1);
    let other = PodBuilder::vm("other", 8).build();
    assert!(matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
    extender.expire_timeouts(now + std::time::Duration::from_secs(120));
    assert_eq!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::ReservedHost("a"));
}

/// While a watch is broken, the extender misses deletions. Therefore a pod that is missing from the next list counts as
/// deleted.
#[test]
fn pods_missing_from_a_list_are_deleted() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
    let pod = PodBuilder::vm("vm", 8).build();
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be counted");
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    let waiting = PodBuilder::vm("waits", 8).build();
    extender
        .update_pod(now, waiting.clone(), &observe_pod(&waiting))
        .expect("the pod should be counted");
    assert!(matches!(extender.answer_filter(now, &waiting, &["a"]), FilterAnswer::Refused(_)));
    assert!(extender.has_refused_pods());
    extender.handle_pod_list(now, &HashSet::new());
    assert!(!extender.has_refused_pods() && extender.can_be_rebuilt());
    let other = PodBuilder::vm("other", 8).build();
    assert_eq!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::ReservedHost("a"));
}

#[test]
fn all_waiting_request_classes_are_retried() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
    let first = PodBuilder::vm("first", 8).build();
    assert_eq!(extender.answer_filter(now, &first, &["a"]), FilterAnswer::ReservedHost("a"));
    for cpus in 9..150 {
        let too_large = PodBuilder::vm(&format!("never-{cpus}"), cpus).build();
        assert!(matches!(
            extender.answer_filter(now, &too_large, &["a"]),
            FilterAnswer::Refused(_)
        ));
    }
    let small = PodBuilder::vm("small", 3).build();
    assert!(matches!(extender.answer_filter(now, &small, &["a"]), FilterAnswer::Refused(_)));
    extender.delete_pod(now, "first");
    let mut patched_hosts = Vec::new();
    for version in 2..6 {
        patched_hosts.extend(extender.take_hosts_to_patch());
        // A host changes before each call of `take_hosts_to_patch`.
        let zone = ZoneDescription { cpus: 2, memory: 64, huge_pages_gib: 0, small_pages_mib: 0 };
        report_host(
            &mut extender,
            &HostDescription { zones: vec![zone], ..host_with_one_zone("b") },
            version,
        );
    }
    assert_eq!(patched_hosts, ["a"]);
}
