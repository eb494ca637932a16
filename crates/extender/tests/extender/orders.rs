//! Bound pods that no report lists: a kubelet that was stopped admits these pods in the order of their creation time.

use std::time::{Duration, Instant};

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, observed, on};
use super::scenes::{extender, report};

const LATER: Duration = Duration::from_secs(6);
const UNREPORTED: &str = "node(s) had new pods that no agent report lists yet";

/// Zones with 7 and 8 CPUs for pods.
fn host() -> HostForm {
    let zone = ZoneForm { cpus: 8, memory: 32, huge: 0, small: 0 };
    HostForm { name: "a".to_owned(), zones: vec![zone; 2], ..HostForm::default() }
}

fn bound(extender: &mut Extender, now: Instant, name: &str, cpus: u64) {
    let pod = PodForm::vm(name, cpus).build();
    assert_eq!(extender.filter(now, &pod, &["a"]), FilterAnswer::Host("a"), "{name}");
    assert_eq!(extender.bind(now, name, "a", None), BindAnswer::Send, "{name}");
    extender.bound(now, name);
    let there = on(pod, "a");
    extender.pod(now, there.clone(), &observed(&there)).expect("counted");
}

fn why(answer: FilterAnswer<'_>) -> String {
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
    bound(&mut extender, now, "seven", 7);
    bound(&mut extender, now, "four", 4);
    let more = PodForm::vm("more", 4).build();
    assert_eq!(
        extender.filter(now, &more, &["a"]),
        FilterAnswer::Host("a"),
        "reports keep up with bindings"
    );
    // The agent has not reported the pods in time.
    let late = now + LATER;
    assert!(matches!(extender.bind(late, "more", "a", None), BindAnswer::Refused(_)));
    assert_eq!(why(extender.filter(late, &more, &["a"])), UNREPORTED);
    // One CPU is free in every order.
    let small = PodForm::vm("small", 1).build();
    assert_eq!(extender.filter(late, &small, &["a"]), FilterAnswer::Host("a"));
    assert_eq!(extender.bind(late, "small", "a", None), BindAnswer::Send);
    extender.not_bound(late, "small");
    extender.pod_deleted(late, "small");
    // The report shows that the pods were admitted in the order of binding.
    let has = json!([
        {"podUID": "seven", "cpus": "1-7", "zones": [0]},
        {"podUID": "four", "cpus": "8-11", "zones": [1]},
    ]);
    let has = serde_json::from_value(has).expect("allocations");
    report(&mut extender, &HostForm { has, ..host() }, 2);
    assert_eq!(extender.filter(late, &more, &["a"]), FilterAnswer::Host("a"));
    assert_eq!(extender.bind(late, "more", "a", None), BindAnswer::Send);
}

/// All orders of equal pods count as one order; many different pods have too many orders to compute.
#[test]
fn a_pod_is_refused_where_the_orders_are_too_many() {
    let zone = ZoneForm { cpus: 32, memory: 64, huge: 0, small: 0 };
    let host = HostForm { zones: vec![zone; 2], ..host() };
    let now = Instant::now();
    let late = now + LATER;
    let one = PodForm::vm("one", 1).build();
    let mut alike = extender(std::slice::from_ref(&host));
    for number in 0..20 {
        bound(&mut alike, now, &format!("alike-{number}"), 1);
    }
    assert_eq!(alike.filter(late, &one, &["a"]), FilterAnswer::Host("a"));
    let mut others = extender(&[host]);
    for cpus in 1..6 {
        bound(&mut others, now, &format!("other-{cpus}"), cpus);
    }
    let nine = PodForm::vm("nine", 9).build();
    assert_eq!(why(others.filter(late, &nine, &["a"])), UNREPORTED);
    // A pod without resources of zones is placed on the host.
    let mut shares = PodForm::vm("shares", 0).build();
    let containers = &mut shares.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(others.filter(late, &shares, &["a"]), FilterAnswer::Host("a"));
}

/// For a static pod, the kubelet and its checkpoint use another uid than the API server, which stores the mirror pod's
/// uid.
#[test]
fn a_static_pod_has_the_allocation_under_the_kubelets_uid() {
    let now = Instant::now();
    let mut mirror = PodForm { instance: None, ..PodForm::vm("mirror", 4) }.build();
    mirror.metadata.annotations =
        Some([("kubernetes.io/config.mirror".to_owned(), "static-uid".to_owned())].into());
    let mirror = on(mirror, "a");
    let has = json!([{"podUID": "static-uid", "cpus": "1-4", "zones": [0]}]);
    let has = serde_json::from_value(has).expect("allocations");
    let mut extender = Extender::before_listing();
    report(&mut extender, &HostForm { has, ..host() }, 1);
    let read = observed(&mirror);
    assert_eq!(read.uid(), "static-uid");
    extender.pod(now, mirror, &read).expect("counted");
    extender.pods_listed(now, &[read.uid().to_owned()].into());
    // The pod is counted once, and the host is available.
    let more = PodForm::vm("more", 3).build();
    assert_eq!(extender.filter(now, &more, &["a"]), FilterAnswer::Host("a"));
    let host = extender.engine().host("a").expect("the host");
    let state = extender.engine().state(host).expect("the host");
    assert_eq!(state.free_cpus().len(), 15 - 4 - 3);
}

/// The launcher hangs for minutes and keeps its CPUs. Meanwhile no pod with NUMA alignment is placed on the host,
/// because it is unknown if the launcher's zone is free when the kubelet admits the pod. A pod with shared CPUs is
/// placed.
#[test]
fn a_launcher_that_hangs_keeps_its_cpus() {
    let now = Instant::now();
    let mut extender = extender(&[host()]);
    bound(&mut extender, now, "hangs", 4);
    let has = json!([{"podUID": "hangs", "cpus": "1-4", "zones": [0]}]);
    let has: Vec<_> = serde_json::from_value(has).expect("allocations");
    report(&mut extender, &HostForm { has: has.clone(), ..host() }, 2);
    let mut ends = on(PodForm::vm("hangs", 4).build(), "a");
    ends.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    extender.pod(now, ends.clone(), &observed(&ends)).expect("counted");
    let next = PodForm::vm("next", 4).build();
    for minutes in 0..5_u32 {
        let later = now + Duration::from_secs(60) * minutes;
        extender.tick(later);
        report(&mut extender, &HostForm { has: has.clone(), ..host() }, 3 + u64::from(minutes));
        assert_eq!(why(extender.filter(later, &next, &["a"])), "node(s) had terminating pods");
    }
    let mut shares = PodForm::vm("shares", 0).build();
    let containers = &mut shares.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(extender.filter(now, &shares, &["a"]), FilterAnswer::Host("a"));
    // The kubelet has released the CPUs, but the pod still exists.
    report(&mut extender, &host(), 20);
    assert_eq!(extender.filter(now, &next, &["a"]), FilterAnswer::Host("a"));
}
