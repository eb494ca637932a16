//! Writes conditions of InfraNodes. Several reconcilers and the agent own conditions of the same object.

use berth_api::{Condition, InfraNode};
use berth_runtime::call::CallError;
use serde_json::json;

use super::apply::{ApplyTarget, Writer};
use crate::managed_fields::{conditions_are_atomic, with_existing_conditions};

impl Writer {
    /// Applies conditions of a host as the field manager `manager`. `owned` has the types of all conditions that the
    /// caller writes; existing conditions of these types that are not in `conditions` are removed. `conditions` may
    /// also contain conditions of an unresponsive agent.
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
            // The list of conditions is atomic, so the apply also contains conditions of other field managers. The
            // resource version ensures that these conditions are current.
            let existing = host.status.iter().flat_map(|status| &status.conditions);
            (target.with_version_of(host), with_existing_conditions(existing, owned, conditions))
        } else {
            (target, conditions)
        };
        let status = json!({"conditions": conditions});
        self.apply_status_as(manager, &target, status).await.map(drop)
    }
}
