//! Pods that name a VM: which of them are a VM's own, and how long one is waited for whose VM is unknown.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use berth_extender::{Answer, Desk};
use k8s_openapi::api::core::v1;

use super::pod::{PodForm, on, seen};
use super::scenes::desk;
use super::volumes::{after_stand_in, host, instance};

const SECOND: Duration = Duration::from_secs(1);

/// A pod of another namespace with the labels and the owner reference of the VM that host a is reserved for.
fn forged(name: &str) -> v1::Pod {
    let instance = Some("vmi-vm".to_owned());
    PodForm { namespace: Some("other".to_owned()), instance, ..PodForm::vm(name, 8) }.build()
}

fn is_refused(desk: &mut Desk, now: Instant, pod: &v1::Pod) -> bool {
    matches!(desk.filter(now, pod, &["a"]), Answer::Refused(_))
}

#[test]
fn a_pod_of_another_namespace_takes_no_reservation() {
    let now = Instant::now();
    let mut desk = after_stand_in(now);
    let later = now + 2 * SECOND;
    drop(desk.filter(now, &forged("forged"), &["a"]));
    assert!(is_refused(&mut desk, later, &forged("forged")));
    assert_eq!(desk.stages().kept, 1);
    // One that another scheduler has bound.
    let bound = on(forged("bound"), "b");
    desk.pod(later, bound.clone(), &seen(&bound)).expect("counted");
    assert_eq!(desk.stages().kept, 1);
    let own = PodForm::vm("vm", 8).build();
    assert_eq!(desk.filter(later, &own, &["a", "b"]), Answer::Host("a"));
    assert_eq!(desk.stages().kept, 0);
}

#[test]
fn a_label_without_the_owner_reference_takes_no_reservation() {
    let now = Instant::now();
    let mut desk = after_stand_in(now);
    let mut pod =
        PodForm { instance: Some("vmi-vm".to_owned()), ..PodForm::vm("forged", 8) }.build();
    for owners in [None, Some("another")] {
        let owners = owners.map(|uid| {
            let mut all = pod.metadata.owner_references.clone().unwrap_or_default();
            all[0].uid = uid.to_owned();
            all
        });
        pod.metadata.owner_references = owners;
        assert!(is_refused(&mut desk, now, &pod), "{:?}", pod.metadata.owner_references);
        assert_eq!(desk.stages().kept, 1);
        pod.metadata.owner_references = PodForm::vm("x", 1).build().metadata.owner_references;
    }
}

#[test]
fn a_pod_of_an_unknown_vm_is_held_once() {
    let now = Instant::now();
    // The watch tells of its VM, or lists all of them again.
    for is_listed in [false, true] {
        let mut desk = desk(&[host("a")]);
        desk.instances_are_known(true);
        let pod = PodForm::vm("vm", 8).build();
        desk.pod(now, pod.clone(), &seen(&pod)).expect("counted");
        assert!(matches!(desk.filter(now, &pod, &["a"]), Answer::NotYet(_)));
        for after in [SECOND, 3 * SECOND, 600 * SECOND] {
            desk.tick(now + after);
            assert!(is_refused(&mut desk, now + after, &pod), "after {after:?} it is held again");
        }
        assert!(desk.wake().is_empty());
        // It is woken when its VM is known.
        let (uid, read) = instance("vmi-vm", "Pending");
        if is_listed {
            desk.instances(HashMap::from([(uid, read)]));
        } else {
            desk.instance(&uid, read);
        }
        assert_eq!(desk.wake(), ["a"]);
        assert_eq!(desk.filter(now + 601 * SECOND, &pod, &["a"]), Answer::Host("a"));
    }
}

/// Else a tenant who makes a new pod each second would hold up all others.
#[test]
fn a_namespace_whose_pods_were_held_in_vain_has_to_wait_for_its_vms() {
    let now = Instant::now();
    let mut desk = desk(&[host("a")]);
    desk.instances_are_known(true);
    let of = |name: &str, namespace: &str| {
        PodForm { namespace: Some(namespace.to_owned()), ..PodForm::vm(name, 1) }.build()
    };
    let first = of("first", "other");
    assert!(matches!(desk.filter(now, &first, &["a"]), Answer::NotYet(_)));
    assert!(is_refused(&mut desk, now + SECOND, &first));
    assert!(is_refused(&mut desk, now + SECOND, &of("second", "other")));
    let another = of("third", "default");
    assert!(matches!(desk.filter(now + SECOND, &another, &["a"]), Answer::NotYet(_)));
    let late = now + 120 * SECOND;
    desk.tick(late);
    assert!(matches!(desk.filter(late, &of("fourth", "other"), &["a"]), Answer::NotYet(_)));
}
