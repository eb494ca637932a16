//! Scenes that a person would want to read.

use std::time::{Duration, Instant};

use berth_api::Class;
use berth_extender::{Answer, Bind, Desk};

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, on, seen};

const MINUTE: Duration = Duration::from_secs(60);

fn one_zone(name: &str, cpus: u32) -> HostForm {
    let zone = ZoneForm { cpus: cpus + 1, memory: 64, huge: 16, small: 0 };
    HostForm { name: name.to_owned(), zones: vec![zone], ..HostForm::default() }
}

pub(crate) fn tell(desk: &mut Desk, form: &HostForm, version: u64) {
    let (facts, _) = form.facts().expect("a host");
    let told = Some((facts, Class::Standard));
    desk.host(Instant::now(), &form.name, told, Some(version)).expect("a host");
}

pub(crate) fn desk(hosts: &[HostForm]) -> Desk {
    let mut desk = Desk::new();
    for form in hosts {
        tell(&mut desk, form, 1);
    }
    desk
}

#[test]
fn one_host_is_answered_and_reserved() {
    let mut desk = desk(&[one_zone("a", 8), one_zone("b", 8)]);
    let now = Instant::now();
    let names = ["a", "unknown", "b"];
    let first = PodForm::vm("first", 8).build();
    assert_eq!(desk.filter(now, &first, &names), Answer::Host("a"));
    assert_eq!(desk.filter(now, &first, &names), Answer::Host("a"), "asked twice");
    assert_eq!(desk.filter(now, &first, &["b"]), Answer::Host("b"), "the other one alone");
    assert_eq!(desk.filter(now, &first, &["a"]), Answer::Host("a"));
    let second = PodForm::vm("second", 8).build();
    assert_eq!(desk.filter(now, &second, &names), Answer::Host("b"));
    let third = PodForm::vm("third", 8).build();
    let Answer::Refused(why) = desk.filter(now, &third, &names) else { unreachable!("it is full") };
    let why: Vec<(&str, &str)> = why.iter().map(|(name, why)| (*name, why.as_ref())).collect();
    assert_eq!(why[1], ("unknown", "node(s) had no agent report"));
    assert_eq!(why[0].1, why[2].1, "equal reasons have equal words");
    assert!(!why[0].1.contains(|c: char| c.is_ascii_digit()), "{why:?}");
    // What was promised and not taken is given back, and whoever waits is told where.
    assert!(desk.wake().is_empty());
    desk.tick(now + MINUTE);
    assert_eq!(desk.wake().len(), 1);
    assert!(desk.wake().is_empty(), "once for each refusal");
    assert!(matches!(desk.filter(now + MINUTE, &third, &names), Answer::Host(_)));
}

#[test]
fn a_binding_is_looked_at_again() {
    let mut desk = desk(&[one_zone("a", 8), one_zone("b", 8)]);
    let now = Instant::now();
    let pod = PodForm::vm("vm", 8).build();
    assert_eq!(desk.filter(now, &pod, &["a", "b"]), Answer::Host("a"));
    assert!(matches!(desk.bind(now, "vm", "b", None), Bind::Refused(_)), "not where it was sent");
    assert_eq!(desk.bind(now, "vm", "a", None), Bind::Send);
    assert!(matches!(desk.bind(now, "vm", "a", None), Bind::NotYet(_)));
    desk.bound(now, "vm");
    assert_eq!(desk.bind(now, "vm", "a", None), Bind::Done);
    // One that nobody has asked about, as after a restart.
    let late = PodForm::vm("late", 4).build();
    assert_eq!(desk.bind(now, "late", "b", None), Bind::Unknown);
    assert!(matches!(desk.bind(now, "other", "b", Some(&late)), Bind::Refused(_)), "another uid");
    assert_eq!(desk.bind(now, "late", "b", Some(&late)), Bind::Send);
    let full = PodForm::vm("full", 4).build();
    assert!(matches!(desk.bind(now, "full", "a", Some(&full)), Bind::Refused(_)));
    assert!(matches!(desk.bind(now, "full", "nobody", Some(&full)), Bind::Refused(_)));
}

/// A kubelet gives the first zone that has room to whoever comes first.
#[test]
fn bindings_out_of_order_take_nothing_from_each_other() {
    let zone = |cpus| ZoneForm { cpus, memory: 32, huge: 0, small: 0 };
    // Of the first zone one CPU is the system's.
    let host =
        HostForm { name: "a".to_owned(), zones: vec![zone(9), zone(4)], ..HostForm::default() };
    let mut desk = desk(&[host]);
    let now = Instant::now();
    let large = PodForm::vm("large", 6).build();
    assert_eq!(desk.filter(now, &large, &["a"]), Answer::Host("a"));
    // It fits beside, but were it first it would have the zone that the large one needs.
    let small = PodForm::vm("small", 4).build();
    assert!(matches!(desk.filter(now, &small, &["a"]), Answer::Refused(_)));
    assert!(matches!(desk.bind(now, "small", "a", Some(&small)), Bind::Refused(_)));
    assert_eq!(desk.bind(now, "large", "a", None), Bind::Send);
    assert_eq!(desk.filter(now, &small, &["a"]), Answer::Host("a"));
    assert_eq!(desk.bind(now, "small", "a", None), Bind::Send);
}

#[test]
fn both_orders_of_binding_and_watch() {
    for told_first in [true, false] {
        let mut desk = desk(&[one_zone("a", 8)]);
        let now = Instant::now();
        let pod = PodForm::vm("vm", 6).build();
        assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"));
        assert_eq!(desk.bind(now, "vm", "a", None), Bind::Send);
        let there = on(pod.clone(), "a");
        if told_first {
            desk.pod(now, there.clone(), &seen(&there)).expect("counted");
            desk.bound(now, "vm");
        } else {
            desk.bound(now, "vm");
            desk.pod(now, there.clone(), &seen(&there)).expect("counted");
        }
        desk.tick(now + 10 * MINUTE);
        assert_eq!(desk.stages().bound, 1);
        let other = PodForm::vm("other", 6).build();
        assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)));
        // No report has told of it, so its kubelet may have it for a moment longer.
        desk.pod_is_gone(now, "vm");
        assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)));
        assert!(matches!(desk.filter(now, &pod, &["a"]), Answer::Wrong(_)), "it has gone");
        desk.tick(now + MINUTE);
        assert_eq!(desk.wake(), ["a"]);
        assert_eq!(desk.filter(now, &other, &["a"]), Answer::Host("a"));
    }
}

#[test]
fn an_outcome_that_nobody_knows_holds_the_place() {
    let mut desk = desk(&[one_zone("a", 8)]);
    let now = Instant::now();
    let pod = PodForm::vm("vm", 6).build();
    assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"));
    assert_eq!(desk.bind(now, "vm", "a", None), Bind::Send);
    assert!(matches!(desk.filter(now, &pod, &["a"]), Answer::NotYet(_)));
    let other = PodForm::vm("other", 6).build();
    assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)));
    desk.not_bound(now, "vm");
    assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"));
}

#[test]
fn a_stale_report_takes_no_new_pinned_vm_and_wakes_when_it_is_fresh() {
    let fresh = one_zone("a", 8);
    let mut desk = desk(&[HostForm { stale: true, ..fresh.clone() }]);
    let now = Instant::now();
    let pod = PodForm::vm("vm", 6).build();
    let Answer::Refused(why) = desk.filter(now, &pod, &["a"]) else { unreachable!("it is stale") };
    assert_eq!(why[0].1, "node(s) had a stale agent report");
    tell(&mut desk, &fresh, 2);
    assert_eq!(desk.wake(), ["a"]);
    // A report from before comes late: it is not taken.
    tell(&mut desk, &HostForm { stale: true, ..fresh.clone() }, 1);
    assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"));
    // A host that cannot be read keeps what it has, and gets nothing.
    desk.host(Instant::now(), "a", None, Some(3)).expect("told");
    let other = PodForm::vm("other", 1).build();
    assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)));
    assert!(matches!(desk.bind(now, "vm", "a", None), Bind::Refused(_)));
}

#[test]
fn both_pods_of_a_migration_have_their_own() {
    let mut desk = desk(&[one_zone("a", 8), one_zone("b", 8)]);
    let now = Instant::now();
    let source = on(PodForm::vm("vm", 6).build(), "a");
    desk.pod(now, source.clone(), &seen(&source)).expect("counted");
    let form = PodForm {
        name: "target".to_owned(),
        migration: Some("migration".to_owned()),
        ..PodForm::vm("vm", 6)
    };
    let target = form.build();
    assert_eq!(desk.filter(now, &target, &["b"]), Answer::Host("b"));
    assert_eq!(desk.stages().bound, 1);
    // The migration fails before its pod was bound.
    desk.pod_is_gone(now, "target");
    let other = PodForm::vm("other", 6).build();
    assert_eq!(desk.filter(now, &other, &["a", "b"]), Answer::Host("b"));
}

/// kube-scheduler 1.36 asks for each placement that it simulates, and does not tell which of them it drops.
#[test]
fn what_a_pod_group_simulates_is_replaced_and_expires_soon() {
    let mut desk = desk(&[one_zone("a", 8), one_zone("b", 8)]);
    let now = Instant::now();
    let pods = ["first", "second"].map(|name| PodForm::vm(name, 8).build());
    for hosts in [["a"], ["b"]] {
        assert_eq!(desk.filter_of_group(now, &pods[0], &hosts), Answer::Host(hosts[0]));
        assert_eq!(desk.stages().reserved, 1);
    }
    assert_eq!(desk.filter_of_group(now, &pods[1], &["a"]), Answer::Host("a"));
    let other = PodForm::vm("other", 8).build();
    assert!(matches!(desk.filter(now, &other, &["a", "b"]), Answer::Refused(_)));
    let later = now + Duration::from_secs(11);
    desk.tick(later);
    assert_eq!(desk.stages().reserved, 0);
    // The placement that is kept is bound all the same, if there is still room.
    assert_eq!(desk.bind(later, "second", "a", Some(&pods[1])), Bind::Send);
    assert_eq!(desk.filter(later, &other, &["a", "b"]), Answer::Host("b"));
    desk.tick(later + Duration::from_secs(11));
    assert_eq!(desk.stages().reserved, 1, "one that is of no group holds longer");
}

/// A newer API server takes what is unknown here; its CPUs are taken all the same.
#[test]
fn a_bound_pod_whose_rules_do_not_compile_is_counted() {
    let mut desk = desk(&[one_zone("a", 8)]);
    let now = Instant::now();
    let mut pod = on(PodForm::vm("vm", 6).build(), "a");
    let constraint = serde_json::json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Perhaps",
        "labelSelector": {}});
    let constraint = serde_json::from_value(constraint).expect("a constraint");
    pod.spec.get_or_insert_default().topology_spread_constraints = Some(vec![constraint]);
    let why = desk.pod(now, pod.clone(), &seen(&pod)).expect_err("it is named");
    assert!(why.contains("default/vm") && why.contains("`Perhaps`"), "{why}");
    assert_eq!(desk.stages().bound, 1);
    let other = PodForm::vm("other", 4).build();
    assert!(matches!(desk.filter(now, &other, &["a"]), Answer::Refused(_)));
    assert!(matches!(desk.filter(now, &PodForm::vm("small", 2).build(), &["a"]), Answer::Host(_)));
}

#[test]
fn a_pod_that_cannot_be_read_is_named() {
    let mut desk = desk(&[one_zone("a", 8)]);
    let now = Instant::now();
    let mut pod = PodForm::vm("vm", 1).build();
    pod.metadata.uid = None;
    assert!(
        matches!(desk.filter(now, &pod, &["a"]), Answer::Wrong(why) if why.contains("default/vm"))
    );
    let mut pod = PodForm { apart: Some("web".to_owned()), ..PodForm::vm("vm", 1) }.build();
    let affinity = pod.spec.as_mut().and_then(|spec| spec.affinity.as_mut());
    let terms = affinity.and_then(|all| all.pod_anti_affinity.as_mut());
    let terms =
        terms.and_then(|all| all.required_during_scheduling_ignored_during_execution.as_mut());
    terms.expect("a term")[0].topology_key = String::new();
    assert!(
        matches!(desk.filter(now, &pod, &["a"]), Answer::Wrong(why) if why.contains("topologyKey"))
    );
}
