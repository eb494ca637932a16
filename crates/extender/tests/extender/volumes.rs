//! Volumes that are provisioned on the host of their first consumer: KubeVirt creates a first-consumer pod before the
//! launcher pod.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use berth_api::Bytes;
use berth_api::infra_node::Allocation;
use berth_extender::{
    BindAnswer, Extender, FilterAnswer, PendingVm, VmInstance, selector_for_node,
};
use berth_kubevirt_render::launcher::Configuration;
use berth_placement::rules::UnboundClaim;
use k8s_openapi::api::core::v1::{self, NodeSelector};
use serde_json::json;

use super::host::{HostDescription, ZoneDescription};
use super::pod::{PodBuilder, bind_to, observe_pod, uid};
use super::scenarios::{extender_with_hosts, report_host};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn host_with_one_zone(name: &str) -> HostDescription {
    let zone = ZoneDescription { cpus: 9, memory: 64, huge_pages_gib: 0, small_pages_mib: 0 };
    HostDescription { name: name.to_owned(), zones: vec![zone], ..HostDescription::default() }
}

pub(crate) fn vm_instance(uid: &str, phase: &str) -> (String, VmInstance) {
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": uid},
        "spec": {"domain": {"cpu": {"dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"}}},
        "status": {"phase": phase}});
    VmInstance::read(&object).expect("the VirtualMachineInstance should be valid")
}

fn first_consumer_pod() -> PodBuilder {
    PodBuilder {
        name: "first-consumer".to_owned(),
        is_first_consumer: true,
        ..PodBuilder::vm("vm", 8)
    }
}

/// Returns an extender whose first-consumer pod has ended on host a, so that the reservation is kept for the VM.
pub(crate) fn extender_after_first_consumer(now: Instant) -> Extender {
    let (mut extender, _) = extender_with_first_consumer(now);
    extender.delete_pod(now, "first-consumer");
    extender
}

/// Returns an extender whose first-consumer pod is still on host a, and this pod.
fn extender_with_first_consumer(now: Instant) -> (Extender, v1::Pod) {
    let mut extender = extender_with_hosts(&[host_with_one_zone("a"), host_with_one_zone("b")]);
    extender.replace_instances(HashMap::from([vm_instance("vmi-vm", "Pending")]));
    let pod = first_consumer_pod().build();
    assert_eq!(extender.answer_filter(now, &pod, &["a", "b"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(now, "first-consumer", "a", None), BindAnswer::SendBinding);
    extender.record_binding_success(now, "first-consumer");
    let bound_pod = bind_to(pod, "a");
    extender
        .update_pod(now, bound_pod.clone(), &observe_pod(&bound_pod))
        .expect("the pod should be counted");
    (extender, bound_pod)
}

fn filter_another_vm(extender: &mut Extender, now: Instant) -> FilterAnswer<'static> {
    extender.set_kubevirt_installed(true);
    let (uid, read) = vm_instance("vmi-another", "Pending");
    extender.update_instance(&uid, read);
    extender.answer_filter(now, &PodBuilder::vm("another", 8).build(), &["a"])
}

#[test]
fn the_reservation_of_a_first_consumer_pod_is_kept_for_its_vm() {
    let now = Instant::now();
    let mut extender = extender_after_first_consumer(now);
    extender.expire_timeouts(now + HOUR);
    assert_eq!(extender.stage_counts().kept, 1);
    assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
    let own = PodBuilder::vm("vm", 8).build();
    assert_eq!(extender.answer_filter(now, &own, &["a", "b"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.stage_counts().kept, 0);
    assert_eq!(extender.answer_bind(now, "vm", "a", None), BindAnswer::SendBinding);
}

#[test]
fn reservation_is_released_when_the_vm_is_deleted_or_has_ended() {
    let now = Instant::now();
    for has_ended in [true, false] {
        let mut extender = extender_after_first_consumer(now);
        assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
        if has_ended {
            let (uid, read) = vm_instance("vmi-vm", "Failed");
            extender.update_instance(&uid, read);
        } else {
            extender.delete_instance("vmi-vm");
        }
        assert_eq!(extender.take_hosts_to_patch(), ["a"]);
        assert_eq!(filter_another_vm(&mut extender, now), FilterAnswer::ReservedHost("a"));
    }
}

#[test]
fn the_reservation_of_a_failed_first_consumer_pod_is_kept_until_its_vm_ends() {
    let now = Instant::now();
    let (mut extender, mut pod) = extender_with_first_consumer(now);
    pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be valid");
    extender.delete_pod(now, "first-consumer");
    assert_eq!(extender.stage_counts().kept, 1);
    assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
    let (uid, ended) = vm_instance("vmi-vm", "Failed");
    extender.update_instance(&uid, ended);
    assert_eq!(filter_another_vm(&mut extender, now), FilterAnswer::ReservedHost("a"));
}

#[test]
fn a_vm_waits_until_the_kubelet_has_released_its_first_consumer_pod() {
    let now = Instant::now();
    let mut extender = extender_after_first_consumer(now);
    let allocation = Allocation {
        pod_uid: "first-consumer".to_owned(),
        cpus: Some((1..9).collect()),
        zones: vec![0],
        ..Allocation::default()
    };
    report_host(
        &mut extender,
        &HostDescription { allocations: vec![allocation], ..host_with_one_zone("a") },
        2,
    );
    let own = PodBuilder::vm("vm", 8).build();
    assert!(matches!(extender.answer_filter(now, &own, &["a"]), FilterAnswer::Refused(_)));
    assert!(matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)));
    assert!(extender.take_hosts_to_patch().is_empty());
    report_host(&mut extender, &host_with_one_zone("a"), 3);
    assert_eq!(extender.take_hosts_to_patch(), ["a"]);
    assert!(
        matches!(filter_another_vm(&mut extender, now), FilterAnswer::Refused(_)),
        "the host is reserved for the VM"
    );
    assert_eq!(extender.answer_filter(now, &own, &["a"]), FilterAnswer::ReservedHost("a"));
}

/// The kubelet removes the first-consumer pod's memory from its checkpoint only when it admits the VM's launcher pod.
#[test]
fn memory_of_a_first_consumer_pod_does_not_block_its_vm() {
    let now = Instant::now();
    let mut extender = extender_after_first_consumer(now);
    // The first-consumer pod has ended: the second report lists its memory without a control group.
    for (has_control_group, version) in [(true, 2), (false, 3)] {
        let allocation = Allocation {
            pod_uid: "first-consumer".to_owned(),
            memory: Some(Bytes(256 << 20)),
            zones: vec![0],
            has_control_group: Some(has_control_group),
            ..Allocation::default()
        };
        report_host(
            &mut extender,
            &HostDescription { allocations: vec![allocation], ..host_with_one_zone("a") },
            version,
        );
    }
    let own = PodBuilder::vm("vm", 8).build();
    assert!(matches!(extender.answer_filter(now, &own, &["a"]), FilterAnswer::Refused(_)));
    let later = now + Duration::from_secs(20);
    extender.expire_timeouts(later);
    assert_eq!(extender.stage_counts().kept, 1);
    assert!(matches!(filter_another_vm(&mut extender, later), FilterAnswer::Refused(_)));
    assert_eq!(extender.answer_filter(later, &own, &["a"]), FilterAnswer::ReservedHost("a"));
}

#[test]
fn pod_of_an_unknown_vm_waits() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
    extender.set_kubevirt_installed(true);
    let pod = PodBuilder::vm("vm", 8).build();
    assert!(matches!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::NotReady(_)));
    let (uid, read) = vm_instance("vmi-vm", "Pending");
    extender.update_instance(&uid, read);
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
}

#[test]
fn the_selected_node_of_a_claim_is_reserved_after_a_restart() {
    let now = Instant::now();
    for claim_first in [true, false] {
        let mut extender = Extender::new_awaiting_pod_list();
        report_host(&mut extender, &host_with_one_zone("a"), 1);
        report_host(&mut extender, &host_with_one_zone("b"), 1);
        let builder = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 8) };
        let pod = builder.build();
        let claim = |extender: &mut Extender| {
            let selected_node = Some("b".to_owned());
            let unbound = UnboundClaim { selected_node, ..UnboundClaim::default() };
            extender.update_claim(now, "default", "disk", Some(unbound))
        };
        if claim_first {
            claim(&mut extender);
        }
        extender
            .update_pod(now, pod.clone(), &observe_pod(&pod))
            .expect("the pod should be counted");
        if !claim_first {
            claim(&mut extender);
        }
        extender.handle_pod_list(now, &HashSet::from(["vm".to_owned()]));
        assert_eq!(extender.stage_counts().reserved, 1);
        let other = PodBuilder::vm("other", 8).build();
        assert_eq!(
            extender.answer_filter(now, &other, &["b", "a"]),
            FilterAnswer::ReservedHost("a")
        );
        // The reservation remains, because provisioning a volume takes minutes.
        extender.expire_timeouts(now + Duration::from_secs(300));
        assert_eq!(extender.answer_bind(now, "vm", "b", None), BindAnswer::SendBinding);
    }
}

#[test]
fn a_reservation_lasts_longer_while_a_claim_is_unbound() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a"), host_with_one_zone("b")]);
    extender.update_claim(now, "default", "disk", Some(UnboundClaim::default()));
    let builder = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 8) };
    assert_eq!(
        extender.answer_filter(now, &builder.build(), &["a"]),
        FilterAnswer::ReservedHost("a")
    );
    let plain = PodBuilder::vm("plain", 8).build();
    assert_eq!(extender.answer_filter(now, &plain, &["b"]), FilterAnswer::ReservedHost("b"));
    extender.expire_timeouts(now + Duration::from_secs(120));
    assert_eq!(extender.stage_counts().reserved, 1);
    extender.update_claim(now, "default", "disk", None);
    extender.expire_timeouts(now + HOUR);
    assert_eq!(extender.stage_counts().reserved, 0);
}

/// Returns a pending VM: its disk is being imported, or its launcher pod waits in the scheduler for its volume.
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

/// Returns an extender after a restart. A VM is on no host and has the PersistentVolumeClaim `disk`, whose volume has
/// the node affinity `volume`.
fn restarted_extender(now: Instant, volume: Option<NodeSelector>, pods: &[v1::Pod]) -> Extender {
    let mut extender = Extender::new_awaiting_pod_list();
    for name in ["a", "b"] {
        report_host(&mut extender, &host_with_one_zone(name), 1);
    }
    extender.replace_instances(HashMap::from([
        vm_instance("vmi-vm", "Pending"),
        vm_instance("vmi-another", "Pending"),
    ]));
    let claim = ("default".to_owned(), "disk".to_owned());
    extender.set_pending_vms(
        vec![pending_vm()],
        volume.into_iter().map(|volume| (claim.clone(), volume)).collect(),
    );
    for pod in pods {
        extender
            .update_pod(now, pod.clone(), &observe_pod(pod))
            .expect("the pod should be counted");
    }
    extender.handle_pod_list(now, &pods.iter().map(uid).collect());
    extender
}

/// Returns the node affinity that provisioners of local volumes write for a volume on `host`.
fn local_volume_selector(host: &str) -> NodeSelector {
    let term = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]});
    serde_json::from_value(term).expect("the node selector should be valid")
}

#[test]
fn the_host_of_a_vm_with_a_local_volume_is_reserved_after_a_restart() {
    let now = Instant::now();
    let launcher = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 6) }.build();
    // Without populators, no pod exists during the import of the image. With populators, the launcher pod exists, but
    // has no nominated node.
    for pods in [vec![], vec![launcher.clone()]] {
        for volume in [local_volume_selector("b"), selector_for_node("b")] {
            let mut extender = restarted_extender(now, Some(volume), &pods);
            assert_eq!(extender.stage_counts().kept, 1, "{} pods", pods.len());
            extender.expire_timeouts(now + HOUR);
            let other = PodBuilder::vm("another", 8).build();
            assert!(
                matches!(extender.answer_filter(now, &other, &["b"]), FilterAnswer::Refused(_)),
                "{} pods",
                pods.len()
            );
            assert_eq!(
                extender.answer_filter(now, &launcher, &["b"]),
                FilterAnswer::ReservedHost("b")
            );
            assert_eq!(extender.stage_counts().kept, 0);
            assert_eq!(extender.answer_bind(now, "vm", "b", None), BindAnswer::SendBinding);
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
    for volume in [None, Some(anywhere), Some(local_volume_selector("elsewhere"))] {
        assert_eq!(
            restarted_extender(now, volume.clone(), &[]).stage_counts().kept,
            0,
            "{volume:?}"
        );
    }
    // For a VM that is already on its host, the bound pod counts, and nothing else is reserved.
    let bound_pod = bind_to(PodBuilder::vm("vm", 8).build(), "b");
    let extender = restarted_extender(now, Some(local_volume_selector("b")), &[bound_pod]);
    assert_eq!((extender.stage_counts().kept, extender.stage_counts().bound), (0, 1));
    // The reservation of a VM that has ended is released.
    let mut extender = restarted_extender(now, Some(local_volume_selector("b")), &[]);
    extender.delete_instance("vmi-vm");
    assert_eq!(extender.stage_counts().kept, 0);
}
