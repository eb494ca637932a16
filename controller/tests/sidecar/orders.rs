//! Pods that were bound and that no report lists: a kubelet that was away admits them by their time of creation.

use std::time::{Duration, Instant};

use berth_extender::{Answer, Bind, Desk};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, on, seen};
use super::scenes::{desk, tell};

const LATER: Duration = Duration::from_secs(6);
const UNREPORTED: &str = "node(s) had new pods that no agent report lists yet";

/// Zones with 7 and 8 CPUs for pods.
fn host() -> HostForm {
    let zone = ZoneForm { cpus: 8, memory: 32, huge: 0, small: 0 };
    HostForm { name: "a".to_owned(), zones: vec![zone; 2], ..HostForm::default() }
}

fn bound(desk: &mut Desk, now: Instant, name: &str, cpus: u64) {
    let pod = PodForm::vm(name, cpus).build();
    assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"), "{name}");
    assert_eq!(desk.bind(now, name, "a", None), Bind::Send, "{name}");
    desk.bound(now, name);
    let there = on(pod, "a");
    desk.pod(now, there.clone(), &seen(&there)).expect("counted");
}

fn why(answer: Answer<'_>) -> String {
    match answer {
        Answer::Refused(hosts) => hosts[0].1.to_string(),
        other => format!("{other:?}"),
    }
}

/// Seven CPUs go to the first zone and four to the second, as they were bound, and four more fit beside these. Were the
/// four admitted first, they would have the first zone, the seven the second, and no zone would have four left.
#[test]
fn a_pod_must_fit_in_every_order_of_admission() {
    let now = Instant::now();
    let mut desk = desk(&[host()]);
    bound(&mut desk, now, "seven", 7);
    bound(&mut desk, now, "four", 4);
    let more = PodForm::vm("more", 4).build();
    assert_eq!(desk.filter(now, &more, &["a"]), Answer::Host("a"), "reports keep up");
    // The kubelet does not answer.
    let late = now + LATER;
    assert!(matches!(desk.bind(late, "more", "a", None), Bind::Refused(_)));
    assert_eq!(why(desk.filter(late, &more, &["a"])), UNREPORTED);
    // One CPU is left over whatever the order.
    let small = PodForm::vm("small", 1).build();
    assert_eq!(desk.filter(late, &small, &["a"]), Answer::Host("a"));
    assert_eq!(desk.bind(late, "small", "a", None), Bind::Send);
    desk.not_bound(late, "small");
    desk.pod_is_gone(late, "small");
    // It has answered: the order was that of the bindings.
    let has = json!([
        {"podUID": "seven", "cpus": "1-7", "zones": [0]},
        {"podUID": "four", "cpus": "8-11", "zones": [1]},
    ]);
    let has = serde_json::from_value(has).expect("allocations");
    tell(&mut desk, &HostForm { has, ..host() }, 2);
    assert_eq!(desk.filter(late, &more, &["a"]), Answer::Host("a"));
    assert_eq!(desk.bind(late, "more", "a", None), Bind::Send);
}

/// All orders of pods that are alike are one, however many there are; of many that differ nothing is foreseen.
#[test]
fn what_cannot_be_foreseen_is_refused() {
    let zone = ZoneForm { cpus: 32, memory: 64, huge: 0, small: 0 };
    let host = HostForm { zones: vec![zone; 2], ..host() };
    let now = Instant::now();
    let late = now + LATER;
    let one = PodForm::vm("one", 1).build();
    let mut alike = desk(std::slice::from_ref(&host));
    for number in 0..20 {
        bound(&mut alike, now, &format!("alike-{number}"), 1);
    }
    assert_eq!(alike.filter(late, &one, &["a"]), Answer::Host("a"));
    let mut others = desk(&[host]);
    for cpus in 1..6 {
        bound(&mut others, now, &format!("other-{cpus}"), cpus);
    }
    let nine = PodForm::vm("nine", 9).build();
    assert_eq!(why(others.filter(late, &nine, &["a"])), UNREPORTED);
    // What takes nothing of zones goes there all the same.
    let mut shares = PodForm::vm("shares", 0).build();
    let containers = &mut shares.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(others.filter(late, &shares, &["a"]), Answer::Host("a"));
}

/// The kubelet knows a static pod by a uid of its own, and so does its checkpoint; the API server has the mirror's.
#[test]
fn a_static_pod_has_what_is_listed_under_its_own_uid() {
    let now = Instant::now();
    let mut mirror = PodForm { instance: None, ..PodForm::vm("mirror", 4) }.build();
    mirror.metadata.annotations =
        Some([("kubernetes.io/config.mirror".to_owned(), "static-uid".to_owned())].into());
    let mirror = on(mirror, "a");
    let has = json!([{"podUID": "static-uid", "cpus": "1-4", "zones": [0]}]);
    let has = serde_json::from_value(has).expect("allocations");
    let mut desk = Desk::unlisted();
    tell(&mut desk, &HostForm { has, ..host() }, 1);
    let read = seen(&mirror);
    assert_eq!(read.uid(), "static-uid");
    desk.pod(now, mirror, &read).expect("counted");
    desk.pods_listed(now, &[read.uid().to_owned()].into());
    // Counted once, and nothing about the host is in doubt.
    let more = PodForm::vm("more", 3).build();
    assert_eq!(desk.filter(now, &more, &["a"]), Answer::Host("a"));
    let host = desk.engine().host("a").expect("the host");
    let state = desk.engine().state(host).expect("the host");
    assert_eq!(state.free_cpus().len(), 15 - 4 - 3);
}

/// The launcher hangs for minutes and keeps its CPUs; nothing that would be aligned beside it is placed meanwhile, as its
/// zone may be free when the kubelet looks, or may not. What shares CPUs is.
#[test]
fn a_launcher_that_hangs_keeps_its_cpus() {
    let now = Instant::now();
    let mut desk = desk(&[host()]);
    bound(&mut desk, now, "hangs", 4);
    let has = json!([{"podUID": "hangs", "cpus": "1-4", "zones": [0]}]);
    let has: Vec<_> = serde_json::from_value(has).expect("allocations");
    tell(&mut desk, &HostForm { has: has.clone(), ..host() }, 2);
    let mut ends = on(PodForm::vm("hangs", 4).build(), "a");
    ends.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    desk.pod(now, ends.clone(), &seen(&ends)).expect("counted");
    let next = PodForm::vm("next", 4).build();
    for minutes in 0..5_u32 {
        let later = now + Duration::from_secs(60) * minutes;
        desk.tick(later);
        tell(&mut desk, &HostForm { has: has.clone(), ..host() }, 3 + u64::from(minutes));
        assert_eq!(
            why(desk.filter(later, &next, &["a"])),
            "node(s) had pods that are just leaving"
        );
    }
    let mut shares = PodForm::vm("shares", 0).build();
    let containers = &mut shares.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    assert_eq!(desk.filter(now, &shares, &["a"]), Answer::Host("a"));
    // Its kubelet has released them, while the pod is still there.
    tell(&mut desk, &host(), 20);
    assert_eq!(desk.filter(now, &next, &["a"]), Answer::Host("a"));
}
