//! Tests of AddressClaims that a user deletes while their machines exist.

use berth_tests::cluster::{ControlPlane, condition};
use serde_json::json;

use super::{NAMESPACE, SHORT_TIMEOUT, WEB_DEPLOYMENT, apply, machine_names, wait_until_condition};

/// Deletes a claim without waiting for the end of the deletion, because the controller may recreate it.
fn delete_claim(plane: &ControlPlane, name: &str) {
    plane.kubectl(&["delete", "addressclaim", name, "--wait=false"]).unwrap();
}

/// Waits until a claim exists with another UID, and with the same spec as `before`.
fn wait_until_restored(plane: &ControlPlane, name: &str, before: &serde_json::Value) {
    plane
        .wait_until(&format!("{name} is created again"), SHORT_TIMEOUT, |plane| {
            let claim = plane.get_json(&["addressclaim", name]).ok()?;
            let is_new = claim["metadata"]["uid"] != before["metadata"]["uid"];
            (is_new && claim["spec"] == before["spec"]).then_some(())
        })
        .unwrap();
}

/// Tests that the deleted claim of a machine is recreated, unless another claim for the same address was created in the
/// meantime: then a condition reports the lost claim.
pub(super) fn deleted_claims_are_created_again(plane: &ControlPlane) {
    let machines = machine_names(plane, "web");
    for name in ["cluster-shop-10.0.0.3", "cluster-shop-fd00-120-0-0-0-0-0-2"] {
        let before = plane.get_json(&["addressclaim", name]).unwrap();
        delete_claim(plane, name);
        wait_until_restored(plane, name, &before);
    }
    let reservation = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "AddressClaim", "metadata": {"name": "reserved"},
        "spec": {
            "network": NAMESPACE, "address": "10.0.0.4", "tenant": "shop", "tenantUID": "none", "interface": "eth0",
            "machine": {"namespace": "office", "name": "printer"}, "mac": "02:00:00:00:00:99",
        },
    });
    apply(plane, &reservation);
    let name = "cluster-shop-10.0.0.4";
    let before = plane.get_json(&["addressclaim", name]).unwrap();
    delete_claim(plane, name);
    wait_until_condition(plane, &WEB_DEPLOYMENT, "AddressesReady", "False AddressClaimLost");
    let words = "uses 10.0.0.4, which AddressClaim reserved of machine office/printer has";
    wait_until_condition(plane, &WEB_DEPLOYMENT, "AddressesReady", words);
    assert_eq!(machine_names(plane, "web"), machines);
    assert!(plane.get_json(&["addressclaim", name]).is_err(), "no second claim to the address");
    plane.kubectl(&["delete", "addressclaim", "reserved"]).unwrap();
    wait_until_restored(plane, name, &before);
    plane
        .wait_until("the condition is removed", SHORT_TIMEOUT, |plane| {
            condition(&plane.get_json(&WEB_DEPLOYMENT).ok()?, "AddressesReady")
                .is_null()
                .then_some(())
        })
        .unwrap();
    assert_eq!(machine_names(plane, "web"), machines);
}
