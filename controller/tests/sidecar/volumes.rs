//! Volumes that are made where their first pod goes: KubeVirt sends a stand-in before the VM's own pod.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use berth_api::infra_node::Allocation;
use berth_extender::{Answer, Awaited, Bind, Desk, Instance, selected};
use berth_kubevirt_render::launcher::Configuration;
use k8s_openapi::api::core::v1::{self, NodeSelector};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, on, seen, uid};
use super::scenes::{desk, tell};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn host(name: &str) -> HostForm {
    let zone = ZoneForm { cpus: 9, memory: 64, huge: 0, small: 0 };
    HostForm { name: name.to_owned(), zones: vec![zone], ..HostForm::default() }
}

pub(crate) fn instance(uid: &str, phase: &str) -> (String, Instance) {
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": uid},
        "spec": {"domain": {"cpu": {"dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"}}},
        "status": {"phase": phase}});
    Instance::read(&object).expect("an instance")
}

fn stand_in() -> PodForm {
    PodForm { name: "stand-in".to_owned(), is_stand_in: true, ..PodForm::vm("vm", 8) }
}

/// With a stand-in on host a, which has gone again.
pub(crate) fn after_stand_in(now: Instant) -> Desk {
    let mut desk = desk(&[host("a"), host("b")]);
    desk.instances(HashMap::from([instance("vmi-vm", "Pending")]));
    let pod = stand_in().build();
    assert_eq!(desk.filter(now, &pod, &["a", "b"]), Answer::Host("a"));
    assert_eq!(desk.bind(now, "stand-in", "a", None), Bind::Send);
    desk.bound(now, "stand-in");
    let there = on(pod, "a");
    desk.pod(now, there.clone(), &seen(&there)).expect("counted");
    desk.pod_is_gone(now, "stand-in");
    desk
}

fn another(desk: &mut Desk, now: Instant) -> Answer<'static> {
    desk.instances_are_known(true);
    let (uid, read) = instance("vmi-another", "Pending");
    desk.instance(&uid, read);
    desk.filter(now, &PodForm::vm("another", 8).build(), &["a"])
}

#[test]
fn the_place_of_a_stand_in_is_held_for_its_vm() {
    let now = Instant::now();
    let mut desk = after_stand_in(now);
    desk.tick(now + HOUR);
    assert_eq!(desk.stages().kept, 1);
    assert!(matches!(another(&mut desk, now), Answer::Refused(_)));
    let own = PodForm::vm("vm", 8).build();
    assert_eq!(desk.filter(now, &own, &["a", "b"]), Answer::Host("a"));
    assert_eq!(desk.stages().kept, 0);
    assert_eq!(desk.bind(now, "vm", "a", None), Bind::Send);
}

#[test]
fn nothing_is_held_for_a_vm_that_has_gone_or_ended() {
    let now = Instant::now();
    for ends in [true, false] {
        let mut desk = after_stand_in(now);
        assert!(matches!(another(&mut desk, now), Answer::Refused(_)));
        if ends {
            let (uid, read) = instance("vmi-vm", "Failed");
            desk.instance(&uid, read);
        } else {
            desk.instance_is_gone("vmi-vm");
        }
        assert_eq!(desk.wake(), ["a"]);
        assert_eq!(another(&mut desk, now), Answer::Host("a"));
    }
}

#[test]
fn as_long_as_the_kubelet_has_the_stand_in_its_vm_waits_and_nobody_else_comes() {
    let now = Instant::now();
    let mut desk = after_stand_in(now);
    let has = Allocation {
        pod_uid: "stand-in".to_owned(),
        cpus: Some((1..9).collect()),
        zones: vec![0],
        ..Allocation::default()
    };
    tell(&mut desk, &HostForm { has: vec![has], ..host("a") }, 2);
    let own = PodForm::vm("vm", 8).build();
    assert!(matches!(desk.filter(now, &own, &["a"]), Answer::Refused(_)));
    assert!(matches!(another(&mut desk, now), Answer::Refused(_)));
    assert!(desk.wake().is_empty());
    tell(&mut desk, &host("a"), 3);
    assert_eq!(desk.wake(), ["a"]);
    assert!(matches!(another(&mut desk, now), Answer::Refused(_)), "it is the VM's");
    assert_eq!(desk.filter(now, &own, &["a"]), Answer::Host("a"));
}

#[test]
fn a_pod_whose_vm_is_not_known_yet_waits() {
    let now = Instant::now();
    let mut desk = desk(&[host("a")]);
    desk.instances_are_known(true);
    let pod = PodForm::vm("vm", 8).build();
    assert!(matches!(desk.filter(now, &pod, &["a"]), Answer::NotYet(_)));
    let (uid, read) = instance("vmi-vm", "Pending");
    desk.instance(&uid, read);
    assert_eq!(desk.filter(now, &pod, &["a"]), Answer::Host("a"));
}

#[test]
fn a_node_that_was_selected_for_a_volume_is_reserved_again_after_a_restart() {
    let now = Instant::now();
    for claim_first in [true, false] {
        let mut desk = Desk::unlisted();
        tell(&mut desk, &host("a"), 1);
        tell(&mut desk, &host("b"), 1);
        let form = PodForm { claim: Some("disk".to_owned()), ..PodForm::vm("vm", 8) };
        let pod = form.build();
        let claim =
            |desk: &mut Desk| desk.claim(now, "default", "disk", Some(Some("b".to_owned())));
        if claim_first {
            claim(&mut desk);
        }
        desk.pod(now, pod.clone(), &seen(&pod)).expect("counted");
        if !claim_first {
            claim(&mut desk);
        }
        desk.pods_listed(now, &HashSet::from(["vm".to_owned()]));
        assert_eq!(desk.stages().reserved, 1);
        let other = PodForm::vm("other", 8).build();
        assert_eq!(desk.filter(now, &other, &["b", "a"]), Answer::Host("a"));
        // Making the volume takes minutes.
        desk.tick(now + Duration::from_secs(300));
        assert_eq!(desk.bind(now, "vm", "b", None), Bind::Send);
    }
}

#[test]
fn a_reservation_waits_for_volumes_and_not_for_nothing() {
    let now = Instant::now();
    let mut desk = desk(&[host("a"), host("b")]);
    desk.claim(now, "default", "disk", Some(None));
    let form = PodForm { claim: Some("disk".to_owned()), ..PodForm::vm("vm", 8) };
    assert_eq!(desk.filter(now, &form.build(), &["a"]), Answer::Host("a"));
    let plain = PodForm::vm("plain", 8).build();
    assert_eq!(desk.filter(now, &plain, &["b"]), Answer::Host("b"));
    desk.tick(now + Duration::from_secs(120));
    assert_eq!(desk.stages().reserved, 1);
    desk.claim(now, "default", "disk", None);
    desk.tick(now + HOUR);
    assert_eq!(desk.stages().reserved, 0);
}

/// A VM whose disk is being imported, or whose launcher pod waits for its volume in the scheduler.
fn pending_vm() -> Awaited {
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": "vmi-vm"},
        "spec": {"schedulerName": "berth-scheduler",
            "domain": {"cpu": {"cores": 6, "dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"},
                "devices": {"autoattachPodInterface": false}},
            "volumes": [{"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
                {"name": "disk", "dataVolume": {"name": "disk"}}]},
        "status": {"phase": "Pending"}});
    let read = Awaited::read(&object, &Configuration::default()).expect("an instance");
    read.expect("it waits, and has a claim")
}

/// Begun again with a VM that is on no host, and with its claim's volume there.
fn begun_again(now: Instant, volume: Option<NodeSelector>, pods: &[v1::Pod]) -> Desk {
    let mut desk = Desk::unlisted();
    for name in ["a", "b"] {
        tell(&mut desk, &host(name), 1);
    }
    desk.instances(HashMap::from([
        instance("vmi-vm", "Pending"),
        instance("vmi-another", "Pending"),
    ]));
    let claim = ("default".to_owned(), "disk".to_owned());
    desk.awaited(
        vec![pending_vm()],
        volume.into_iter().map(|volume| (claim.clone(), volume)).collect(),
    );
    for pod in pods {
        desk.pod(now, pod.clone(), &seen(pod)).expect("counted");
    }
    desk.pods_listed(now, &pods.iter().map(uid).collect());
    desk
}

/// As provisioners of local volumes write it.
fn local(host: &str) -> NodeSelector {
    let term = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]});
    serde_json::from_value(term).expect("a selector")
}

#[test]
fn the_place_of_a_vm_whose_volume_is_on_one_host_outlives_a_restart() {
    let now = Instant::now();
    let launcher = PodForm { claim: Some("disk".to_owned()), ..PodForm::vm("vm", 6) }.build();
    // While its image is imported there is no pod; with populators there is one, which the scheduler may have lost.
    for pods in [vec![], vec![launcher.clone()]] {
        for volume in [local("b"), selected("b")] {
            let mut desk = begun_again(now, Some(volume), &pods);
            assert_eq!(desk.stages().kept, 1, "{} pods", pods.len());
            desk.tick(now + HOUR);
            let other = PodForm::vm("another", 8).build();
            assert!(
                matches!(desk.filter(now, &other, &["b"]), Answer::Refused(_)),
                "{} pods",
                pods.len()
            );
            assert_eq!(desk.filter(now, &launcher, &["b"]), Answer::Host("b"));
            assert_eq!(desk.stages().kept, 0);
            assert_eq!(desk.bind(now, "vm", "b", None), Bind::Send);
        }
    }
}

#[test]
fn nothing_is_reserved_for_a_vm_that_no_volume_ties_to_one_host() {
    let now = Instant::now();
    let anywhere = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "Exists"}]}]});
    let anywhere: NodeSelector = serde_json::from_value(anywhere).expect("a selector");
    for volume in [None, Some(anywhere), Some(local("elsewhere"))] {
        assert_eq!(begun_again(now, volume.clone(), &[]).stages().kept, 0, "{volume:?}");
    }
    // One that is on its host has its place by that.
    let there = on(PodForm::vm("vm", 8).build(), "b");
    let desk = begun_again(now, Some(local("b")), &[there]);
    assert_eq!((desk.stages().kept, desk.stages().bound), (0, 1));
    // One that ends needs none.
    let mut desk = begun_again(now, Some(local("b")), &[]);
    desk.instance_is_gone("vmi-vm");
    assert_eq!(desk.stages().kept, 0);
}
