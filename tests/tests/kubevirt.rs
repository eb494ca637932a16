//! Tests with KubeVirt's own virt-api and virt-controller, a real kube-scheduler with the configuration of `deploy/`,
//! and the controller as its extender: from MachineDeployments to launcher pods on hosts.
//!
//! `KUBEVIRT_ASSETS` names the folder of KubeVirt's programs. The Nodes have no kubelets and no virt-handler, which
//! [`berth_tests::kubevirt::Simulation`] replaces, together with CDI and provisioners.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, run programs, and fail by panicking"
)]

#[path = "../../controller/tests/engine/allocation.rs"]
mod allocation;
#[path = "kubevirt/deletion.rs"]
mod deletion;
#[path = "kubevirt/devices.rs"]
mod devices;
#[path = "kubevirt/disks.rs"]
mod disks;
#[path = "kubevirt/evictions.rs"]
mod evictions;
#[path = "kubevirt/first_consumer.rs"]
mod first_consumer;
#[path = "kubevirt/flavors.rs"]
mod flavors;
#[path = "../../controller/tests/engine/host.rs"]
#[expect(dead_code, reason = "this test uses only some of the methods")]
mod host;
#[path = "kubevirt/hosts.rs"]
mod hosts;
#[path = "kubevirt/hotplug.rs"]
mod hotplug;
#[path = "kubevirt/hotplug_gates.rs"]
mod hotplug_gates;
#[path = "kubevirt/instances.rs"]
mod instances;
#[path = "kubevirt/machines.rs"]
mod machines;
#[path = "kubevirt/migration_target.rs"]
mod migration_target;
#[path = "kubevirt/migrations.rs"]
mod migrations;
#[path = "kubevirt/networks.rs"]
mod networks;
#[path = "kubevirt/predictions.rs"]
mod predictions;
#[path = "kubevirt/preflight.rs"]
mod preflight;
#[path = "kubevirt/provider_fields.rs"]
mod provider_fields;
#[path = "kubevirt/run_strategies.rs"]
mod run_strategies;
#[path = "kubevirt/testbed.rs"]
mod testbed;

use testbed::Testbed;

/// All scenarios share one control plane, because starting it is the slowest step.
#[test]
#[ignore = "needs KUBEVIRT_ASSETS: make test-current"]
fn machines_run_with_real_kubevirt() {
    let mut bed = Testbed::start();
    machines::machines_are_accepted_and_placed(&bed);
    predictions::launcher_pods_equal_their_predictions(&bed);
    flavors::machines_of_all_flavors_are_accepted(&bed);
    flavors::flatcar_needs_a_feature_gate(&bed);
    networks::vms_get_only_hosts_with_their_network(&bed);
    preflight::checks_agree_with_kubevirt(&bed);
    hotplug::disks_are_attached_to_running_machines(&bed);
    predictions::launcher_pods_equal_their_predictions(&bed);
    hotplug::disks_are_expanded_online(&bed);
    hotplug::removed_disks_are_deleted_after_their_release(&bed);
    hotplug_gates::gates_are_reported_as_kubevirt_applies_them(&bed);
    devices::machines_get_permitted_devices(&bed);
    machines::changed_flavor_replaces_machines(&bed);
    machines::edited_instance_type_applies_to_new_machines(&bed);
    machines::ended_machine_is_replaced(&bed);
    evictions::cancelled_evacuation_keeps_the_machine(&bed);
    evictions::evicted_machine_leaves_its_host(&bed);
    instances::deleted_instance_is_placed_again(&bed);
    instances::halted_vm_has_no_pod(&bed);
    run_strategies::vms_follow_their_run_strategies(&bed);
    predictions::launcher_pods_equal_their_predictions(&bed);
    migrations::migration_reserves_both_hosts(&bed);
    predictions::target_pods_equal_their_predictions(&bed);
    first_consumer::room_is_reserved_during_the_import(&bed);
    first_consumer::room_is_reserved_if_the_pod_is_deleted_at_once(&bed);
    first_consumer::reservation_of_a_disk_survives_kills(&mut bed);
    first_consumer::launcher_pod_waits_for_the_import(&bed);
    first_consumer::deleted_vms_leave_no_volumes(&bed);
    deletion::deleted_machines_leave_no_objects(&bed);
    deletion::deleted_tenants_leave_no_objects(&bed);
    let log = bed.plane.log("berth-controller").unwrap();
    assert!(!log.is_empty(), "the controller has no log");
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("forbidden")).collect();
    assert!(refused.is_empty(), "a permission is missing: {refused:?}");
}
