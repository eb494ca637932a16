//! Tests of the controller and the hosts: two controllers with a real API server and the permissions that `deploy/`
//! grants.
//!
//! No agents run here: the tests create InfraNodes, their status and their Leases as agents do.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run programs, read files, and fail by panicking"
)]

#[path = "controller/hosts.rs"]
mod hosts;
#[path = "controller/leader_election.rs"]
mod leader_election;
#[path = "controller/process.rs"]
mod process;

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, Version, condition};
use serde_json::{Value, json};

const SHORT_TIMEOUT: Duration = Duration::from_secs(20);

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn hosts_match_their_profiles() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_audit_log: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    let first = leader_election::controller_waits_for_missing_crds(&plane);
    for (number, name) in ["rack1-a", "rack1-b", "rack2-a"].into_iter().enumerate() {
        hosts::create_host(&plane, name, number);
    }
    hosts::profile_is_written_to_the_spec(&plane);
    hosts::highest_priority_wins_and_ties_are_reported(&plane);
    // If an apply omits a field or a list that its manager owned, servers before 1.22 also remove the nested fields
    // that other managers own.
    let is_current = plane.supports("fields of other managers", Version(1, 22));
    if is_current {
        hosts::user_override_is_kept_until_removed(&plane);
        hosts::mutually_exclusive_fields_are_overridden_together(&plane);
    }
    hosts::tenants_are_added_and_removed(&plane);
    hosts::tunnel_peers_are_filled_in(&plane);
    if is_current {
        hosts::unresponsive_agent_is_reported_once(&plane);
    }
    hosts::configuration_is_validated(&plane);
    hosts::malformed_object_is_reported(&plane);
    leader_election::idle_controller_writes_nothing(&plane);
    leader_election::another_controller_takes_over(&plane, first);
}

fn read_spec(plane: &ControlPlane, host: &str) -> Value {
    plane.infra_node(host)["spec"].clone()
}

/// Waits until the field at a JSON pointer of an object has the expected value.
fn wait_until_field(plane: &ControlPlane, resource: &[&str], pointer: &str, wanted: &Value) {
    let mut last = Value::Null;
    let description = format!("{} {pointer} is {wanted}", resource.join(" "));
    let found = plane.wait_until(&description, SHORT_TIMEOUT, |plane| {
        last = plane.get_json(resource).unwrap_or_default();
        (last.pointer(pointer).unwrap_or(&Value::Null) == wanted).then_some(())
    });
    assert!(found.is_ok(), "{}: {last:#}\n{}", found.unwrap_err(), process::controller_logs(plane));
}

/// Waits until an object has a condition with this text in its message, or, with `None`, has no condition of the
/// type.
fn wait_until_condition(plane: &ControlPlane, resource: &[&str], type_: &str, words: Option<&str>) {
    let mut last = Value::Null;
    let description = format!("{} has condition {type_}: {words:?}", resource.join(" "));
    let found = plane.wait_until(&description, SHORT_TIMEOUT, |plane| {
        last = plane.get_json(resource).ok()?;
        let condition = condition(&last, type_);
        let matches = match words {
            Some(words) => {
                condition["message"].as_str().is_some_and(|message| message.contains(words))
            }
            None => condition.is_null(),
        };
        matches.then_some(())
    });
    assert!(found.is_ok(), "{}: {last:#}\n{}", found.unwrap_err(), process::controller_logs(plane));
}

fn apply_profile(plane: &ControlPlane, name: &str, spec: &Value) {
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": name}, "spec": spec});
    plane.apply(&object.to_string()).unwrap();
}
