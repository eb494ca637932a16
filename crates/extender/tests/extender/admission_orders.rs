//! Bound pods that no agent report lists yet: a kubelet that was stopped admits these pods in the order of their
//! creation time, which may differ from the order of their bindings.

use std::time::{Duration, Instant};

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use serde_json::json;

use super::host::{HostDescription, ZoneDescription};
use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::{extender_with_hosts, report_host};

const REPORT_DELAY: Duration = Duration::from_secs(6);
const UNREPORTED_REASON: &str = "node(s) had new pods that are missing from the agent report";

/// Returns a host with two NUMA zones, whose free CPUs are 7 (one CPU is reserved) and 8.
fn host_with_two_zones() -> HostDescription {
    let zone = ZoneDescription { cpus: 8, memory: 32, huge_pages_gib: 0, small_pages_mib: 0 };
    HostDescription { name: "a".to_owned(), zones: vec![zone; 2], ..HostDescription::default() }
}

fn place_and_bind(extender: &mut Extender, now: Instant, name: &str, cpus: u64) {
    let pod = PodBuilder::vm(name, cpus).build();
    assert_eq!(
        extender.answer_filter(now, &pod, &["a"]),
        FilterAnswer::ReservedHost("a"),
        "{name}"
    );
    assert_eq!(extender.answer_bind(now, name, "a", None), BindAnswer::SendBinding, "{name}");
    extender.record_binding_success(now, name);
    let bound_pod = bind_to(pod, "a");
    extender
        .update_pod(now, bound_pod.clone(), &observe_pod(&bound_pod))
        .expect("the pod should be counted");
}

fn refusal_reason(answer: FilterAnswer<'_>) -> String {
    match answer {
        FilterAnswer::Refused(hosts) => hosts[0].1.to_string(),
        other => format!("{other:?}"),
    }
}

/// If the pods are admitted in the order of their bindings, the pod with seven CPUs gets the first zone, the pod with
/// four CPUs the second zone, and four more CPUs fit in the second zone. If the pod with four CPUs is admitted first,
/// it gets the first zone, the pod with seven CPUs the second, and no zone has four free CPUs.
#[test]
fn pod_must_fit_in_every_admission_order() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_two_zones()]);
    place_and_bind(&mut extender, now, "seven", 7);
    place_and_bind(&mut extender, now, "four", 4);
    let more = PodBuilder::vm("more", 4).build();
    assert_eq!(
        extender.answer_filter(now, &more, &["a"]),
        FilterAnswer::ReservedHost("a"),
        "the bindings are recent, so the admission order is known"
    );
    // At this time, the report should list the pods, but does not, so the order of their admission is unknown.
    let late = now + REPORT_DELAY;
    assert!(matches!(extender.answer_bind(late, "more", "a", None), BindAnswer::Refused(_)));
    assert_eq!(refusal_reason(extender.answer_filter(late, &more, &["a"])), UNREPORTED_REASON);
    // In every admission order, one CPU is free.
    let small = PodBuilder::vm("small", 1).build();
    assert_eq!(extender.answer_filter(late, &small, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(late, "small", "a", None), BindAnswer::SendBinding);
    extender.record_binding_failure(late, "small");
    extender.delete_pod(late, "small");
    // The new report shows that the pods were admitted in the order of their bindings.
    let allocations = json!([
        {"podUID": "seven", "cpus": "1-7", "zones": [0]},
        {"podUID": "four", "cpus": "8-11", "zones": [1]},
    ]);
    let allocations = serde_json::from_value(allocations).expect("the allocations should be valid");
    report_host(&mut extender, &HostDescription { allocations, ..host_with_two_zones() }, 2);
    assert_eq!(extender.answer_filter(late, &more, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(late, "more", "a", None), BindAnswer::SendBinding);
}

/// Admission orders that differ only in equal pods count as one order, so 20 equal pods have a single order. Five
/// different pods have too many orders to check.
#[test]
fn pod_is_refused_if_admission_orders_are_too_many() {
    let zone = ZoneDescription { cpus: 32, memory: 64, huge_pages_gib: 0, small_pages_mib: 0 };
    let host = HostDescription { zones: vec![zone; 2], ..host_with_two_zones() };
    let now = Instant::now();
    let late = now + REPORT_DELAY;
    let one = PodBuilder::vm("one", 1).build();
    let mut with_equal_pods = extender_with_hosts(std::slice::from_ref(&host));
    for number in 0..20 {
        place_and_bind(&mut with_equal_pods, now, &format!("alike-{number}"), 1);
    }
    assert_eq!(with_equal_pods.answer_filter(late, &one, &["a"]), FilterAnswer::ReservedHost("a"));
    let mut with_different_pods = extender_with_hosts(&[host]);
    for cpus in 1..6 {
        place_and_bind(&mut with_different_pods, now, &format!("other-{cpus}"), cpus);
    }
    let nine = PodBuilder::vm("nine", 9).build();
    assert_eq!(
        refusal_reason(with_different_pods.answer_filter(late, &nine, &["a"])),
        UNREPORTED_REASON
    );
    // A pod for which the kubelet allocates nothing in a NUMA zone is placed on the host.
    let mut shared_cpu_pod = PodBuilder::vm("shares", 0).build();
    let containers = &mut shared_cpu_pod.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(
        with_different_pods.answer_filter(late, &shared_cpu_pod, &["a"]),
        FilterAnswer::ReservedHost("a")
    );
}

/// For a static pod, the kubelet and its checkpoint use another UID than the API server, which stores the mirror pod's
/// UID.
#[test]
fn static_pod_uses_the_allocation_of_the_kubelet_uid() {
    let now = Instant::now();
    let mut mirror = PodBuilder { instance: None, ..PodBuilder::vm("mirror", 4) }.build();
    mirror.metadata.annotations =
        Some([("kubernetes.io/config.mirror".to_owned(), "static-uid".to_owned())].into());
    let mirror = bind_to(mirror, "a");
    let allocations = json!([{"podUID": "static-uid", "cpus": "1-4", "zones": [0]}]);
    let allocations = serde_json::from_value(allocations).expect("the allocations should be valid");
    let mut extender = Extender::new_awaiting_pod_list();
    report_host(&mut extender, &HostDescription { allocations, ..host_with_two_zones() }, 1);
    let read = observe_pod(&mirror);
    assert_eq!(read.uid(), "static-uid");
    extender.update_pod(now, mirror, &read).expect("the pod should be counted");
    extender.handle_pod_list(now, &[read.uid().to_owned()].into());
    // The static pod is counted only once, so three CPUs of its zone are free, and the host is available.
    let more = PodBuilder::vm("more", 3).build();
    assert_eq!(extender.answer_filter(now, &more, &["a"]), FilterAnswer::ReservedHost("a"));
    let host = extender.engine().host("a").expect("host a should exist");
    let state = extender.engine().kubelet_state(host).expect("host a should exist");
    assert_eq!(state.free_cpus().len(), 15 - 4 - 3);
}

/// The launcher pod does not end for minutes and retains its CPUs. Meanwhile no pod with NUMA alignment is placed on
/// the host, because it is unknown whether the launcher pod's zone is free when the kubelet admits the new pod. A pod
/// with shared CPUs is placed.
#[test]
fn terminating_launcher_keeps_its_cpus() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_two_zones()]);
    place_and_bind(&mut extender, now, "hangs", 4);
    let allocations = json!([{"podUID": "hangs", "cpus": "1-4", "zones": [0]}]);
    let allocations: Vec<_> =
        serde_json::from_value(allocations).expect("the allocations should be valid");
    report_host(
        &mut extender,
        &HostDescription { allocations: allocations.clone(), ..host_with_two_zones() },
        2,
    );
    let mut terminating = bind_to(PodBuilder::vm("hangs", 4).build(), "a");
    terminating.metadata.deletion_timestamp = Some(
        serde_json::from_value(json!("2026-01-01T00:00:00Z"))
            .expect("the timestamp should be valid"),
    );
    extender
        .update_pod(now, terminating.clone(), &observe_pod(&terminating))
        .expect("the pod should be counted");
    let next = PodBuilder::vm("next", 4).build();
    for minutes in 0..5_u32 {
        let later = now + Duration::from_secs(60) * minutes;
        extender.expire_timeouts(later);
        report_host(
            &mut extender,
            &HostDescription { allocations: allocations.clone(), ..host_with_two_zones() },
            3 + u64::from(minutes),
        );
        assert_eq!(
            refusal_reason(extender.answer_filter(later, &next, &["a"])),
            "node(s) had terminating pods"
        );
    }
    let mut shared_cpu_pod = PodBuilder::vm("shares", 0).build();
    let containers = &mut shared_cpu_pod.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(
        extender.answer_filter(now, &shared_cpu_pod, &["a"]),
        FilterAnswer::ReservedHost("a")
    );
    // The report shows that the kubelet has released the CPUs, but the pod still exists.
    report_host(&mut extender, &host_with_two_zones(), 20);
    assert_eq!(extender.answer_filter(now, &next, &["a"]), FilterAnswer::ReservedHost("a"));
}
