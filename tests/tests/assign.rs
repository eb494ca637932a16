//! Tests of NUMA-aware placement: a real kube-scheduler with the configuration of `deploy/`, and the controller as
//! its extender with the permissions of `deploy/`. The Nodes have no kubelets; their InfraNodes contain what
//! kubelets would report.
//!
//! [`berth_kubelet_admission`] computes what a kubelet would do with each pod; this crate is tested against real
//! kubelets.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests fail by panicking, run programs, look at files and say how long things took"
)]

#[path = "../../controller/tests/engine/allocation.rs"]
mod allocation;
#[path = "assign/bed.rs"]
mod bed;
#[path = "assign/calls.rs"]
mod calls;
#[path = "assign/churn.rs"]
mod churn;
#[path = "../../controller/tests/engine/host.rs"]
mod host;
#[path = "assign/migrations.rs"]
mod migrations;
#[path = "assign/pairs.rs"]
mod pairs;
#[path = "rules/server.rs"]
#[expect(dead_code, reason = "of what it can ask not all is used here")]
mod server;
#[path = "assign/slow.rs"]
mod slow;
#[path = "assign/volumes.rs"]
mod volumes;
#[path = "assign/waits.rs"]
mod waits;

use berth_tests::cluster::{ControlPlane, Parts};

use bed::Bed;

#[test]
fn vms_are_placed_by_zones() {
    let mut plane = ControlPlane::start(Parts::default()).unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Bed::of(&plane);
    calls::an_extender_that_is_killed_between_filter_and_bind(&plane, &mut bed);
    calls::another_ones_scheduler_decides(&plane, &bed);
    calls::what_is_wrong_is_answered(&plane, &bed);
    slow::a_binding_takes_no_longer_than_the_scheduler_waits(&plane, &mut bed);
    slow::it_is_ready_when_it_can_answer(&plane, &mut bed);

    let mut extender = bed.with_scheduler(&mut plane);
    waits::zones_fill_up_and_the_rest_waits(&plane, &mut bed);
    waits::room_that_a_report_tells_of_is_used(&plane, &mut bed, &extender);
    waits::taints_and_neighbours_count(&mut bed);
    waits::pods_on_nodes_without_a_report_count(&plane, &mut bed);
    migrations::targets_take_room_and_leave_it(&plane, &mut bed);
    extender = volumes::killed_in_prebind(&mut plane, &mut bed, extender);
    volumes::the_place_of_a_first_consumer(&plane, &mut bed);
    extender = waits::an_extender_that_is_killed_in_a_burst(&plane, &mut bed, extender);
    assert!(
        extender.metric("berth_assignment_decisions_total{call=\"bind\",result=\"bound\"}") > 0.0
    );
    assert_eq!(extender.page("/readyz").unwrap().0, 200);
}

#[test]
fn the_place_of_an_imported_vm_outlives_a_restart() {
    let plane = ControlPlane::start(Parts::default()).unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Bed::of(&plane);
    volumes::the_place_of_a_vm_that_has_no_pod(&plane, &mut bed);
}

/// Places 10,000 VMs, which takes a quarter of an hour.
#[test]
#[ignore = "slow: make faults"]
fn faults_while_vms_are_created_and_deleted() {
    let plane = ControlPlane::start(Parts::default()).unwrap();
    plane.deploy(&["base/rbac-controller.yaml", "components/scheduler/lease.yaml"]).unwrap();
    let mut bed = Bed::of(&plane);
    churn::ten_thousand_vms(&plane, &mut bed);
}
