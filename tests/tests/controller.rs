//! Tests of the controller and the hosts: two controllers with a real API server and the permissions that `deploy/`
//! grants.
//!
//! No agents run here: the tests create InfraNodes, their status and their Leases as agents do.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run programs, look at files, and fail by panicking"
)]

#[path = "controller/hosts.rs"]
mod hosts;
#[path = "controller/lead.rs"]
mod lead;
#[path = "controller/process.rs"]
mod process;

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, Parts, Version, condition};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);

/// All tests share one control plane, because its start takes longest.
#[test]
fn hosts_are_kept_as_their_profiles_say() {
    let plane = ControlPlane::start(Parts { controllers: false, audit: true }).unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    let first = lead::kinds_are_waited_for(&plane);
    for (number, name) in ["rack1-a", "rack1-b", "rack2-a"].into_iter().enumerate() {
        hosts::make(&plane, name, number);
    }
    hosts::a_profile_becomes_the_spec(&plane);
    hosts::the_highest_priority_wins_and_a_tie_is_shown_on_both(&plane);
    // If an apply omits a field or a list that it owned, servers before 1.22 remove everything below it, whichever
    // manager owns it.
    let is_current = plane.supports("fields of other managers", Version(1, 22));
    if is_current {
        hosts::a_persons_field_wins_and_comes_back(&plane);
        hosts::a_choice_of_fields_is_left_whole(&plane);
    }
    hosts::tenants_come_and_go(&plane);
    hosts::tunnels_know_each_other(&plane);
    if is_current {
        hosts::a_silent_agent_is_said_once(&plane);
    }
    hosts::the_configuration_is_judged(&plane);
    hosts::what_cannot_be_understood_is_said(&plane);
    lead::nothing_is_written_while_nothing_changes(&plane);
    lead::another_takes_over(&plane, first);
}

fn spec(plane: &ControlPlane, host: &str) -> Value {
    plane.infra_node(host)["spec"].clone()
}

/// Waits until a part of an object has the wanted value.
fn until(plane: &ControlPlane, what: &[&str], pointer: &str, wanted: &Value) {
    let mut last = Value::Null;
    let asked = format!("{} {pointer} is {wanted}", what.join(" "));
    let found = plane.until(&asked, SOON, |plane| {
        last = plane.get(what).unwrap_or_default();
        (last.pointer(pointer).unwrap_or(&Value::Null) == wanted).then_some(())
    });
    assert!(found.is_ok(), "{}: {last:#}\n{}", found.unwrap_err(), process::logs(plane));
}

/// Waits until an object has a condition with this text in its message, or, with `None`, has no condition of the
/// type.
fn until_said(plane: &ControlPlane, what: &[&str], type_: &str, words: Option<&str>) {
    let mut last = Value::Null;
    let asked = format!("{} says {type_}: {words:?}", what.join(" "));
    let found = plane.until(&asked, SOON, |plane| {
        last = plane.get(what).ok()?;
        let said = condition(&last, type_);
        let fits = match words {
            Some(words) => said["message"].as_str().is_some_and(|message| message.contains(words)),
            None => said.is_null(),
        };
        fits.then_some(())
    });
    assert!(found.is_ok(), "{}: {last:#}\n{}", found.unwrap_err(), process::logs(plane));
}

fn profile(plane: &ControlPlane, name: &str, spec: &Value) {
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": name}, "spec": spec});
    plane.apply(&object.to_string()).unwrap();
}
