//! State of a Lease for leader election.

use berth_api::names::{CONTROLLER_LEASE, NAMESPACE, SCHEDULER_LEASE};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::values::text;

/// Tolerated difference between the clocks of the holder and of this machine, in seconds.
const CLOCK_TOLERANCE: i64 = 5;

/// A leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Election {
    /// Leader of the controller's replicas.
    Controller,
    /// Leader of the kube-schedulers with the controller as their extender.
    Scheduler,
}

impl Election {
    /// Returns namespace and name of the election's Lease in the manifests in `deploy/`.
    #[must_use]
    pub fn lease(self) -> (&'static str, &'static str) {
        match self {
            Self::Controller => (NAMESPACE, CONTROLLER_LEASE),
            Self::Scheduler => SCHEDULER_LEASE.split_once('/').unwrap_or_default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// Identity of the holder; empty if the Lease is released, or was never acquired.
    pub holder: String,
    /// Time of the last renewal, as the holder wrote it.
    pub renew_time: String,
    /// Seconds after which the Lease expires without a renewal.
    pub duration: i64,
    /// True if the Lease has not expired, or was renewed between two reads.
    pub is_fresh: bool,
}

impl LeaseState {
    /// Reads a Lease. It is fresh if it has not expired by the clock of this machine.
    #[must_use]
    pub fn from_object(object: &Value, now: Timestamp) -> Self {
        let holder = text(object, "/spec/holderIdentity").to_owned();
        let renew_time = text(object, "/spec/renewTime").to_owned();
        let duration = object.pointer("/spec/leaseDurationSeconds").and_then(Value::as_i64);
        let duration = duration.unwrap_or_default();
        let renewed = renew_time.parse::<Timestamp>().ok();
        let age = renewed.map(|time| now.duration_since(time).as_secs());
        let is_current = age.is_some_and(|age| (-CLOCK_TOLERANCE..=duration).contains(&age));
        Self { is_fresh: is_current && !holder.is_empty(), holder, renew_time, duration }
    }

    /// Returns the name of the holder's pod; empty if it is unknown. The identity of a controller or a kube-scheduler
    /// is the name of its pod (the host name), `_` and a random suffix.
    pub(super) fn pod(&self) -> &str {
        let holder = self.holder.as_str();
        let pod = holder.rsplit_once('_').map_or(holder, |(pod, _)| pod);
        // Remedies are shell commands that contain the name, so it must not contain special characters of a shell.
        let is_valid =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if pod.chars().all(is_valid) { pod } else { "" }
    }

    /// Returns this state, which was read after `before`. The Lease is also fresh if it was renewed between the two
    /// reads, even if the clocks of the holder and of this machine differ.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        let is_renewed = self.renew_time != before.renew_time && !self.holder.is_empty();
        Self { is_fresh: self.is_fresh || is_renewed, ..self }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, renewed: &str) -> Value {
        json!({"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}})
    }

    #[test]
    fn lease_is_fresh_until_its_duration_has_passed() {
        let now: Timestamp = "2026-11-26T12:00:20Z".parse().unwrap();
        for (object, is_fresh) in [
            (lease("a", "2026-11-26T12:00:05.000000Z"), true),
            (lease("a", "2026-11-26T12:00:04.000000Z"), false),
            (lease("a", "2026-11-26T12:00:24.000000Z"), true),
            (lease("a", "2026-11-26T13:00:00.000000Z"), false),
            (lease("", "2026-11-26T12:00:19.000000Z"), false),
            (lease("a", "yesterday"), false),
            (json!({"spec": {"leaseDurationSeconds": "15", "renewTime": 7}}), false),
            (json!(null), false),
        ] {
            assert_eq!(LeaseState::from_object(&object, now).is_fresh, is_fresh, "{object}");
        }
    }

    #[test]
    fn leases_are_those_of_the_manifests() {
        assert_eq!(Election::Controller.lease(), ("berth-system", "berth-controller"));
        assert_eq!(Election::Scheduler.lease(), ("kube-system", "berth-scheduler"));
    }

    #[test]
    fn pod_is_the_beginning_of_the_holder() {
        for (holder, pod) in [
            ("berth-controller-7d9-x2_00ab", "berth-controller-7d9-x2"),
            ("berth-controller-7d9-x2", "berth-controller-7d9-x2"),
            ("", ""),
            ("$(reboot)_00ab", ""),
        ] {
            let state = LeaseState { holder: holder.to_owned(), ..LeaseState::default() };
            assert_eq!(state.pod(), pod, "{holder}");
        }
    }

    #[test]
    fn renewed_lease_is_fresh_with_another_clock() {
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        let read = |object: &Value| LeaseState::from_object(object, now);
        let before = read(&lease("a", "2026-11-26T15:00:00.000000Z"));
        assert!(!read(&lease("a", "2026-11-26T15:00:00.000000Z")).after(&before).is_fresh);
        assert!(read(&lease("a", "2026-11-26T15:00:03.000000Z")).after(&before).is_fresh);
        assert!(!read(&lease("", "2026-11-26T15:00:03.000000Z")).after(&before).is_fresh);
    }
}
