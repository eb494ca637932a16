//! Writes conditions of InfraNodes. Several reconcilers and the agent own conditions of the same object.

use berth_api::{Condition, InfraNode};
use berth_runtime::call::CallError;
use serde_json::json;

use super::apply::{ApplyTarget, Writer};
use crate::managed_fields::conditions_are_atomic;

impl Writer {
    /// Applies conditions of a host as the field manager `manager`. `owned` has the types of all conditions that the
    /// caller writes; those without an entry in `conditions` are removed. `conditions` may also contain conditions of
    /// an unresponsive agent.
    ///
    /// # Errors
    /// Returns the error of the server, or [`CallError::NotSent`] if this process is not the leader.
    pub(super) async fn apply_host_conditions(
        &self,
        manager: &str,
        host: &InfraNode,
        owned: &[&str],
        conditions: Vec<Condition>,
    ) -> Result<(), CallError> {
        let target = ApplyTarget::from_object(host);
        let managed_fields = host.metadata.managed_fields.as_deref().unwrap_or_default();
        let (target, conditions) = if conditions_are_atomic(managed_fields) {
            // The write contains conditions of others, which must be current.
            (target.with_version_of(host), with_others(host, owned, conditions))
        } else {
            (target, conditions)
        };
        let status = json!({"conditions": conditions});
        self.apply_status_as(manager, &target, status).await.map(drop)
    }
}

/// Returns `conditions` and the existing conditions of others.
fn with_others(host: &InfraNode, owned: &[&str], mut conditions: Vec<Condition>) -> Vec<Condition> {
    let existing = host.status.iter().flat_map(|status| &status.conditions);
    let is_written = |one: &&Condition| {
        owned.contains(&one.type_.as_str()) || conditions.iter().any(|new| new.type_ == one.type_)
    };
    let others: Vec<Condition> = existing.filter(|one| !is_written(one)).cloned().collect();
    conditions.extend(others);
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(type_: &str, message: &str) -> serde_json::Value {
        json!({
            "type": type_, "status": "True", "reason": "Applied", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn conditions_of_others_stay() {
        let host = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": "a"}, "spec": {},
            "status": {"conditions": [
                condition("Ready", "of the agent"), condition("HostLost", "old"), condition("Draining", "old"),
            ]},
        });
        let host: InfraNode = serde_json::from_value(host).unwrap();
        let new: Condition = serde_json::from_value(condition("HostLost", "new")).unwrap();
        let written = with_others(&host, &["HostLost"], vec![new.clone()]);
        let messages: Vec<&str> = written.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(messages, ["new", "of the agent", "old"]);
        assert_eq!(written[2].type_, "Draining");
        let removed = with_others(&host, &["HostLost"], Vec::new());
        assert!(removed.iter().all(|one| one.type_ != "HostLost") && removed.len() == 2);
        // A condition of an unresponsive agent replaces the one that the agent wrote.
        let of_agent: Condition = serde_json::from_value(condition("Ready", "unknown")).unwrap();
        let written = with_others(&host, &["ProfileConflict"], vec![of_agent]);
        assert_eq!(written.iter().filter(|one| one.type_ == "Ready").count(), 1);
    }
}
