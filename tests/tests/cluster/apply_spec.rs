//! Tests that the agent applies `InfraNode.spec` and updates the status.

use std::time::Duration;

use berth_tests::cluster::ControlPlane;
use serde_json::json;

use crate::tree::Tree;
use crate::{condition, read_file, read_infra_node, set_spec};

const SHORT_TIMEOUT: Duration = Duration::from_secs(20);
/// Path of a file of the simulated host.
pub(crate) const SLEEP_FILE: &str = "sys/kernel/mm/ksm/sleep_millisecs";

/// Waits until the condition Ready has this status for the current generation of the spec.
pub(crate) fn wait_until_ready(plane: &ControlPlane, status: &str) -> serde_json::Value {
    plane
        .wait_until(&format!("Ready {status} for the latest generation"), SHORT_TIMEOUT, |plane| {
            let node = read_infra_node(plane);
            let latest = node["status"]["observedGeneration"] == node["metadata"]["generation"];
            (latest && condition(&node, "Ready")["status"] == status).then_some(node)
        })
        .unwrap()
}

pub(crate) fn spec_is_applied_and_drift_corrected(plane: &ControlPlane, tree: &Tree) {
    set_spec(plane, &json!({"ksm": {"mode": "On", "sleepMillis": 77}}));
    let node = wait_until_ready(plane, "True");
    assert_eq!(read_file(tree, SLEEP_FILE), "77");
    assert_eq!(condition(&node, "Ready")["observedGeneration"], node["metadata"]["generation"]);
    let changes = node["status"]["changes"].to_string();
    assert!(changes.contains("77") && changes.contains("Done"), "{changes}");
    let event_list = plane
        .wait_until("an Event Applied exists", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-n", "default"]).ok()?.to_string();
            (events.contains("\"Applied\"") && events.contains("77")).then_some(events)
        })
        .unwrap();
    assert!(event_list.contains("berth-agent"), "{event_list}");

    // Another program changes the value.
    tree.write_file(SLEEP_FILE, "1\n");
    plane
        .wait_until("the drift is corrected and reported", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-n", "default"]).ok()?.to_string();
            (read_file(tree, SLEEP_FILE) == "77" && events.contains("DriftCorrected")).then_some(())
        })
        .unwrap();
}

/// Tests a spec that is valid by the schema, but impossible on the host.
pub(crate) fn invalid_spec_is_reported(plane: &ControlPlane, tree: &Tree) {
    set_spec(
        plane,
        &json!({"hugepages": [{"size": "2Mi", "zone": 7, "count": 4}], "ksm": {"sleepMillis": 78}}),
    );
    let node = wait_until_ready(plane, "False");
    let message = condition(&node, "HostTuned")["message"].as_str().unwrap();
    assert!(message.contains("spec.hugepages[0].zone") && message.contains('7'), "{message}");
    // The valid part of the spec stays applied.
    assert_eq!(read_file(tree, SLEEP_FILE), "78");
    // The server refuses a spec that violates the schema.
    let wrong = plane.kubectl(&[
        "patch",
        "infranode",
        "rack1-a",
        "--type=merge",
        "-p",
        r#"{"spec":{"ksm":{"mode":"Onn"}}}"#,
    ]);
    assert!(wrong.unwrap_err().to_string().contains("spec.ksm.mode"));
    set_spec(plane, &json!({"hugepages": null}));
    wait_until_ready(plane, "True");
}

/// Tests that the agent applies no change and reports the reason if the rollback ledger is unreadable, and applies the
/// spec when the ledger is readable again.
pub(crate) fn missing_rollback_ledger_is_reported(plane: &ControlPlane, tree: &Tree) {
    const LEDGER: &str = "var/lib/berth/found.json";
    let ledger = read_file(tree, LEDGER);
    tree.write_file(LEDGER, "garbled");
    set_spec(plane, &json!({"ksm": {"sleepMillis": 79}}));
    let node = wait_until_ready(plane, "False");
    for name in ["HostTuned", "Ready"] {
        let condition = condition(&node, name);
        assert_eq!(condition["reason"], "RollbackLedgerUnavailable", "{condition:#}");
        assert!(condition["message"].as_str().unwrap().contains("found.json"), "{condition:#}");
    }
    assert_eq!(read_file(tree, SLEEP_FILE), "78");
    // The facts of the host are still reported.
    assert!(!node["status"]["zones"].as_array().unwrap().is_empty());
    tree.write_file(LEDGER, &ledger);
    wait_until_ready(plane, "True");
    assert_eq!(read_file(tree, SLEEP_FILE), "79");
    set_spec(plane, &json!({"ksm": {"sleepMillis": 78}}));
    wait_until_ready(plane, "True");
}
