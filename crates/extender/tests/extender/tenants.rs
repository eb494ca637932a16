//! Pods that name a VM: which pods may use the VM's reservation, and how long the extender waits for a VM that it does
//! not know yet. Also the spread of the control-plane VMs of all tenants.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use berth_api::ControlPlaneSpread;
use berth_extender::{Extender, FilterAnswer};
use k8s_openapi::api::core::v1;

use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::extender_with_hosts;
use super::volumes::{extender_after_first_consumer, host_with_one_zone, vm_instance};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a pod that has the labels and the owner reference of the VM for which resources on host a are reserved, but
/// is in another namespace than the VM.
fn forged_pod(name: &str) -> v1::Pod {
    let instance = Some("vmi-vm".to_owned());
    PodBuilder { namespace: Some("other".to_owned()), instance, ..PodBuilder::vm(name, 8) }.build()
}

fn is_refused(extender: &mut Extender, now: Instant, pod: &v1::Pod) -> bool {
    matches!(extender.answer_filter(now, pod, &["a"]), FilterAnswer::Refused(_))
}

#[test]
fn pod_of_another_namespace_cannot_use_the_reservation() {
    let now = Instant::now();
    let mut extender = extender_after_first_consumer(now);
    let later = now + 2 * SECOND;
    drop(extender.answer_filter(now, &forged_pod("forged"), &["a"]));
    assert!(is_refused(&mut extender, later, &forged_pod("forged")));
    assert_eq!(extender.stage_counts().kept, 1);
    // The forged pod `bound` is on host b because another scheduler has bound it.
    let bound = bind_to(forged_pod("bound"), "b");
    extender
        .update_pod(later, bound.clone(), &observe_pod(&bound))
        .expect("the pod should be counted");
    assert_eq!(extender.stage_counts().kept, 1);
    let own = PodBuilder::vm("vm", 8).build();
    assert_eq!(extender.answer_filter(later, &own, &["a", "b"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.stage_counts().kept, 0);
}

#[test]
fn pod_without_owner_reference_cannot_use_the_reservation() {
    let now = Instant::now();
    let mut extender = extender_after_first_consumer(now);
    let mut pod =
        PodBuilder { instance: Some("vmi-vm".to_owned()), ..PodBuilder::vm("forged", 8) }.build();
    for owners in [None, Some("another")] {
        let owners = owners.map(|uid| {
            let mut all = pod.metadata.owner_references.clone().unwrap_or_default();
            all[0].uid = uid.to_owned();
            all
        });
        pod.metadata.owner_references = owners;
        assert!(is_refused(&mut extender, now, &pod), "{:?}", pod.metadata.owner_references);
        assert_eq!(extender.stage_counts().kept, 1);
        pod.metadata.owner_references = PodBuilder::vm("x", 1).build().metadata.owner_references;
    }
}

#[test]
fn pod_of_an_unknown_vm_is_held_once() {
    let now = Instant::now();
    // The extender learns of the VM through a single watch event, or through a complete list.
    for is_listed in [false, true] {
        let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
        extender.set_kubevirt_installed(true);
        let pod = PodBuilder::vm("vm", 8).build();
        extender
            .update_pod(now, pod.clone(), &observe_pod(&pod))
            .expect("the pod should be counted");
        assert!(matches!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::NotReady(_)));
        for after in [SECOND, 3 * SECOND, 600 * SECOND] {
            extender.expire_timeouts(now + after);
            assert!(
                is_refused(&mut extender, now + after, &pod),
                "the call is held again after {after:?}"
            );
        }
        assert!(extender.take_hosts_to_patch().is_empty());
        // When the VM becomes known, the extender requests a retry of the pod.
        let (uid, read) = vm_instance("vmi-vm", "Pending");
        if is_listed {
            extender.replace_instances(HashMap::from([(uid, read)]));
        } else {
            extender.update_instance(&uid, read);
        }
        assert_eq!(extender.take_hosts_to_patch(), ["a"]);
        assert_eq!(
            extender.answer_filter(now + 601 * SECOND, &pod, &["a"]),
            FilterAnswer::ReservedHost("a")
        );
    }
}

/// Without the cooldown of its namespace, a tenant who creates a pod each second would delay the pods of all tenants.
#[test]
fn pods_of_a_namespace_are_not_held_after_an_unsuccessful_hold() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a")]);
    extender.set_kubevirt_installed(true);
    let pod_in_namespace = |name: &str, namespace: &str| {
        PodBuilder { namespace: Some(namespace.to_owned()), ..PodBuilder::vm(name, 1) }.build()
    };
    let first = pod_in_namespace("first", "other");
    assert!(matches!(extender.answer_filter(now, &first, &["a"]), FilterAnswer::NotReady(_)));
    assert!(is_refused(&mut extender, now + SECOND, &first));
    assert!(is_refused(&mut extender, now + SECOND, &pod_in_namespace("second", "other")));
    let another = pod_in_namespace("third", "default");
    assert!(matches!(
        extender.answer_filter(now + SECOND, &another, &["a"]),
        FilterAnswer::NotReady(_)
    ));
    let late = now + 120 * SECOND;
    extender.expire_timeouts(late);
    assert!(matches!(
        extender.answer_filter(late, &pod_in_namespace("fourth", "other"), &["a"]),
        FilterAnswer::NotReady(_)
    ));
}

#[test]
fn control_planes_of_tenants_are_on_different_hosts() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_with_one_zone("a"), host_with_one_zone("b")]);
    let place = |extender: &mut Extender, tenant: &str, role: &'static str, wanted: &str| {
        let namespace = Some(format!("cluster-{tenant}"));
        let name = format!("{tenant}-{role}");
        let pod = PodBuilder { namespace, role: Some(role), ..PodBuilder::vm(&name, 1) }.build();
        let answer = extender.answer_filter(now, &pod, &["a", "b"]);
        assert_eq!(answer, FilterAnswer::ReservedHost(wanted), "{name}");
    };
    place(&mut extender, "one", "control-plane", "a");
    place(&mut extender, "one", "worker", "a");
    place(&mut extender, "two", "control-plane", "b");
    place(&mut extender, "three", "control-plane", "a");
    let off = ControlPlaneSpread { weight: Some(0), ..ControlPlaneSpread::default() };
    extender.set_control_plane_spread(&off);
    place(&mut extender, "four", "control-plane", "a");
    extender.set_control_plane_spread(&ControlPlaneSpread::default());
    place(&mut extender, "five", "control-plane", "b");
}
