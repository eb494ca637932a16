//! VMs of PodGroups, an alpha feature of Kubernetes 1.36, with a real scheduler: kube-scheduler simulates the placement
//! of a whole group before it binds any pod of the group.
//!
//! kube-scheduler retries a group that does not fit after each backoff, and calls `filter` for each of its pods. As
//! long as such a group waits, the VMs of the group that fit have reservations.

use std::time::{Duration, Instant};

use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use serde_json::json;

use crate::testbed::{PODS_PATH, SHORT_TIMEOUT, Testbed, Vm};

const GROUPS_PATH: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/vms/podgroups";
/// Metric of the pods that have a reservation and are not bound.
const RESERVED_PODS: &str = "berth_assignment_pods{stage=\"reserved\"}";
/// Time after which the metric shows an earlier change: longer than the interval at which the extender updates it.
const METRIC_DELAY: Duration = Duration::from_secs(3);
/// Time for which a group that does not fit is observed: longer than the timeout of the reservations of its pods, and
/// several attempts of the scheduler.
const OBSERVATION_TIME: Duration = Duration::from_secs(15);

/// Creates a PodGroup of two VMs, each of which needs a zone, and returns the names of their pods.
fn create_group(bed: &mut Testbed, name: &str) -> [String; 2] {
    let group = json!({"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}});
    bed.client.post(GROUPS_PATH, &group);
    [0, 1].map(|_| bed.create_vm(Vm { pod_group: Some(name), ..Vm::large("groups") }))
}

/// Waits until the extender reports that no pod has a reservation.
#[track_caller]
fn wait_until_nothing_is_reserved(plane: &ControlPlane, extender: &Controller) {
    std::thread::sleep(METRIC_DELAY);
    let begin = Instant::now();
    loop {
        let metrics = extender.http_get("/metrics").unwrap_or_default().1;
        let reserved =
            metrics.lines().find_map(|line| line.strip_prefix(RESERVED_PODS)).map(str::trim);
        if reserved == Some("0") {
            return;
        }
        assert!(
            begin.elapsed() < SHORT_TIMEOUT,
            "the reservations should be released; {RESERVED_PODS} is {reserved:?}\n{}",
            plane.log_tail("extender")
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Asserts that the scheduler finds no host for both VMs of a group, and binds neither of them later.
#[track_caller]
fn assert_group_is_not_bound(bed: &Testbed, group: &[String; 2]) {
    for vm in group {
        bed.client.wait_until_scheduled(&format!("{PODS_PATH}/{vm}"));
    }
    std::thread::sleep(OBSERVATION_TIME);
    for vm in group {
        assert_eq!(
            bed.host_of(vm),
            None,
            "no pod should be bound, because only a part of the group fits"
        );
    }
}

/// Tests a group that fits on one host with two zones.
pub(crate) fn group_is_bound_when_all_its_vms_fit(
    plane: &ControlPlane,
    bed: &mut Testbed,
    extender: &Controller,
) {
    bed.add_host("groups-0", "groups", &[]);
    for vm in create_group(bed, "fits") {
        bed.wait_until_bound(&vm);
        assert_eq!(bed.host_of(&vm).as_deref(), Some("groups-0"));
    }
    wait_until_nothing_is_reserved(plane, extender);
    assert_eq!(bed.assert_kubelets_admit_on(&["groups-0"]), 2);
    bed.write_all_reports();
}

/// Tests a group of two VMs of which only one fits: neither VM is bound, and after the deletion of the group another VM
/// gets the zone.
pub(crate) fn group_that_does_not_fit_is_not_bound(
    plane: &ControlPlane,
    bed: &mut Testbed,
    extender: &Controller,
) {
    bed.add_host("groups-1", "groups", &[]);
    let single = bed.create_vm(Vm::large("groups"));
    bed.wait_until_bound(&single);
    assert_eq!(bed.host_of(&single).as_deref(), Some("groups-1"));
    bed.write_all_reports();
    let group = create_group(bed, "too-large");
    assert_group_is_not_bound(bed, &group);
    for vm in &group {
        bed.client.delete(&format!("{PODS_PATH}/{vm}"));
    }
    wait_until_nothing_is_reserved(plane, extender);
    let next = bed.create_vm(Vm::large("groups"));
    bed.wait_until_bound(&next);
    assert_eq!(bed.host_of(&next).as_deref(), Some("groups-1"));
    wait_until_nothing_is_reserved(plane, extender);
    assert_eq!(bed.assert_kubelets_admit_on(&["groups-0", "groups-1"]), 4);
    bed.write_all_reports();
}

/// Tests a group that waits while both hosts are full, and is bound when one host has room for the whole group.
pub(crate) fn waiting_group_is_bound_later(
    plane: &ControlPlane,
    bed: &mut Testbed,
    extender: &Controller,
) {
    let group = create_group(bed, "late");
    assert_group_is_not_bound(bed, &group);
    let pods = bed.client.get(PODS_PATH);
    for pod in pods["items"].as_array().unwrap() {
        if pod["spec"]["nodeName"] == "groups-1" {
            let name = pod["metadata"]["name"].as_str().unwrap();
            bed.client.delete(&format!("{PODS_PATH}/{name}"));
        }
    }
    bed.write_all_reports();
    for vm in &group {
        bed.wait_until_bound(vm);
        assert_eq!(bed.host_of(vm).as_deref(), Some("groups-1"));
    }
    wait_until_nothing_is_reserved(plane, extender);
    assert_eq!(bed.assert_kubelets_admit_on(&["groups-0", "groups-1"]), 4);
}
