//! Memory of ended pods that a report still lists: the kubelet removes such memory from the checkpoint of its Memory
//! Manager only when it admits another pod.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use berth_api::Class;
use berth_api::infra_node::Allocation;
use berth_extender::{BindAnswer, Extender, FilterAnswer};
use k8s_openapi::api::core::v1;
use serde_json::json;

use super::cluster::memory_of_ended_pod;
use super::host::{HostDescription, ZoneDescription};
use super::pod::{PodBuilder, bind_to, observe_pod};

const SECOND: Duration = Duration::from_secs(1);
const TERMINATING_REASON: &str = "node(s) had terminating pods";

/// Returns a builder for a pod that requests all huge pages of the host.
fn pod_with_all_pages(name: &str) -> PodBuilder {
    PodBuilder { huge_pages_gib: 8, ..PodBuilder::vm(name, 4) }
}

/// Returns the allocation that a report lists while a pod from [`pod_with_all_pages`] runs.
fn running_allocation(uid: &str) -> Allocation {
    let allocation = json!({
        "podUID": uid, "cpus": "1-4", "zones": [0], "hugepages": [{"size": "1Gi", "count": 8}],
        "hasControlGroup": true,
        "containers": [{"name": "compute", "cpus": "1-4",
            "memory": [{"pageSize": "1Gi", "size": "8Gi", "zones": [0]}]}],
    });
    serde_json::from_value(allocation).expect("the allocation should be valid")
}

/// Returns the allocation that a report lists after a pod from [`pod_with_all_pages`] has ended.
fn stale_allocation(uid: &str) -> Allocation {
    memory_of_ended_pod(running_allocation(uid)).expect("the pod should have memory")
}

/// Delivers a report of host a, which has one NUMA zone with 8 CPUs for pods. `listed` is the only allocation in the
/// report.
fn deliver_report(
    extender: &mut Extender,
    now: Instant,
    listed: Option<&Allocation>,
    version: u64,
) {
    let zone = ZoneDescription { cpus: 9, memory: 64, huge_pages_gib: 8, small_pages_mib: 0 };
    let description = HostDescription {
        name: "a".to_owned(),
        zones: vec![zone],
        allocations: listed.into_iter().cloned().collect(),
        ..HostDescription::default()
    };
    let (facts, problems) = description.reported_host().expect("the report should be valid");
    assert!(problems.is_empty(), "{problems:?}");
    extender
        .update_host(now, "a", Some((facts, Class::Standard)), Some(version))
        .expect("the host update should succeed");
}

fn add_bound_pod(extender: &mut Extender, now: Instant, pod: v1::Pod) {
    let pod = bind_to(pod, "a");
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be counted");
}

/// Returns an extender after the deletion of the pod `ended`. The last report, which was sent after the deletion, lists
/// the allocation `listed`.
fn extender_after_deletion(now: Instant, listed: &Allocation) -> Extender {
    let mut extender = Extender::new();
    deliver_report(&mut extender, now, None, 1);
    add_bound_pod(&mut extender, now, pod_with_all_pages("ended").build());
    deliver_report(&mut extender, now, Some(&running_allocation("ended")), 2);
    extender.delete_pod(now, "ended");
    deliver_report(&mut extender, now, Some(listed), 3);
    extender
}

/// Returns the reason why host a refuses a pod; `None` if the host accepts the pod.
fn refusal_reason(extender: &mut Extender, now: Instant, pod: &v1::Pod) -> Option<String> {
    match extender.answer_filter(now, pod, &["a"]) {
        FilterAnswer::Refused(hosts) => Some(hosts[0].1.to_string()),
        answer => {
            assert_eq!(answer, FilterAnswer::ReservedHost("a"));
            None
        }
    }
}

#[test]
fn memory_of_a_deleted_pod_becomes_stale() {
    let now = Instant::now();
    let ended = stale_allocation("ended");
    let mut extender = extender_after_deletion(now, &ended);
    let next = pod_with_all_pages("next").build();
    for seconds in [0, 9] {
        let later = now + SECOND * seconds;
        extender.expire_timeouts(later);
        let reason = refusal_reason(&mut extender, later, &next);
        assert_eq!(
            reason.as_deref(),
            Some(TERMINATING_REASON),
            "the host should refuse the pod after {seconds} s"
        );
        assert!(
            extender.take_hosts_to_patch().is_empty(),
            "no host should be patched after {seconds} s"
        );
    }
    let later = now + SECOND * 10;
    extender.expire_timeouts(later);
    assert_eq!(extender.take_hosts_to_patch(), ["a"]);
    assert_eq!(refusal_reason(&mut extender, later, &next), None);
    // Until the kubelet admits the pod `next`, the report still lists the memory of the pod `ended`.
    deliver_report(&mut extender, later, Some(&ended), 4);
    assert_eq!(extender.answer_bind(later, "next", "a", None), BindAnswer::SendBinding);
    extender.record_binding_success(later, "next");
    deliver_report(&mut extender, later, Some(&ended), 5);
    let small = PodBuilder::vm("small", 4).build();
    assert_eq!(refusal_reason(&mut extender, later, &small), None);
    // After the kubelet has admitted the pod `next`, the memory of this pod counts.
    deliver_report(&mut extender, later, Some(&running_allocation("next")), 6);
    assert!(refusal_reason(&mut extender, later, &pod_with_all_pages("last").build()).is_some());
}

/// Three reports that do not prove the end of a deleted pod: the pod still has a control group, because it was deleted
/// by force and its containers still run; the agent does not report control groups; the kubelet has not released the
/// CPUs.
#[test]
fn allocation_without_evidence_of_the_end_counts() {
    let now = Instant::now();
    let ended = stale_allocation("ended");
    for listed in [
        Allocation { has_control_group: Some(true), ..ended.clone() },
        Allocation { has_control_group: None, ..ended.clone() },
        Allocation { has_control_group: Some(false), ..running_allocation("ended") },
    ] {
        let mut extender = extender_after_deletion(now, &listed);
        for minutes in 0..5 {
            let later = now + SECOND * 60 * minutes;
            extender.expire_timeouts(later);
            let reason = refusal_reason(&mut extender, later, &PodBuilder::vm("next", 1).build());
            assert_eq!(reason.as_deref(), Some(TERMINATING_REASON), "{listed:?}");
        }
    }
}

/// The pod is in phase `Succeeded`, but was not deleted.
#[test]
fn memory_of_a_completed_pod_becomes_stale() {
    let now = Instant::now();
    let mut extender = Extender::new();
    deliver_report(&mut extender, now, None, 1);
    let mut pod = pod_with_all_pages("ended").build();
    add_bound_pod(&mut extender, now, pod.clone());
    deliver_report(&mut extender, now, Some(&running_allocation("ended")), 2);
    pod.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
    add_bound_pod(&mut extender, now, pod);
    deliver_report(&mut extender, now, Some(&stale_allocation("ended")), 3);
    let next = pod_with_all_pages("next").build();
    assert!(refusal_reason(&mut extender, now, &next).is_some());
    extender.expire_timeouts(now + SECOND * 10);
    assert_eq!(refusal_reason(&mut extender, now + SECOND * 10, &next), None);
}

/// After a restart, the extender does not know that the pod `ended` was deleted.
#[test]
fn memory_of_an_unknown_pod_becomes_stale_a_minute_after_the_list() {
    let now = Instant::now();
    let mut extender = Extender::new_awaiting_pod_list();
    deliver_report(&mut extender, now, Some(&stale_allocation("ended")), 1);
    extender.expire_timeouts(now + SECOND * 100);
    let listed_at = now + SECOND * 100;
    extender.handle_pod_list(listed_at, &HashSet::new());
    let next = pod_with_all_pages("next").build();
    for seconds in [0, 59] {
        let later = listed_at + SECOND * seconds;
        extender.expire_timeouts(later);
        assert!(
            refusal_reason(&mut extender, later, &next).is_some(),
            "the host should refuse the pod after {seconds} s"
        );
    }
    extender.expire_timeouts(listed_at + SECOND * 60);
    assert_eq!(refusal_reason(&mut extender, listed_at + SECOND * 60, &next), None);
}

/// The kubelet has just admitted the pod `new`, and the report lists the pod before the watch shows it.
#[test]
fn allocation_of_a_new_pod_counts() {
    let now = Instant::now();
    let mut extender = Extender::new();
    deliver_report(&mut extender, now, None, 1);
    deliver_report(&mut extender, now, Some(&stale_allocation("new")), 2);
    let small = PodBuilder::vm("small", 1).build();
    let reason = refusal_reason(&mut extender, now, &small);
    assert_eq!(reason.as_deref(), Some(TERMINATING_REASON));
    add_bound_pod(&mut extender, now, pod_with_all_pages("new").build());
    for seconds in [1, 600] {
        let later = now + SECOND * seconds;
        extender.expire_timeouts(later);
        assert_eq!(
            refusal_reason(&mut extender, later, &small),
            None,
            "the host should accept the small pod after {seconds} s"
        );
        let reason = refusal_reason(&mut extender, later, &pod_with_all_pages("next").build());
        assert!(
            reason.is_some(),
            "the host should refuse the pod with all pages after {seconds} s"
        );
    }
}

/// The watch never showed the pod `ended`, so the extender did not observe its end.
#[test]
fn memory_of_an_unknown_pod_becomes_stale_after_a_minute() {
    let now = Instant::now();
    let mut extender = Extender::new();
    deliver_report(&mut extender, now, None, 1);
    deliver_report(&mut extender, now, Some(&running_allocation("ended")), 2);
    deliver_report(&mut extender, now, Some(&stale_allocation("ended")), 3);
    expect_stale_after_a_minute(&mut extender, now);
}

/// The only report about the running pod was read before the kubelet created the pod's control group. Then the pod was
/// deleted by force, so no report shows the end of its containers.
#[test]
fn memory_of_a_deleted_pod_without_a_control_group_before_becomes_stale_after_a_minute() {
    let now = Instant::now();
    let mut extender = Extender::new();
    deliver_report(&mut extender, now, None, 1);
    add_bound_pod(&mut extender, now, pod_with_all_pages("ended").build());
    deliver_report(&mut extender, now, Some(&stale_allocation("ended")), 2);
    extender.delete_pod(now, "ended");
    deliver_report(&mut extender, now, Some(&stale_allocation("ended")), 3);
    expect_stale_after_a_minute(&mut extender, now);
}

/// Tests that host a refuses pods for a minute because a pod is terminating, and then accepts a pod.
fn expect_stale_after_a_minute(extender: &mut Extender, now: Instant) {
    let next = pod_with_all_pages("next").build();
    for seconds in [0, 59] {
        let later = now + SECOND * seconds;
        extender.expire_timeouts(later);
        let reason = refusal_reason(extender, later, &next);
        assert_eq!(
            reason.as_deref(),
            Some(TERMINATING_REASON),
            "the host should refuse the pod after {seconds} s"
        );
    }
    extender.expire_timeouts(now + SECOND * 60);
    assert_eq!(refusal_reason(extender, now + SECOND * 60, &next), None);
}

/// For a static pod, the report lists the UID that the kubelet uses, but the API server lists the UID of the mirror
/// pod.
#[test]
fn allocation_of_a_static_pod_counts() {
    let now = Instant::now();
    let mut mirror = PodBuilder { instance: None, ..pod_with_all_pages("mirror") }.build();
    mirror.metadata.annotations =
        Some([("kubernetes.io/config.mirror".to_owned(), "static-uid".to_owned())].into());
    let mut extender = Extender::new();
    deliver_report(&mut extender, now, None, 1);
    add_bound_pod(&mut extender, now, mirror);
    deliver_report(&mut extender, now, Some(&stale_allocation("static-uid")), 2);
    for minutes in 0..5 {
        let later = now + SECOND * 60 * minutes;
        extender.expire_timeouts(later);
        // The static pod counts as running: the host does not await its removal, and its memory is not free.
        let small = PodBuilder::vm("small", 1).build();
        assert_eq!(
            refusal_reason(&mut extender, later, &small),
            None,
            "the host should accept the small pod after {minutes} minutes"
        );
        let next = pod_with_all_pages("next").build();
        assert!(
            refusal_reason(&mut extender, later, &next).is_some(),
            "the host should refuse the pod with all pages after {minutes} minutes"
        );
        let host = extender.engine().host("a").expect("the host should exist");
        let reported = extender.engine().reported_host(host).expect("the host has a report");
        assert!(reported.allocations.iter().any(|one| one.uid == "static-uid"));
    }
}
