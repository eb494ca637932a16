//! Bound pods that no report lists: a kubelet that was stopped admits these pods in the order of their creation time.

use std::time::{Duration, Instant};

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, bound_to, observed};
use super::scenarios::{extender, report};

const REPORT_DELAY: Duration = Duration::from_secs(6);
const UNREPORTED: &str = "node(s) had new pods that are missing from the agent report";

/// Returns a host with two zones, which have 7 and 8 CPUs for pods.
fn host() -> HostForm {
    let zone = ZoneForm { cpus: 8, memory: 32, huge: 0, small: 0 };
    HostForm { name: "a".to_owned(), zones: vec![zone; 2], ..HostForm::default() }
}

fn place_and_bind(extender: &mut Extender, now: Instant, name: &str, cpus: u64) {
    let pod = PodForm::vm(name, cpus).build();
    assert_eq!(extender.filter(now, &pod, &["a"]), FilterAnswer::Host("a"), "{name}");
    assert_eq!(extender.bind(now, name, "a", None), BindAnswer::Send, "{name}");
    extender.binding_succeeded(now, name);
    let bound_pod = bound_to(pod, "a");
    extender
        .update_pod(now, bound_pod.clone(), &observed(&bound_pod))
        .expect("the pod should be counted");
}

fn refusal_reason(answer: FilterAnswer<'_>) -> String {
    match answer {
        FilterAnswer::Refused(hosts) => hosts[0].1.to_string(),
        other => format!("{other:?}"),
    }
}

/// In the order of binding, the pod with seven CPUs gets the first zone, the pod with four CPUs the second zone, and
/// four more CPUs fit in the second zone. If the pod with four CPUs were admitted first, it would get the first zone,
/// the pod with seven CPUs the second, and no zone would have four free CPUs.
#[test]
fn a_pod_must_fit_in_every_order_of_admission() {
    let now = Instant::now();
    let mut extender = extender(&[host()]);
    place_and_bind(&mut extender, now, "seven", 7);
    place_and_bind(&mut extender, now, "four", 4);
    let more = PodForm::vm("more", 4).build();
    assert_eq!(
        extender.filter(now, &more, &["a"]),
        FilterAnswer::Host("a"),
        "the bindings are recent, so the admission order is known"
    );
    // The agent has not reported the pods in time.
    let late = now + REPORT_DELAY;
    assert!(matches!(extender.bind(late, "more", "a", None), BindAnswer::Refused(_)));
    assert_eq!(refusal_reason(extender.filter(late, &more, &["a"])), UNREPORTED);
    // One CPU is free in every order.
    let small = PodForm::vm("small", 1).build();
    assert_eq!(extender.filter(late, &small, &["a"]), FilterAnswer::Host("a"));
    assert_eq!(extender.bind(late, "small", "a", None), BindAnswer::Send);
    extender.binding_failed(late, "small");
    extender.pod_deleted(late, "small");
    // The report shows that the pods were admitted in the order of binding.
    let allocations = json!([
        {"podUID": "seven", "cpus": "1-7", "zones": [0]},
        {"podUID": "four", "cpus": "8-11", "zones": [1]},
    ]);
    let allocations = serde_json::from_value(allocations).expect("the allocations should be valid");
    report(&mut extender, &HostForm { has: allocations, ..host() }, 2);
    assert_eq!(extender.filter(late, &more, &["a"]), FilterAnswer::Host("a"));
    assert_eq!(extender.bind(late, "more", "a", None), BindAnswer::Send);
}

/// All orders of equal pods count as one order; many different pods have too many orders to compute.
#[test]
fn pod_is_refused_if_admission_orders_are_too_many() {
    let zone = ZoneForm { cpus: 32, memory: 64, huge: 0, small: 0 };
    let host = HostForm { zones: vec![zone; 2], ..host() };
    let now = Instant::now();
    let late = now + REPORT_DELAY;
    let one = PodForm::vm("one", 1).build();
    let mut with_equal_pods = extender(std::slice::from_ref(&host));
    for number in 0..20 {
        place_and_bind(&mut with_equal_pods, now, &format!("alike-{number}"), 1);
    }
    assert_eq!(with_equal_pods.filter(late, &one, &["a"]), FilterAnswer::Host("a"));
    let mut with_different_pods = extender(&[host]);
    for cpus in 1..6 {
        place_and_bind(&mut with_different_pods, now, &format!("other-{cpus}"), cpus);
    }
    let nine = PodForm::vm("nine", 9).build();
    assert_eq!(refusal_reason(with_different_pods.filter(late, &nine, &["a"])), UNREPORTED);
    // A pod without resources of zones is placed on the host.
    let mut shared_cpu_pod = PodForm::vm("shares", 0).build();
    let containers = &mut shared_cpu_pod.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(with_different_pods.filter(late, &shared_cpu_pod, &["a"]), FilterAnswer::Host("a"));
}

/// For a static pod, the kubelet and its checkpoint use another uid than the API server, which stores the mirror pod's
/// uid.
#[test]
fn static_pod_has_the_allocation_with_the_uid_of_the_kubelet() {
    let now = Instant::now();
    let mut mirror = PodForm { instance: None, ..PodForm::vm("mirror", 4) }.build();
    mirror.metadata.annotations =
        Some([("kubernetes.io/config.mirror".to_owned(), "static-uid".to_owned())].into());
    let mirror = bound_to(mirror, "a");
    let allocations = json!([{"podUID": "static-uid", "cpus": "1-4", "zones": [0]}]);
    let allocations = serde_json::from_value(allocations).expect("the allocations should be valid");
    let mut extender = Extender::awaiting_pod_list();
    report(&mut extender, &HostForm { has: allocations, ..host() }, 1);
    let read = observed(&mirror);
    assert_eq!(read.uid(), "static-uid");
    extender.update_pod(now, mirror, &read).expect("the pod should be counted");
    extender.pods_listed(now, &[read.uid().to_owned()].into());
    // The pod is counted once, and the host is available.
    let more = PodForm::vm("more", 3).build();
    assert_eq!(extender.filter(now, &more, &["a"]), FilterAnswer::Host("a"));
    let host = extender.engine().host("a").expect("host a should exist");
    let state = extender.engine().state(host).expect("host a should exist");
    assert_eq!(state.free_cpus().len(), 15 - 4 - 3);
}

/// The launcher hangs for minutes and keeps its CPUs. Meanwhile no pod with NUMA alignment is placed on the host,
/// because it is unknown if the launcher's zone is free when the kubelet admits the pod. A pod with shared CPUs is
/// placed.
#[test]
fn terminating_launcher_keeps_its_cpus() {
    let now = Instant::now();
    let mut extender = extender(&[host()]);
    place_and_bind(&mut extender, now, "hangs", 4);
    let allocations = json!([{"podUID": "hangs", "cpus": "1-4", "zones": [0]}]);
    let allocations: Vec<_> =
        serde_json::from_value(allocations).expect("the allocations should be valid");
    report(&mut extender, &HostForm { has: allocations.clone(), ..host() }, 2);
    let mut terminating = bound_to(PodForm::vm("hangs", 4).build(), "a");
    terminating.metadata.deletion_timestamp = Some(
        serde_json::from_value(json!("2026-01-01T00:00:00Z"))
            .expect("the timestamp should be valid"),
    );
    extender
        .update_pod(now, terminating.clone(), &observed(&terminating))
        .expect("the pod should be counted");
    let next = PodForm::vm("next", 4).build();
    for minutes in 0..5_u32 {
        let later = now + Duration::from_secs(60) * minutes;
        extender.tick(later);
        report(
            &mut extender,
            &HostForm { has: allocations.clone(), ..host() },
            3 + u64::from(minutes),
        );
        assert_eq!(
            refusal_reason(extender.filter(later, &next, &["a"])),
            "node(s) had terminating pods"
        );
    }
    let mut shared_cpu_pod = PodForm::vm("shares", 0).build();
    let containers = &mut shared_cpu_pod.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(extender.filter(now, &shared_cpu_pod, &["a"]), FilterAnswer::Host("a"));
    // The kubelet has released the CPUs, but the pod still exists.
    report(&mut extender, &host(), 20);
    assert_eq!(extender.filter(now, &next, &["a"]), FilterAnswer::Host("a"));
}
