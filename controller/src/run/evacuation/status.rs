//! Condition `Draining` of an InfraNode, which names the VMs that must leave the host.

use berth_api::names::DRAIN_FIELD_MANAGER;
use berth_api::names::condition::DRAINING;
use berth_api::{Condition, EventReason, InfraNode};
use kube::ResourceExt as _;

use super::evacuator::Evacuator;
use crate::evacuation::summary::DrainingReason;
use crate::profiles::{ConditionUpdate, new_condition};
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;

/// Returns the existing condition `Draining` of a host.
fn existing_condition(host: &InfraNode) -> Option<&Condition> {
    let mut conditions = host.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|one| one.type_ == DRAINING)
}

/// Returns true if VMs had to leave the host while it was cordoned, according to its condition.
pub(super) fn was_cordoned(host: &InfraNode) -> bool {
    let reason = existing_condition(host).and_then(|one| DrainingReason::parse(&one.reason));
    reason.is_some_and(DrainingReason::was_cordoned)
}

impl Evacuator {
    /// Writes the condition of a host if it differs; `None` removes it. Emits an Event about the Node when the
    /// evacuation starts or ends. `end_reason` is
    /// the reason of the Event that reports the end of the evacuation.
    pub(super) async fn update_condition(
        &self,
        host: &InfraNode,
        update: Option<ConditionUpdate>,
        end_reason: EventReason,
    ) -> Result<(), ReconcileFailure> {
        let before = existing_condition(host);
        let is_same = match (before, &update) {
            (None, None) => true,
            (Some(before), Some(update)) => {
                before.status == update.status
                    && before.reason.parse() == Ok(update.reason)
                    && before.message == update.message
            }
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let name = host.name_any();
        let known: Vec<Condition> = before.into_iter().cloned().collect();
        let now = now_in_seconds();
        let conditions: Vec<Condition> = update
            .iter()
            .map(|update| new_condition(update, &known, host.metadata.generation, &now))
            .collect();
        self.writer
            .apply_host_conditions(DRAIN_FIELD_MANAGER, host, &[DRAINING], conditions)
            .await
            .map_err(ReconcileFailure::with_request(format!(
                "apply conditions of InfraNode {name}"
            )))?;
        let was_draining = before.is_some_and(|one| one.status == "True");
        let is_draining = update.as_ref().is_some_and(|one| one.status == "True");
        if is_draining && !was_draining {
            let note = update.map(|update| update.message).unwrap_or_default();
            self.emit_node_event(&name, EventReason::EvacuationStarted, &note).await;
        } else if was_draining && !is_draining {
            let note = match end_reason {
                EventReason::EvacuationCancelled => {
                    "the host is schedulable again: the evacuation of its machines was cancelled"
                }
                _ => "all machines whose pods were evicted have left the host",
            };
            self.emit_node_event(&name, end_reason, note).await;
        }
        Ok(())
    }
}
