//! Tests of addresses that other machines use. Agents are simulated.

use berth_api::InfraNode;
use berth_tests::cluster::ControlPlane;
use berth_tests::simulated::{create_client, create_runtime};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{NAMESPACE, TENANT_OBJECT, is_ipv4, machines_by_address, wait_until_condition};

/// Writes the conflicts that an agent reports.
fn report_conflicts(plane: &ControlPlane, conflicts: &Value) {
    create_runtime().unwrap().block_on(async {
        let api: Api<InfraNode> = Api::all(create_client(&plane.kubeconfig()).await.unwrap());
        let patch = Patch::Merge(json!({"status": {"addressConflicts": conflicts}}));
        api.patch_status("rack1-a", &PatchParams::default(), &patch).await.unwrap();
    });
}

/// Tests that the condition of the tenant names network, address, machine, host and remedy while a host reports a
/// conflict, and that a report about a machine without this address has no effect.
pub(super) fn conflicts_of_hosts_are_reported(plane: &ControlPlane) {
    let addresses = machines_by_address(plane, is_ipv4);
    let machine = format!("{NAMESPACE}/{}", addresses["10.0.0.3"]);
    let conflict = |address: &str, mac: &str| json!({"network": NAMESPACE, "address": address, "machine": machine, "mac": mac});
    let wrong = conflict("10.0.0.2", "02:00:00:00:00:98");
    report_conflicts(plane, &json!([wrong, conflict("10.0.0.3", "02:00:00:00:00:99")]));
    let words = format!(
        "False AddressInUse network {NAMESPACE}: 10.0.0.3 of {machine} on host rack1-a is in use by a machine with MAC \
         address 02:00:00:00:00:99: hosts do not answer the DHCP requests of these VMs; stop the other machines"
    );
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", &words);
    wait_until_condition(plane, &TENANT_OBJECT, "Ready", "False AddressInUse");
    report_conflicts(plane, &json!([wrong]));
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "True AddressesReady");
    report_conflicts(plane, &json!([]));
}
