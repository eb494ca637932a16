//! Events about evacuations.

use berth_api::EventReason;
use kube::Resource as _;
use kube::runtime::events::EventType;

use super::evacuator::Evacuator;
use super::read::ObservedMachine;
use crate::api_resource::machine_resource;
use crate::evacuation::decide::{Action, Decision};
use crate::evacuation::record::EvacuationRecord;

impl Evacuator {
    /// Emits an Event about a machine if the decision is an action, or if the reason for waiting has changed.
    pub(super) async fn emit_machine_event(
        &self,
        observed: &ObservedMachine,
        decision: &Decision,
        record: &EvacuationRecord,
    ) {
        let is_known = observed
            .record
            .as_ref()
            .is_some_and(|before| before.host == record.host && before.reason == record.reason);
        let reason = match &decision.action {
            Action::Wait if is_known => return,
            Action::Wait => EventReason::EvacuationWaiting,
            Action::Migrate(_) => EventReason::MigrationCreated,
            Action::RequestReplacement => EventReason::ReplacementRequested,
            Action::Remove => EventReason::RemovalRequested,
        };
        let type_ =
            if decision.reason.needs_operator() { EventType::Warning } else { EventType::Normal };
        let note = format!("the machine must leave host {}: {}", record.host, record.message);
        let reference = observed.object.object_ref(&machine_resource());
        self.events.emit_for(type_, reference, reason.as_str(), &note).await;
    }

    /// Emits an Event about the Node of a host.
    pub(super) async fn emit_node_event(&self, host: &str, reason: EventReason, note: &str) {
        let Some(node) = self.informers.nodes.get(host) else { return };
        let reference = node.object_ref(&());
        self.events.emit_for(EventType::Normal, reference, reason.as_str(), note).await;
    }
}
