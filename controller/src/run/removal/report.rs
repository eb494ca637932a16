//! Reports a removal: in the [`RemovalTable`](super::table::RemovalTable), and as Events about the machine.

use berth_api::{ConditionReason, EventReason};
use kube::Resource as _;
use kube::runtime::events::EventType;

use super::context::Remover;
use super::drain::{Drain, MarkedMachine};
use crate::api_resource::machine_resource;
use crate::removal::plan::{RemovalOutcome, Step};
use crate::removal::report::RemovalReport;

impl Remover {
    /// Reports the step of a removal that waits or ends.
    pub(super) async fn report(&self, machine: &MarkedMachine, drain: &Drain, step: &Step<'_>) {
        let failed = drain.failure.as_ref().map(|fault| fault.message.clone());
        let problems: Vec<String> = machine.problems.iter().cloned().chain(failed).collect();
        let report = RemovalReport::new(machine.removal, machine.deadline, step, &problems);
        let reason = report.reason;
        let note = report.describe_machine(&machine.name);
        let is_new = self.context.table.set(&machine.namespace, &machine.name, report);
        // A machine that was deleted before the tenant's server answered has no report. If the machine is deleted
        // later, the handler of the deletion removes the report.
        if self.context.machines.get(&machine.namespace, &machine.name).is_none() {
            self.context.table.remove(&machine.namespace, &machine.name);
            return;
        }
        if is_new && reason == ConditionReason::DrainBlocked {
            self.emit_machine_event(machine, EventType::Warning, EventReason::DrainBlocked, &note)
                .await;
        }
    }

    /// Reports that a machine has been deleted.
    pub(super) async fn report_deletion(&self, machine: &MarkedMachine, outcome: RemovalOutcome) {
        let MarkedMachine { namespace, name, .. } = machine;
        let (result, event) = match outcome {
            RemovalOutcome::Drained => {
                ("drained", Some((EventType::Normal, EventReason::MachineDrained)))
            }
            RemovalOutcome::DeadlineExceeded => (
                "deadline_exceeded",
                Some((EventType::Warning, EventReason::DrainDeadlineExceeded)),
            ),
            RemovalOutcome::NotDrained => ("not_drained", None),
        };
        tracing::info!(%namespace, machine = %name, reason = %machine.removal.reason, result, "deleted VirtualMachine");
        self.context.metrics.count_machine_removal(result);
        if let Some((type_, reason)) = event {
            let report = self.context.table.get(namespace, name);
            let note = report.map(|report| report.describe_machine(name)).unwrap_or_default();
            self.emit_machine_event(machine, type_, reason, &note).await;
        }
    }

    async fn emit_machine_event(
        &self,
        machine: &MarkedMachine,
        type_: EventType,
        reason: EventReason,
        note: &str,
    ) {
        let reference = machine.object.object_ref(&machine_resource());
        self.context.events.emit_for(type_, reference, reason.as_str(), note).await;
    }
}
