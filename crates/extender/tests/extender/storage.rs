//! Storage that CSI drivers report (CSIStorageCapacity): the claims of pods with a reservation use it until their
//! volumes are provisioned.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use berth_extender::{BindAnswer, Extender, FilterAnswer};
use berth_placement::rules::{StorageCapacityFields, StorageClassFields, UnboundClaim};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use super::host::HostDescription;
use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::report_host;
use super::volumes::host_with_one_zone;

const GIB: u64 = 1 << 30;
const HOUR: Duration = Duration::from_secs(3600);
const CLASS: &str = "local";
/// Label with which the driver identifies the hosts.
const HOST_LABEL: &str = "topology.example.com/node";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const HOSTS: [&str; 2] = ["a", "b"];

/// Sets the hosts a and b, each with eight CPUs and 10 GiB of storage.
fn set_hosts(extender: &mut Extender) {
    for name in HOSTS {
        let labels = BTreeMap::from([(HOST_LABEL.to_owned(), name.to_owned())]);
        report_host(extender, &HostDescription { labels, ..host_with_one_zone(name) }, 1);
        report_storage(extender, name, 10 * GIB);
    }
    let class = StorageClassFields {
        provisioner: "local.example.com".to_owned(),
        waits_for_consumer: true,
        allowed_topologies: Vec::new(),
    };
    extender.update_storage_class(CLASS, Some(&class)).expect("the class should be valid");
    extender.update_csi_driver("local.example.com", true);
}

fn report_storage(extender: &mut Extender, host: &str, bytes: u64) {
    let labels = BTreeMap::from([(HOST_LABEL.to_owned(), host.to_owned())]);
    let topology = LabelSelector { match_labels: Some(labels), ..LabelSelector::default() };
    let capacity = StorageCapacityFields {
        class: CLASS.to_owned(),
        node_topology: Some(topology),
        capacity: Some(bytes),
        maximum_volume_size: None,
    };
    let name = format!("storage/{host}");
    extender.update_storage_capacity(&name, Some(&capacity)).expect("the capacity should be valid");
}

/// Sets a claim of 4 GiB without a volume.
fn set_claim(extender: &mut Extender, now: Instant, name: &str, selected_node: Option<&str>) {
    let claim = UnboundClaim {
        class: CLASS.to_owned(),
        bytes: Some(4 * GIB),
        selected_node: selected_node.map(str::to_owned),
    };
    extender.update_claim(now, "default", name, Some(claim));
}

/// Returns the launcher pod of a VM whose disk has the same name.
fn launcher(name: &str) -> v1::Pod {
    PodBuilder { claim: Some(name.to_owned()), ..PodBuilder::vm(name, 1) }.build()
}

fn extender_with_storage(now: Instant, claims: &[&str]) -> Extender {
    let mut extender = Extender::new();
    set_hosts(&mut extender);
    claims.iter().for_each(|claim| set_claim(&mut extender, now, claim, None));
    extender
}

/// Asserts that all hosts refuse a pod because of their storage.
#[track_caller]
fn assert_no_space(extender: &mut Extender, now: Instant, pod: &v1::Pod, hosts: &[&str]) {
    let FilterAnswer::Refused(refusals) = extender.answer_filter(now, pod, hosts) else {
        unreachable!("all hosts should refuse the pod")
    };
    assert_eq!(refusals.len(), hosts.len());
    assert!(refusals.iter().all(|(_, reason)| reason == NO_SPACE), "{refusals:?}");
}

#[track_caller]
fn reserve(extender: &mut Extender, now: Instant, name: &str, hosts: &[&str]) -> String {
    match extender.answer_filter(now, &launcher(name), hosts) {
        FilterAnswer::ReservedHost(host) => host.to_owned(),
        answer => unreachable!("{name} should get a reservation: {answer:?}"),
    }
}

#[test]
fn vms_that_are_created_at_once_do_not_share_storage() {
    let now = Instant::now();
    let names = ["vm-1", "vm-2", "vm-3", "vm-4", "vm-5"];
    let mut extender = extender_with_storage(now, &names);
    let mut vms_by_host: BTreeMap<String, usize> = BTreeMap::new();
    for name in &names[..4] {
        *vms_by_host.entry(reserve(&mut extender, now, name, &HOSTS)).or_default() += 1;
    }
    assert_eq!(vms_by_host, BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 2)]));
    let late = launcher("vm-5");
    assert_no_space(&mut extender, now, &late, &HOSTS);
    // A VM without such a disk is not affected.
    let plain = PodBuilder::vm("plain", 1).build();
    assert!(matches!(extender.answer_filter(now, &plain, &HOSTS), FilterAnswer::ReservedHost(_)));
    // The volume of vm-1 is provisioned, and the driver reports less free storage, in either order.
    let host = extender.engine().host_of_pod("vm-1").expect("the pod has a reservation");
    let host = extender.engine().reported_host(host).expect("the host is known").name.clone();
    report_storage(&mut extender, &host, 6 * GIB);
    assert!(extender.take_hosts_to_patch().is_empty());
    extender.update_claim(now, "default", "vm-1", None);
    assert!(extender.take_hosts_to_patch().is_empty(), "2 GiB are free, and vm-5 needs 4 GiB");
    assert_no_space(&mut extender, now, &late, &HOSTS);
    // The administrator adds a drive.
    report_storage(&mut extender, &host, 8 * GIB);
    assert_eq!(extender.take_hosts_to_patch(), [host.as_str()]);
    assert_eq!(reserve(&mut extender, now, "vm-5", &HOSTS), host);
}

#[test]
fn storage_is_released_with_the_reservation() {
    let now = Instant::now();
    let mut extender = extender_with_storage(now, &["vm-1", "vm-2", "vm-3"]);
    for name in ["vm-1", "vm-2"] {
        assert_eq!(reserve(&mut extender, now, name, &["a"]), "a");
    }
    let late = launcher("vm-3");
    assert_no_space(&mut extender, now, &late, &["a"]);
    assert!(extender.take_hosts_to_patch().is_empty());
    // A call for the same pod replaces its reservation.
    assert_eq!(reserve(&mut extender, now, "vm-2", &["a"]), "a");
    extender.expire_timeouts(now + HOUR);
    assert_eq!(extender.take_hosts_to_patch(), ["a"]);
    assert_eq!(reserve(&mut extender, now, "vm-3", &["a"]), "a");
}

#[test]
fn unreported_storage_is_unlimited() {
    let now = Instant::now();
    let names = ["vm-1", "vm-2", "vm-3"];
    let mut extender = extender_with_storage(now, &names);
    extender.update_csi_driver("local.example.com", false);
    for name in names {
        assert_eq!(reserve(&mut extender, now, name, &["a"]), "a");
    }
}

/// A first-consumer pod (CDI without populators) and the launcher pod after it have the same claim.
#[test]
fn the_storage_of_a_first_consumer_pod_is_reserved_once() {
    let now = Instant::now();
    let mut extender = extender_with_storage(now, &["disk", "other-1", "other-2"]);
    let first_consumer = PodBuilder {
        name: "first-consumer".to_owned(),
        is_first_consumer: true,
        claim: Some("disk".to_owned()),
        ..PodBuilder::vm("vm", 1)
    };
    let pod = first_consumer.build();
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(reserve(&mut extender, now, "other-1", &["a"]), "a");
    assert_no_space(&mut extender, now, &launcher("other-2"), &["a"]);
    // The volume is provisioned, and the pod runs and ends. CDI then imports the image.
    report_storage(&mut extender, "a", 6 * GIB);
    extender.update_claim(now, "default", "disk", None);
    assert_eq!(extender.answer_bind(now, "first-consumer", "a", None), BindAnswer::SendBinding);
    extender.record_binding_success(now, "first-consumer");
    let bound = bind_to(pod, "a");
    extender
        .update_pod(now, bound.clone(), &observe_pod(&bound))
        .expect("the pod should be counted");
    assert_no_space(&mut extender, now, &launcher("other-2"), &["a"]);
    extender.delete_pod(now, "first-consumer");
    assert_eq!(extender.stage_counts().kept, 1);
    assert_no_space(&mut extender, now, &launcher("other-2"), &["a"]);
    let own = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 1) }.build();
    assert_eq!(extender.answer_filter(now, &own, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(now, "vm", "a", None), BindAnswer::SendBinding);
}

/// With populators, the launcher pod waits in kube-scheduler while CDI fills the volume, which may take hours.
#[test]
fn the_reservation_of_a_launcher_pod_lasts_while_its_volume_is_filled() {
    let now = Instant::now();
    let mut extender = extender_with_storage(now, &["disk", "other-1", "other-2"]);
    let pod = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 6) }.build();
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be valid");
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    set_claim(&mut extender, now, "disk", Some("a"));
    // CDI provisions the volume through a claim of its own. While the volume is filled, its storage is counted once.
    let disk = ("default".to_owned(), "disk".to_owned());
    report_storage(&mut extender, "a", 6 * GIB);
    extender.update_populator_claim(&disk, "prime-disk", true);
    assert_eq!(reserve(&mut extender, now, "other-1", &["a"]), "a");
    assert_no_space(&mut extender, now, &launcher("other-2"), &["a"]);
    // kube-scheduler stops waiting after ten minutes, and may refuse the host until the volume is bound.
    for hours in 1..4 {
        extender.expire_timeouts(now + hours * HOUR);
        assert_eq!(
            extender.stage_counts().reserved,
            1,
            "the reservation should exist after {hours} hours"
        );
    }
    // The host has eight CPUs.
    let later = now + 3 * HOUR;
    let competitor = PodBuilder::vm("competitor", 3).build();
    let answer = extender.answer_filter(later, &competitor, &["a"]);
    assert!(matches!(answer, FilterAnswer::Refused(_)), "{answer:?}");
    // The volume is filled and bound to the claim.
    extender.update_claim(later, "default", "disk", None);
    assert_eq!(extender.answer_filter(later, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(later, "vm", "a", None), BindAnswer::SendBinding);
}

#[test]
fn a_reservation_ends_if_its_volume_cannot_be_provisioned() {
    let now = Instant::now();
    let mut extender = extender_with_storage(now, &["disk"]);
    let pod = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 8) }.build();
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be valid");
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    set_claim(&mut extender, now, "disk", Some("a"));
    extender.expire_timeouts(now + HOUR);
    assert_eq!(extender.stage_counts().reserved, 1);
    // The provisioner removes the selected node.
    set_claim(&mut extender, now + HOUR, "disk", None);
    extender.expire_timeouts(now + 3 * HOUR);
    assert_eq!(extender.stage_counts().reserved, 0);
}

/// kube-scheduler does not place such pods, so that no reservation would ever be used.
#[test]
fn reservations_of_pods_that_cannot_be_scheduled_end() {
    let now = Instant::now();
    for change in [
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"spec": {"schedulingGates": [{"name": "example.com/gate"}]}}),
    ] {
        let mut extender = extender_with_storage(now, &["disk"]);
        let pod = PodBuilder { claim: Some("disk".to_owned()), ..PodBuilder::vm("vm", 8) }.build();
        extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be valid");
        assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
        set_claim(&mut extender, now, "disk", Some("a"));
        let mut changed = serde_json::to_value(&pod).expect("the pod should be serializable");
        merge(&mut changed, &change);
        let changed: v1::Pod = serde_json::from_value(changed).expect("the pod should be valid");
        for hours in 0..3 {
            let later = now + hours * HOUR;
            let observed = observe_pod(&changed);
            extender
                .update_pod(later, changed.clone(), &observed)
                .expect("the pod should be valid");
            extender.expire_timeouts(later);
        }
        assert_eq!(extender.stage_counts().reserved, 0, "the reservation should end: {change}");
    }
}

/// Adds the fields of `change` to the fields of `object`.
fn merge(object: &mut Value, change: &Value) {
    for (field, value) in change.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => merge(&mut object[field], value),
            other => object[field] = other.clone(),
        }
    }
}

#[test]
fn storage_is_reserved_again_after_a_restart() {
    let now = Instant::now();
    let mut extender = Extender::new_awaiting_pod_list();
    set_hosts(&mut extender);
    for name in ["vm-1", "vm-2", "vm-3"] {
        set_claim(&mut extender, now, name, (name != "vm-3").then_some("a"));
    }
    for name in ["vm-1", "vm-2"] {
        let pod = launcher(name);
        extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be valid");
    }
    let listed = ["vm-1", "vm-2"].map(str::to_owned);
    extender.handle_pod_list(now, &HashSet::from(listed));
    assert_eq!(extender.stage_counts().reserved, 2);
    assert_no_space(&mut extender, now, &launcher("vm-3"), &["a"]);
    assert_eq!(reserve(&mut extender, now, "vm-3", &HOSTS), "b");
    // After a list, the claims of populators are known again.
    extender.replace_populator_claims(vec![(
        ("default".to_owned(), "vm-1".to_owned()),
        "prime-vm-1".to_owned(),
    )]);
    assert_eq!(extender.take_hosts_to_patch(), Vec::<String>::new());
    set_claim(&mut extender, now, "vm-4", None);
    assert_eq!(reserve(&mut extender, now, "vm-4", &["a"]), "a");
}
