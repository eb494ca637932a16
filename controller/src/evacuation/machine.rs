//! A machine that must leave its host: the input of the decision.

use std::time::Duration;

use berth_api::names::REPLACEMENT_ANNOTATION;
use berth_kubevirt_render::machines::reconcile_steps::NodeReadiness;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::migration::Migration;
use crate::removal::mark::{ParsedMark, RemovalReason};
use crate::removal::report::RemovalReport;

/// Eviction strategy of VMs that a controller other than KubeVirt moves.
pub const EXTERNAL_STRATEGY: &str = "External";
/// Time for which the instance of a machine must be ready before the machine counts as ready, if its Node is not known.
/// Until then a machine has usually joined its cluster.
pub const UNKNOWN_NODE_DELAY: Duration = Duration::from_secs(600);

/// A VirtualMachine of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Field `metadata.name`.
    pub name: String,
    /// Reason in the removal mark; `None` if the machine has no mark.
    pub removal: Option<RemovalReason>,
    /// Report of the removal; `None` if it is not known yet.
    pub removal_report: Option<RemovalReport>,
    /// True if the object is being deleted.
    pub is_deleting: bool,
    /// Time at which the replacement was requested; `None` if it was not requested.
    pub replacement_since: Option<Timestamp>,
    /// False if the machine is known not to be ready, so that its removal makes no ready machine unavailable.
    pub is_ready: bool,
    /// Time since which the machine counts as ready for its MachineDeployment, in seconds since the epoch; `None` if it
    /// does not count as ready.
    pub ready_since: Option<i64>,
}

/// A machine that must leave its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvacuatingMachine {
    /// Field `metadata.namespace`.
    pub namespace: String,
    pub machine: Machine,
    /// UID of its VirtualMachineInstance.
    pub instance_uid: String,
    /// The message of the condition LiveMigratable if the VM cannot be migrated.
    pub migration_obstacle: Option<String>,
    /// Name of its MachineDeployment; `None` if Berth does not manage the machine.
    pub deployment: Option<String>,
    /// Migrations of its instance.
    pub migrations: Vec<Migration>,
}

/// Returns the message of the condition LiveMigratable of a VirtualMachineInstance if the VM cannot be migrated.
#[must_use]
pub fn migration_obstacle(instance: &Value) -> Option<String> {
    let condition = conditions(instance).find(|one| one["type"] == "LiveMigratable");
    match condition {
        Some(migratable) if migratable["status"] == "True" => None,
        Some(migratable) => {
            let message = migratable["message"].as_str().filter(|message| !message.is_empty());
            Some(message.unwrap_or("no message").to_owned())
        }
        None => Some("KubeVirt has not set the condition LiveMigratable".to_owned()),
    }
}

/// Returns the conditions of a VirtualMachineInstance.
fn conditions(instance: &Value) -> impl Iterator<Item = &Value> {
    let status = instance.get("status");
    let conditions = status.and_then(|status| status.get("conditions")?.as_array());
    conditions.into_iter().flatten()
}

/// Returns the time since which a VirtualMachineInstance is ready, in seconds since the epoch; `None` if it is not
/// ready. KubeVirt always sets the time; without it, the instance counts as ready for a long time.
#[must_use]
pub fn instance_ready_since(instance: &Value) -> Option<i64> {
    let is_running = instance.pointer("/status/phase").is_some_and(|phase| phase == "Running");
    let ready = conditions(instance).find(|one| one["type"] == "Ready")?;
    let since = ready["lastTransitionTime"].as_str().and_then(|time| time.parse().ok());
    (is_running && ready["status"] == "True").then(|| since.map_or(0, Timestamp::as_second))
}

/// Returns false if a machine is known not to be ready. A machine whose Node is not known counts as ready, because a
/// machine that is not ready may be removed at once.
#[must_use]
pub const fn is_ready(is_instance_ready: bool, node: NodeReadiness) -> bool {
    match node {
        NodeReadiness::NotUsed => is_instance_ready,
        NodeReadiness::Unknown | NodeReadiness::ReadySince(_) => true,
        NodeReadiness::NotReady => false,
    }
}

/// Returns the time since which a machine counts as ready for its MachineDeployment, in seconds since the epoch; `None`
/// if it does not count as ready. `instance_ready_since` is the time since which its instance is ready.
///
/// The Nodes of a tenant are not known after a start of the controller, until the tenant's API server has answered. If
/// the previous leader was killed before it updated the status of the MachineDeployment, the status may count a machine
/// that is deleted, and a machine that has just been created would be counted in its place. A machine whose Node is not
/// known therefore counts only after [`UNKNOWN_NODE_DELAY`]. A tenant whose API server never answers does not prevent a
/// drain, because its older machines count.
#[must_use]
pub fn ready_since(instance_ready_since: Option<i64>, node: NodeReadiness) -> Option<i64> {
    match node {
        NodeReadiness::NotUsed => instance_ready_since,
        NodeReadiness::Unknown => instance_ready_since
            .map(|since| since.saturating_add(UNKNOWN_NODE_DELAY.as_secs().cast_signed())),
        NodeReadiness::NotReady => None,
        NodeReadiness::ReadySince(since) => Some(since),
    }
}

impl Machine {
    /// Parses a VirtualMachine. A replacement request with a malformed timestamp counts as made at `now`. The
    /// VirtualMachine does not contain its readiness, so it does not count as ready.
    #[must_use]
    pub fn read(object: &DynamicObject, now: Timestamp) -> Self {
        let requested = object.annotations().get(REPLACEMENT_ANNOTATION);
        Self {
            name: object.name_any(),
            // A machine with a malformed mark is also being removed.
            removal: match ParsedMark::read(object, now) {
                ParsedMark::Absent => None,
                ParsedMark::Valid(removal) | ParsedMark::Malformed(removal) => Some(removal.reason),
            },
            removal_report: None,
            is_deleting: object.metadata.deletion_timestamp.is_some(),
            replacement_since: requested.map(|since| since.parse().unwrap_or(now)),
            is_ready: false,
            ready_since: None,
        }
    }

    /// Returns true if the machine is being removed.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.removal.is_some() || self.is_deleting
    }

    /// Returns true if the machine may be available: it is not known to be unready, and is not being removed.
    #[must_use]
    pub const fn is_available(&self) -> bool {
        self.is_ready && !self.is_leaving()
    }

    /// Returns true if the machine has counted as ready for `min_ready` seconds at the time `now`, in seconds since the
    /// epoch, and is not being removed.
    #[must_use]
    pub fn is_counted(&self, min_ready: i64, now: i64) -> bool {
        let is_old = |since| now.saturating_sub(since) >= min_ready;
        self.ready_since.is_some_and(is_old) && !self.is_leaving()
    }

    /// Returns true if a replacement was requested and the removal has not begun.
    #[must_use]
    pub const fn awaits_replacement(&self) -> bool {
        self.replacement_since.is_some() && !self.is_leaving()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_is_ready_with_its_node() {
        assert!(is_ready(true, NodeReadiness::NotUsed) && !is_ready(false, NodeReadiness::NotUsed));
        // The readiness probe of the instance fails, and the Node is Ready.
        assert!(is_ready(false, NodeReadiness::ReadySince(7)));
        assert!(!is_ready(true, NodeReadiness::NotReady));
        assert!(is_ready(false, NodeReadiness::Unknown), "it is not removed at once");
    }

    #[test]
    fn an_observed_machine_counts_after_its_minimum_time() {
        assert_eq!(ready_since(Some(7), NodeReadiness::NotUsed), Some(7));
        assert_eq!(ready_since(None, NodeReadiness::NotUsed), None);
        assert_eq!(ready_since(Some(7), NodeReadiness::ReadySince(9)), Some(9));
        assert_eq!(ready_since(Some(7), NodeReadiness::NotReady), None);
        assert_eq!(ready_since(Some(7), NodeReadiness::Unknown), Some(607));
        assert_eq!(ready_since(None, NodeReadiness::Unknown), None);
        let machine = Machine { ready_since: Some(100), ..Machine::default() };
        assert!(machine.is_counted(30, 130) && !machine.is_counted(30, 129));
        let marked = Machine { is_deleting: true, ..machine };
        assert!(!marked.is_counted(30, 130) && !Machine::default().is_counted(0, 130));
    }

    #[test]
    fn the_condition_ready_has_the_time() {
        let since = |phase: &str, status: &str, time: Value| {
            instance_ready_since(&json!({"status": {"phase": phase, "conditions":
                [{"type": "Ready", "status": status, "lastTransitionTime": time}]}}))
        };
        assert_eq!(since("Running", "True", json!("1970-01-01T00:01:40Z")), Some(100));
        assert_eq!(since("Running", "True", Value::Null), Some(0));
        assert_eq!(since("Running", "False", json!("1970-01-01T00:01:40Z")), None);
        assert_eq!(since("Succeeded", "True", json!("1970-01-01T00:01:40Z")), None);
        assert_eq!(instance_ready_since(&json!({"status": {"phase": "Running"}})), None);
    }

    #[test]
    fn only_the_condition_permits_a_migration() {
        let obstacle = |condition: Value| {
            migration_obstacle(&json!({"status": {"conditions": [{"type": "Ready"}, condition]}}))
        };
        assert_eq!(obstacle(json!({"type": "LiveMigratable", "status": "True"})), None);
        let refused = json!({"type": "LiveMigratable", "status": "False", "message": "host disk"});
        assert_eq!(obstacle(refused).as_deref(), Some("host disk"));
        let without_message = json!({"type": "LiveMigratable", "status": 7});
        assert_eq!(obstacle(without_message).as_deref(), Some("no message"));
        assert!(obstacle(Value::Null).is_some_and(|message| message.contains("has not set")));
    }
}
