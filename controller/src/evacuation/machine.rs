//! A machine that must leave its host: the input of the decision.

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
    /// True if its MachineDeployment counts the machine as ready.
    pub is_ready: bool,
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

/// Returns true if a VirtualMachineInstance is ready.
#[must_use]
pub fn is_instance_ready(instance: &Value) -> bool {
    let ready = conditions(instance).find(|one| one["type"] == "Ready");
    let is_ready = ready.is_some_and(|ready| ready["status"] == "True");
    is_ready && instance.pointer("/status/phase").is_some_and(|phase| phase == "Running")
}

/// Returns true if a MachineDeployment counts its machine as ready. A machine whose Node is not known counts as
/// ready, because a machine that is not ready may be removed at once.
#[must_use]
pub const fn is_ready(is_instance_ready: bool, node: NodeReadiness) -> bool {
    match node {
        NodeReadiness::NotUsed => is_instance_ready,
        NodeReadiness::Unknown | NodeReadiness::ReadySince(_) => true,
        NodeReadiness::NotReady => false,
    }
}

impl Machine {
    /// Parses a VirtualMachine. A replacement request with a malformed timestamp counts as made at `now`.
    #[must_use]
    pub fn read(object: &DynamicObject, is_ready: bool, now: Timestamp) -> Self {
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
            is_ready,
        }
    }

    /// Returns true if the machine is being removed.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.removal.is_some() || self.is_deleting
    }

    /// Returns true if the machine is ready and is not being removed.
    #[must_use]
    pub const fn is_available(&self) -> bool {
        self.is_ready && !self.is_leaving()
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
