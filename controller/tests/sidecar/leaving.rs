//! Hosts and pods that go, and what is left of them: nothing.

use std::collections::HashSet;
use std::time::Instant;

use berth_extender::{Answer, Bind, Desk};
use k8s_openapi::api::core::v1;
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, on, seen};
use super::scenes::{desk, tell};

fn host(name: &str) -> HostForm {
    let zone = ZoneForm { cpus: 9, memory: 64, huge: 0, small: 0 };
    HostForm { name: name.to_owned(), zones: vec![zone], ..HostForm::default() }
}

/// One of those that are spread over hosts, at most one more on one than on another.
fn spread(name: &str) -> v1::Pod {
    let mut pod = PodForm::vm(name, 1).build();
    pod.metadata.labels.get_or_insert_default().insert("app".to_owned(), "web".to_owned());
    let constraint = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
    let constraint = serde_json::from_value(constraint).expect("a constraint");
    pod.spec.get_or_insert_default().topology_spread_constraints = Some(vec![constraint]);
    pod
}

fn is_on(desk: &mut Desk, now: Instant, pod: v1::Pod, host: &str) {
    let there = on(pod, host);
    desk.pod(now, there.clone(), &seen(&there)).expect("counted");
}

#[test]
fn a_node_that_is_deleted_counts_for_nothing() {
    let now = Instant::now();
    let mut desk = desk(&[host("a"), host("b"), host("c")]);
    is_on(&mut desk, now, spread("one"), "a");
    is_on(&mut desk, now, spread("two"), "b");
    let third = spread("three");
    // C is cordoned in the scheduler's eyes, and has none.
    assert!(matches!(desk.filter(now, &third, &["a", "b"]), Answer::Refused(_)));
    desk.node_is_gone("c");
    assert_eq!(desk.wake().len(), 1, "what was refused by its emptiness is looked at again");
    assert!(matches!(desk.filter(now, &third, &["a", "b"]), Answer::Host(_)));
    let names: Vec<_> = desk.engine().hosts().map(|(_, facts)| facts.name.clone()).collect();
    assert_eq!(names, ["a", "b"]);
    desk.node_is_gone("nobody-knows-it");
}

#[test]
fn a_node_that_comes_back_has_its_pods() {
    let now = Instant::now();
    let mut desk = desk(&[host("a")]);
    is_on(&mut desk, now, PodForm::vm("vm", 8).build(), "a");
    desk.node_is_gone("a");
    let other = PodForm::vm("other", 2).build();
    let Answer::Refused(why) = desk.filter(now, &other, &["a"]) else { unreachable!("no host") };
    assert_eq!(why[0].1, "node(s) had no agent report");
    assert!(matches!(desk.bind(now, "other", "a", Some(&other)), Bind::Refused(_)));
    tell(&mut desk, &host("a"), 1);
    assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)), "it is full");
    assert_eq!(desk.stages().bound, 1);
    desk.pod_is_gone(now, "vm");
    desk.tick(now + std::time::Duration::from_secs(120));
    assert_eq!(desk.filter(now, &other, &["a"]), Answer::Host("a"));
}

/// A pod that has nothing of zones, and hangs.
#[test]
fn what_hangs_on_a_host_that_comes_back_keeps_nobody_away() {
    let now = Instant::now();
    let mut desk = desk(&[host("a")]);
    let mut hangs = PodForm { beside: 100, ..PodForm::vm("hangs", 0) }.build();
    hangs.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    let containers = &mut hangs.spec.get_or_insert_default().containers;
    containers.iter_mut().for_each(|one| one.resources = None);
    is_on(&mut desk, now, hangs, "a");
    desk.node_is_gone("a");
    tell(&mut desk, &host("a"), 1);
    let vm = PodForm::vm("vm", 8).build();
    assert_eq!(desk.filter(now, &vm, &["a"]), Answer::Host("a"));
}

/// Its pods are taken away with it, but the kubelet has them a moment longer.
#[test]
fn what_was_on_a_host_that_is_gone_is_not_free_at_once() {
    let now = Instant::now();
    let mut desk = Desk::unlisted();
    tell(&mut desk, &host("a"), 1);
    desk.pods_listed(now, &HashSet::new());
    is_on(&mut desk, now, PodForm::vm("vm", 8).build(), "a");
    desk.node_is_gone("a");
    desk.pod_is_gone(now, "vm");
    tell(&mut desk, &host("a"), 1);
    let other = PodForm::vm("other", 8).build();
    assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)));
    desk.tick(now + std::time::Duration::from_secs(120));
    assert_eq!(desk.filter(now, &other, &["a"]), Answer::Host("a"));
}

/// A watch that was broken does not tell of what went meanwhile; the next list does.
#[test]
fn what_a_list_lacks_has_gone() {
    let now = Instant::now();
    let mut desk = desk(&[host("a")]);
    let pod = PodForm::vm("vm", 8).build();
    desk.pod(now, pod.clone(), &seen(&pod)).expect("counted");
    assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"));
    let waits = PodForm::vm("waits", 8).build();
    desk.pod(now, waits.clone(), &seen(&waits)).expect("counted");
    assert!(matches!(desk.filter(now, &waits, &["a"]), Answer::Refused(_)));
    assert!(desk.has_waiting());
    desk.pods_listed(now, &HashSet::new());
    assert!(!desk.has_waiting() && desk.is_quiet());
    let other = PodForm::vm("other", 8).build();
    assert_eq!(desk.filter(now, &other, &["a"]), Answer::Host("a"));
}

#[test]
fn of_many_kinds_that_wait_each_has_its_turn() {
    let now = Instant::now();
    let mut desk = desk(&[host("a")]);
    let first = PodForm::vm("first", 8).build();
    assert_eq!(desk.filter(now, &first, &["a"]), Answer::Host("a"));
    for cpus in 9..150 {
        let never = PodForm::vm(&format!("never-{cpus}"), cpus).build();
        assert!(matches!(desk.filter(now, &never, &["a"]), Answer::Refused(_)));
    }
    let small = PodForm::vm("small", 3).build();
    assert!(matches!(desk.filter(now, &small, &["a"]), Answer::Refused(_)));
    desk.pod_is_gone(now, "first");
    let mut woken = Vec::new();
    for version in 2..6 {
        woken.extend(desk.wake());
        // Something always changes.
        let zone = ZoneForm { cpus: 2, memory: 64, huge: 0, small: 0 };
        tell(&mut desk, &HostForm { zones: vec![zone], ..host("b") }, version);
    }
    assert_eq!(woken, ["a"]);
}
