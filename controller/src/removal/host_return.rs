//! Restarts the time limit of a drain when the lost host of the machine is back. The host may have been away for longer
//! than the time limit, but its VM may still run, so the Node is drained before it is deleted.
//!
//! If the host is lost and returns several times, only the times for which the host was back count towards the time
//! limit, in total. So a host that flaps cannot prolong the drain without a limit.

use berth_api::Time;
use berth_api::names::{HOST_LOST_AGAIN_ANNOTATION, HOST_RETURNED_ANNOTATION};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::mark::{RemovalMark, RemovalReason};

/// Returns the merge patch that records the state of a machine's host; `None` if this state is already recorded, or if
/// the host was not lost. The annotations are part of the VirtualMachine, so a restart of the controller does not
/// restart the time limit.
///
/// `is_host_lost` is true if it is unknown whether the VM still runs. `is_host_ready` is true if the VM is on a host
/// whose kubelet is ready.
#[must_use]
pub fn record_patch(
    machine: &DynamicObject,
    removal: &RemovalMark,
    (is_host_lost, is_host_ready): (bool, bool),
    now: Timestamp,
) -> Option<Value> {
    let is_recorded = machine.annotations().contains_key(HOST_RETURNED_ANNOTATION);
    if removal.reason != RemovalReason::HostLost {
        return None;
    }
    if is_host_lost && is_recorded {
        let mut patch = removal.patch_of(machine);
        let annotations = &mut patch["metadata"]["annotations"];
        annotations[HOST_RETURNED_ANNOTATION] = Value::Null;
        annotations[HOST_LOST_AGAIN_ANNOTATION] = json!(Time(now));
        return Some(patch);
    }
    if is_host_lost || !is_host_ready || is_recorded {
        return None;
    }
    let since = now.checked_sub(waited_time(machine, removal, now)).unwrap_or(now);
    let mut patch = RemovalMark::new(RemovalReason::HostLost, since).patch_of(machine);
    let annotations = &mut patch["metadata"]["annotations"];
    annotations[HOST_RETURNED_ANNOTATION] = json!(Time(now));
    annotations[HOST_LOST_AGAIN_ANNOTATION] = Value::Null;
    Some(patch)
}

/// Returns the part of the time limit that had passed when the host was lost again. Returns zero at the first return of
/// the host, and if the annotation is malformed, older than the mark, or later than `now`: in these cases the host may
/// have been away since any time before `now`.
fn waited_time(machine: &DynamicObject, removal: &RemovalMark, now: Timestamp) -> SignedDuration {
    let lost_again = machine.annotations().get(HOST_LOST_AGAIN_ANNOTATION);
    let lost_again = lost_again.and_then(|text| text.parse::<Timestamp>().ok());
    let waited =
        lost_again.filter(|time| *time <= now).map(|time| time.duration_since(removal.since));
    waited.unwrap_or_default().max(SignedDuration::ZERO)
}

#[cfg(test)]
mod tests {
    use berth_api::names::REMOVAL_SINCE_ANNOTATION;

    use super::*;

    /// Arguments `is_host_lost` and `is_host_ready` while the host is lost.
    const LOST: (bool, bool) = (true, false);
    /// The same arguments after the host has returned.
    const RETURNED: (bool, bool) = (false, true);

    fn machine(annotations: &Value) -> DynamicObject {
        let metadata = json!({"name": "web-1", "uid": "u", "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn the_time_limit_begins_at_the_first_return() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let removal = RemovalMark::new(RemovalReason::HostLost, time("2026-05-01T12:00:00Z"));
        let now = time("2026-05-01T18:00:00Z");
        let marked = machine(&removal.patch()["metadata"]["annotations"]);
        assert_eq!(record_patch(&marked, &removal, LOST, now), None);
        let patch = record_patch(&marked, &removal, RETURNED, now).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(
            patch["metadata"]["annotations"][REMOVAL_SINCE_ANNOTATION],
            "2026-05-01T18:00:00Z"
        );
        // The controller restarts, and reads the mark from the machine.
        let returned = patched(&marked, &patch);
        let removal = RemovalMark::from_machine(&returned).unwrap();
        assert_eq!(removal.since, now);
        assert_eq!(record_patch(&returned, &removal, RETURNED, time("2026-05-01T19:00:00Z")), None);
    }

    /// Applies a merge patch of annotations.
    fn patched(machine: &DynamicObject, patch: &Value) -> DynamicObject {
        let mut patched = machine.clone();
        let annotations = patched.annotations_mut();
        for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
            match value.as_str() {
                Some(value) => drop(annotations.insert(name.clone(), value.to_owned())),
                None => drop(annotations.remove(name)),
            }
        }
        patched
    }

    #[test]
    fn a_host_that_flaps_does_not_prolong_the_time_limit() {
        let minutes = |count: i64| Timestamp::from_second(1_000_000 + 60 * count).unwrap();
        let mut machine = machine(
            &RemovalMark::new(RemovalReason::HostLost, minutes(0)).patch()["metadata"]["annotations"],
        );
        // The host is away for 50 minutes and back for 10 minutes, again and again.
        for count in 0..6 {
            let removal = RemovalMark::from_machine(&machine).unwrap();
            let (returned, lost) = (minutes(50 + 60 * count), minutes(60 + 60 * count));
            assert_eq!(record_patch(&machine, &removal, LOST, minutes(40 + 60 * count)), None);
            machine =
                patched(&machine, &record_patch(&machine, &removal, RETURNED, returned).unwrap());
            let removal = RemovalMark::from_machine(&machine).unwrap();
            let waited = returned.duration_since(removal.since);
            assert_eq!(waited.as_mins(), 10 * count, "the earlier returns count");
            assert_eq!(record_patch(&machine, &removal, RETURNED, lost), None);
            machine = patched(&machine, &record_patch(&machine, &removal, LOST, lost).unwrap());
            assert!(!machine.annotations().contains_key(HOST_RETURNED_ANNOTATION));
            assert_eq!(RemovalMark::from_machine(&machine), Some(removal), "the mark stays");
        }
    }

    #[test]
    fn an_implausible_time_of_a_loss_is_ignored() {
        let time = |second: i64| Timestamp::from_second(second).unwrap();
        let removal = RemovalMark::new(RemovalReason::HostLost, time(1000));
        for (lost_again, since) in [
            ("soon", 2000),
            ("1970-01-01T00:00:10Z", 2000),
            ("1970-01-01T00:25:00Z", 1500),
            ("1970-01-01T00:33:21Z", 2000),
            ("2100-01-01T00:00:00Z", 2000),
        ] {
            let object = machine(&json!({HOST_LOST_AGAIN_ANNOTATION: lost_again}));
            let patch = record_patch(&object, &removal, RETURNED, time(2000)).unwrap();
            assert_eq!(
                RemovalMark::from_machine(&patched(&object, &patch)).unwrap().since,
                time(since),
                "{lost_again}"
            );
        }
    }

    #[test]
    fn other_removals_keep_their_time_limit() {
        let now = Timestamp::UNIX_EPOCH;
        let rollout = RemovalMark::new(RemovalReason::Rollout, now);
        assert_eq!(record_patch(&machine(&json!({})), &rollout, RETURNED, now), None);
        // The VM is on no host, or its host has the taint.
        let lost = RemovalMark::new(RemovalReason::HostLost, now);
        assert_eq!(record_patch(&machine(&json!({})), &lost, (false, false), now), None);
    }
}
