//! Begins the time limit of a drain again when the lost host of the machine is back. The host may have been away for
//! longer than the time limit, but its VM may still run, so the Node is drained before it is deleted.

use berth_api::Time;
use berth_api::names::HOST_RETURNED_ANNOTATION;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::mark::{Removal, RemovalReason};

/// Returns the merge patch that records the state of a machine's host; `None` if it is recorded, or if the host was
/// not lost. The annotation is part of the VirtualMachine, so a restart of the controller does not begin the time
/// limit once more.
///
/// `is_host_lost`: it is unknown whether the VM still runs. `is_host_ready`: the VM is on a host whose kubelet is
/// ready.
#[must_use]
pub fn record(
    machine: &DynamicObject,
    removal: &Removal,
    (is_host_lost, is_host_ready): (bool, bool),
    now: Timestamp,
) -> Option<Value> {
    let is_recorded = machine.annotations().contains_key(HOST_RETURNED_ANNOTATION);
    if removal.reason != RemovalReason::HostLost {
        return None;
    }
    if is_host_lost && is_recorded {
        // The host is lost again.
        let mut patch = removal.patch_of(machine);
        patch["metadata"]["annotations"][HOST_RETURNED_ANNOTATION] = Value::Null;
        return Some(patch);
    }
    if is_host_lost || !is_host_ready || is_recorded {
        return None;
    }
    let begin = Removal::new(RemovalReason::HostLost, now);
    let mut patch = begin.patch_of(machine);
    patch["metadata"]["annotations"][HOST_RETURNED_ANNOTATION] = json!(Time(begin.since));
    Some(patch)
}

#[cfg(test)]
mod tests {
    use berth_api::names::REMOVAL_SINCE_ANNOTATION;

    use super::*;

    const LOST: (bool, bool) = (true, false);
    const RETURNED: (bool, bool) = (false, true);

    fn machine(annotations: &Value) -> DynamicObject {
        let metadata = json!({"name": "web-1", "uid": "u", "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn the_time_limit_begins_once_for_each_return() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let removal = Removal::new(RemovalReason::HostLost, time("2026-05-01T12:00:00Z"));
        let now = time("2026-05-01T18:00:00Z");
        let marked = machine(&removal.patch()["metadata"]["annotations"]);
        assert_eq!(record(&marked, &removal, LOST, now), None);
        let patch = record(&marked, &removal, RETURNED, now).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(
            patch["metadata"]["annotations"][REMOVAL_SINCE_ANNOTATION],
            "2026-05-01T18:00:00Z"
        );
        // After a restart of the controller.
        let returned = machine(&patch["metadata"]["annotations"]);
        let removal = Removal::of(&returned).unwrap();
        assert_eq!(removal.since, now);
        assert_eq!(record(&returned, &removal, RETURNED, time("2026-05-01T19:00:00Z")), None);
        let patch = record(&returned, &removal, LOST, now).unwrap();
        assert_eq!(patch["metadata"]["annotations"][HOST_RETURNED_ANNOTATION], Value::Null);
    }

    #[test]
    fn other_removals_keep_their_time_limit() {
        let now = Timestamp::UNIX_EPOCH;
        let rollout = Removal::new(RemovalReason::Rollout, now);
        assert_eq!(record(&machine(&json!({})), &rollout, RETURNED, now), None);
        // The VM is on no host, or its host has the taint.
        let lost = Removal::new(RemovalReason::HostLost, now);
        assert_eq!(record(&machine(&json!({})), &lost, (false, false), now), None);
    }
}
