//! Volumes that are provisioned on the host of their first consumer: KubeVirt creates a first-consumer pod before the
//! launcher pod.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use berth_api::infra_node::Allocation;
use berth_extender::{BindAnswer, Extender, FilterAnswer, Instance, PendingVm, node_selector};
use berth_kubevirt_render::launcher::Configuration;
use k8s_openapi::api::core::v1::{self, NodeSelector};
use serde_json::json;

use super::host::{HostForm, ZoneForm};
use super::pod::{PodForm, bound_to, observed, uid};
use super::scenarios::{extender, report};

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
    Instance::read(&object).expect("the VirtualMachineInstance should be valid")
}

fn first_consumer() -> PodForm {
    PodForm { name: "first-consumer".to_owned(), is_first_consumer: true, ..PodForm::vm("vm", 8) }
}

/// Returns the state after the first-consumer pod has ended on host a.
pub(crate) fn after_first_consumer(now: Instant) -> Extender {
    let mut extender = extender(&[host("a"), host("b")]);
    extender.instances_listed(HashMap::from([instance("vmi-vm", "Pending")]));
    let pod = first_consumer().build();
    assert_eq!(extender.filter(now, &pod, &["a", "b"]), FilterAnswer::Host("a"));
    assert_eq!(extender.bind(now, "first-consumer", "a", None), BindAnswer::Send);
    extender.binding_succeeded(now, "first-consumer");
    let bound_pod = bound_to(pod, "a");
    extender
        .update_pod(now, bound_pod.clone(), &observed(&bound_pod))
        .expect("the pod should be counted");
    extender.pod_deleted(now, "first-consumer");
    extender
}

fn filter_another_vm(extender: &mut Extender, now: Instant) -> FilterAnswer<'static> {
    extender.set_kubevirt_installed(true);
    let (uid, read) = instance("vmi-another", "Pending");
    extender.update_instance(&uid, read);
    extender.filter(now, &PodForm::vm("another", 8).build(), &["a"])
}

#[test]
fn the_reservation_of_a_first_consumer_pod_is_kept_for_its_vm() {
    let now = Instant::now();
    let mut extender = after_first_consumer(now);
    extender.tick(now + HOUR);
    assert_eq!(extender.stage_counts().kept, 1);
    assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
    let own = PodForm::vm("vm", 8).build();
    assert_eq!(extender.filter(now, &own, &["a", "b"]), FilterAnswer::Host("a"));
    assert_eq!(extender.stage_counts().kept, 0);
    assert_eq!(extender.bind(now, "vm", "a", None), BindAnswer::Send);
}

#[test]
fn reservation_is_released_when_the_vm_is_deleted_or_has_ended() {
    let now = Instant::now();
    for has_ended in [true, false] {
        let mut extender = after_first_consumer(now);
        assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
        if has_ended {
            let (uid, read) = instance("vmi-vm", "Failed");
            extender.update_instance(&uid, read);
        } else {
            extender.instance_deleted("vmi-vm");
        }
        assert_eq!(extender.take_hosts_to_patch(), ["a"]);
        assert_eq!(filter_another_vm(&mut extender, now), FilterAnswer::Host("a"));
    }
}

#[test]
fn a_vm_waits_until_the_kubelet_has_released_its_first_consumer_pod() {
    let now = Instant::now();
    let mut extender = after_first_consumer(now);
    let allocation = Allocation {
        pod_uid: "first-consumer".to_owned(),
        cpus: Some((1..9).collect()),
        zones: vec![0],
        ..Allocation::default()
    };
    report(&mut extender, &HostForm { has: vec![allocation], ..host("a") }, 2);
    let own = PodForm::vm("vm", 8).build();
    assert!(matches!(extender.filter(now, &own, &["a"]), FilterAnswer::Refused(_)));
    assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
    assert!(extender.take_hosts_to_patch().is_empty());
    report(&mut extender, &host("a"), 3);
    assert_eq!(extender.take_hosts_to_patch(), ["a"]);
    assert!(
        matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)),
        "the host is reserved for the VM"
    );
    assert_eq!(extender.filter(now, &own, &["a"]), FilterAnswer::Host("a"));
}

#[test]
fn a_pod_whose_vm_is_not_known_yet_waits() {
    let now = Instant::now();
    let mut extender = extender(&[host("a")]);
    extender.set_kubevirt_installed(true);
    let pod = PodForm::vm("vm", 8).build();
    assert!(matches!(extender.filter(now, &pod, &["a"]), FilterAnswer::NotReady(_)));
    let (uid, read) = instance("vmi-vm", "Pending");
    extender.update_instance(&uid, read);
    assert_eq!(extender.filter(now, &pod, &["a"]), FilterAnswer::Host("a"));
}

#[test]
fn the_selected_node_of_a_claim_is_reserved_after_a_restart() {
    let now = Instant::now();
    for claim_first in [true, false] {
        let mut extender = Extender::awaiting_pod_list();
        report(&mut extender, &host("a"), 1);
        report(&mut extender, &host("b"), 1);
        let form = PodForm { claim: Some("disk".to_owned()), ..PodForm::vm("vm", 8) };
        let pod = form.build();
        let claim = |extender: &mut Extender| {
            extender.update_claim(now, "default", "disk", Some(Some("b".to_owned())))
        };
        if claim_first {
            claim(&mut extender);
        }
        extender.update_pod(now, pod.clone(), &observed(&pod)).expect("the pod should be counted");
        if !claim_first {
            claim(&mut extender);
        }
        extender.pods_listed(now, &HashSet::from(["vm".to_owned()]));
        assert_eq!(extender.stage_counts().reserved, 1);
        let other = PodForm::vm("other", 8).build();
        assert_eq!(extender.filter(now, &other, &["b", "a"]), FilterAnswer::Host("a"));
        // Provisioning takes minutes.
        extender.tick(now + Duration::from_secs(300));
        assert_eq!(extender.bind(now, "vm", "b", None), BindAnswer::Send);
    }
}

#[test]
fn a_reservation_lasts_longer_while_a_claim_is_unbound() {
    let now = Instant::now();
    let mut extender = extender(&[host("a"), host("b")]);
    extender.update_claim(now, "default", "disk", Some(None));
    let form = PodForm { claim: Some("disk".to_owned()), ..PodForm::vm("vm", 8) };
    assert_eq!(extender.filter(now, &form.build(), &["a"]), FilterAnswer::Host("a"));
    let plain = PodForm::vm("plain", 8).build();
    assert_eq!(extender.filter(now, &plain, &["b"]), FilterAnswer::Host("b"));
    extender.tick(now + Duration::from_secs(120));
    assert_eq!(extender.stage_counts().reserved, 1);
    extender.update_claim(now, "default", "disk", None);
    extender.tick(now + HOUR);
    assert_eq!(extender.stage_counts().reserved, 0);
}

/// Returns a VM whose disk is being imported, or whose launcher pod waits in the scheduler for its volume.
fn pending_vm() -> PendingVm {
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": "vmi-vm"},
        "spec": {"schedulerName": "berth-scheduler",
            "domain": {"cpu": {"cores": 6, "dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"},
                "devices": {"autoattachPodInterface": false}},
            "volumes": [{"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
                {"name": "disk", "dataVolume": {"name": "disk"}}]},
        "status": {"phase": "Pending"}});
    let read = PendingVm::read(&object, &Configuration::default())
        .expect("the VirtualMachineInstance should be valid");
    read.expect("the VM should be pending and have a claim")
}

/// Returns the state after a restart, with a VM that is on no host and with the volume of its claim.
fn restart_with(now: Instant, volume: Option<NodeSelector>, pods: &[v1::Pod]) -> Extender {
    let mut extender = Extender::awaiting_pod_list();
    for name in ["a", "b"] {
        report(&mut extender, &host(name), 1);
    }
    extender.instances_listed(HashMap::from([
        instance("vmi-vm", "Pending"),
        instance("vmi-another", "Pending"),
    ]));
    let claim = ("default".to_owned(), "disk".to_owned());
    extender.set_pending_vms(
        vec![pending_vm()],
        volume.into_iter().map(|volume| (claim.clone(), volume)).collect(),
    );
    for pod in pods {
        extender.update_pod(now, pod.clone(), &observed(pod)).expect("the pod should be counted");
    }
    extender.pods_listed(now, &pods.iter().map(uid).collect());
    extender
}

/// Returns a node affinity in the form that provisioners of local volumes write.
fn local_volume(host: &str) -> NodeSelector {
    let term = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]});
    serde_json::from_value(term).expect("the node selector should be valid")
}

#[test]
fn the_host_of_a_vm_with_a_local_volume_is_reserved_after_a_restart() {
    let now = Instant::now();
    let launcher = PodForm { claim: Some("disk".to_owned()), ..PodForm::vm("vm", 6) }.build();
    // During the import of the image there is no pod; with populators there is a pod, but without a nominated node.
    for pods in [vec![], vec![launcher.clone()]] {
        for volume in [local_volume("b"), node_selector("b")] {
            let mut extender = restart_with(now, Some(volume), &pods);
            assert_eq!(extender.stage_counts().kept, 1, "{} pods", pods.len());
            extender.tick(now + HOUR);
            let other = PodForm::vm("another", 8).build();
            assert!(
                matches!(extender.filter(now, &other, &["b"]), FilterAnswer::Refused(_)),
                "{} pods",
                pods.len()
            );
            assert_eq!(extender.filter(now, &launcher, &["b"]), FilterAnswer::Host("b"));
            assert_eq!(extender.stage_counts().kept, 0);
            assert_eq!(extender.bind(now, "vm", "b", None), BindAnswer::Send);
        }
    }
}

#[test]
fn no_host_is_reserved_for_a_vm_without_a_local_volume() {
    let now = Instant::now();
    let anywhere = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "Exists"}]}]});
    let anywhere: NodeSelector =
        serde_json::from_value(anywhere).expect("the node selector should be valid");
    for volume in [None, Some(anywhere), Some(local_volume("elsewhere"))] {
        assert_eq!(restart_with(now, volume.clone(), &[]).stage_counts().kept, 0, "{volume:?}");
    }
    // A VM that is on its host has a bound pod.
    let bound_pod = bound_to(PodForm::vm("vm", 8).build(), "b");
    let extender = restart_with(now, Some(local_volume("b")), &[bound_pod]);
    assert_eq!((extender.stage_counts().kept, extender.stage_counts().bound), (0, 1));
    // A VM that has ended needs no reservation.
    let mut extender = restart_with(now, Some(local_volume("b")), &[]);
    extender.instance_deleted("vmi-vm");
    assert_eq!(extender.stage_counts().kept, 0);
}
