//! Tests of NUMA-aware placement: a real kube-scheduler with the configuration of `deploy/`, and the controller as
//! its extender with the permissions of `deploy/`. The Nodes have no kubelets; their InfraNodes contain what
//! kubelets would report.
//!
//! [`berth_kubelet_admission`] computes what a kubelet would do with each pod; this crate is compared with recorded
//! answers of the kubelet's own packages.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests fail by panicking, run programs, read files and print durations"
)]

#[path = "../../controller/tests/engine/allocation.rs"]
mod allocation;
#[path = "assign/calls.rs"]
mod calls;
#[path = "assign/churn.rs"]
mod churn;
#[path = "../../controller/tests/engine/host.rs"]
mod host;
#[path = "assign/migrations.rs"]
mod migrations;
#[path = "assign/pod_groups.rs"]
mod pod_groups;
#[path = "assign/replicas.rs"]
mod replicas;
#[path = "assign/resource_claims.rs"]
mod resource_claims;
#[path = "rules/scheduling_client.rs"]
#[expect(dead_code, reason = "this test uses only some of the methods")]
mod scheduling_client;
#[path = "assign/slow.rs"]
mod slow;
#[path = "assign/storage.rs"]
mod storage;
#[path = "assign/testbed.rs"]
mod testbed;
#[path = "assign/unschedulable_pods.rs"]
mod unschedulable_pods;
#[path = "assign/volumes.rs"]
mod volumes;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, POD_GROUPS_RELEASE};

use testbed::Testbed;

#[test]
fn vms_are_placed_in_zones_with_room() {
    let mut plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Testbed::start(&plane);
    calls::extender_is_killed_between_filter_and_bind(&plane, &mut bed);
    calls::calls_are_refused_without_the_lease(&plane, &bed);
    calls::malformed_calls_are_answered(&plane, &bed);
    slow::binding_completes_within_the_scheduler_timeout(&plane, &mut bed);
    slow::extender_is_ready_only_when_it_can_answer(&plane, &mut bed);

    let mut extender = bed.start_with_scheduler(&mut plane);
    unschedulable_pods::pods_wait_when_zones_are_full(&plane, &mut bed);
    unschedulable_pods::reported_free_resources_are_used(&plane, &mut bed, &extender);
    unschedulable_pods::taints_and_affinity_are_considered(&mut bed);
    unschedulable_pods::pods_on_nodes_without_a_report_are_considered(&plane, &mut bed);
    migrations::migration_targets_allocate_and_release_resources(&plane, &mut bed);
    resource_claims::vm_gets_the_host_of_its_device(&plane, &mut bed, &extender);
    extender = volumes::reservation_survives_a_kill_in_prebind(&mut plane, &mut bed, extender);
    volumes::reservation_is_kept_after_the_first_consumer_pod(&plane, &mut bed);
    extender = storage::claims_use_reported_storage(&plane, &mut bed, extender);
    extender =
        unschedulable_pods::extender_is_killed_while_pods_are_created(&plane, &mut bed, extender);
    assert!(
        extender.metric("berth_assignment_decisions_total{call=\"bind\",result=\"bound\"}") > 0.0
    );
    assert_eq!(extender.http_get("/readyz").unwrap().0, 200);
}

#[test]
fn reservation_of_an_imported_vm_survives_a_restart() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Testbed::start(&plane);
    volumes::reservation_exists_for_a_vm_without_pod(&plane, &mut bed);
}

#[test]
fn pod_groups_are_bound_whole_or_not_at_all() {
    if !ControlPlane::programs_support("VMs of a PodGroup", POD_GROUPS_RELEASE).unwrap() {
        return;
    }
    let mut plane = ControlPlane::start(ControlPlaneOptions {
        has_pod_groups: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Testbed::start(&plane);
    let extender = bed.start_with_scheduler(&mut plane);
    pod_groups::group_is_bound_when_all_its_vms_fit(&plane, &mut bed, &extender);
    pod_groups::group_that_does_not_fit_is_not_bound(&plane, &mut bed, &extender);
    pod_groups::waiting_group_is_bound_later(&plane, &mut bed, &extender);
}

/// Places 10,000 VMs, which takes a quarter of an hour.
#[test]
#[ignore = "slow: make faults"]
fn vms_are_placed_correctly_despite_faults() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Testbed::start(&plane);
    churn::ten_thousand_vms_are_scheduled_despite_faults(&plane, &mut bed);
}
