//! Reconciles one machine with a removal mark in numbered steps, with one file per step. If a request to a tenant's API
//! server fails, the reconcile does not fail: the error is reported, and the removal waits.

use std::time::Duration;

use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::Action;
use berth_runtime::untrusted::UntrustedError;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::context::Remover;
use super::delays::{DELAY_RANGE, SHORT_DELAY};
use super::drain::{Drain, MarkedMachine};
use super::draining_tenant::DrainingTenant;
use super::plan::{StepRequest, plan_step};
use crate::removal::plan::Step;
use crate::run::api_requests::RequestError;

/// Maximum number of steps in one reconcile; the drain of a Node with 2,000 pods needs fewer.
const MAX_STEPS: usize = 100;
/// Interval between reconciles of a machine that is being deleted. These reconciles only update the metrics.
const DELETION_PERIOD: Duration = Duration::from_secs(60);

impl Remover {
    /// Takes the steps of a machine's removal that are possible now.
    pub(super) async fn reconcile(&self, machine: &DynamicObject) -> Result<Action, RequestError> {
        if machine.metadata.deletion_timestamp.is_some() {
            let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
            let is_reported = self.context.table.refresh_metrics(&namespace, &name);
            let again = is_reported.then(|| Action::requeue(add_jitter(DELETION_PERIOD)));
            return Ok(again.unwrap_or_else(Action::await_change));
        }
        // 1. Validate the mark.
        let removal = match self.validate_mark(machine).await? {
            Ok(removal) => removal,
            Err(action) => return Ok(action),
        };
        // 2. Read the tenant and the time limit.
        let (tenant, mut marked) = self.read_machine(machine, removal).await?;
        let mut drain = Drain::default();
        for _ in 0..MAX_STEPS {
            if let Some(delay) = self.take_step(&tenant, &mut marked, &mut drain).await? {
                return Ok(Action::requeue(delay));
            }
        }
        Ok(Action::requeue(add_jitter(SHORT_DELAY)))
    }

    /// Takes the next step. Returns the delay before the next reconcile if the removal has to wait.
    async fn take_step(
        &self,
        tenant: &DrainingTenant,
        machine: &mut MarkedMachine,
        drain: &mut Drain,
    ) -> Result<Option<Duration>, RequestError> {
        // 3. Read the facts, and record whether the host is lost or back.
        let facts = self.read_facts(tenant, machine);
        if self.record_host_return(machine, facts.vm).await? {
            return Ok(Some(SHORT_DELAY));
        }
        // 4. Plan.
        let step = plan_step(machine, drain, &facts);
        let request = StepRequest::of_step(&step);
        // 5. Report.
        if matches!(request, None | Some(StepRequest::DeleteMachine(_))) {
            self.report(machine, drain, &step).await;
        }
        let Some(request) = request else { return Ok(Some(self.begin_delay(machine, drain))) };
        let is_list = matches!(request, StepRequest::ListPods | StepRequest::ListVolumes);
        let rest = self.context.table.remaining_wait(&machine.namespace, &machine.name);
        if let Some(rest) = rest.filter(|_| is_list) {
            return Ok(Some(rest));
        }
        // 6. Apply.
        if let StepRequest::DeleteMachine(outcome) = request {
            self.delete_machine(machine, outcome).await?;
            return Ok(Some(DELETION_PERIOD));
        }
        // All other requests require a connection to the tenant.
        let Some(Ok(connection)) = facts.connection else { return Ok(Some(drain.delay(machine))) };
        if request == StepRequest::ListPods && drain.list_permit.is_none() {
            drain.list_permit = self.list_slots.try_acquire(&connection.tenant);
            if drain.list_permit.is_none() {
                self.report(machine, drain, &Step::ListPods).await;
                return Ok(Some(add_jitter(DELAY_RANGE.0)));
            }
        }
        let description = request.describe(machine, connection.node.as_ref());
        let limit = machine.step_timeout(Timestamp::now());
        let applied = self.apply(request, &connection, machine, drain);
        match tokio::time::timeout(limit, applied).await {
            Ok(result) => result,
            Err(_) => {
                drain.record_failure(machine, &description, &UntrustedError::Timeout.into());
                Ok(None)
            }
        }
    }

    /// Begins the delay of a removal that waits, and returns the delay.
    fn begin_delay(&self, machine: &MarkedMachine, drain: &Drain) -> Duration {
        let delay = drain.delay(machine);
        let has_sent_requests = drain.pods.is_some() || drain.volume_count.is_some();
        if has_sent_requests || drain.failure.is_some() {
            self.context.table.begin_wait(&machine.namespace, &machine.name, delay);
        }
        delay
    }
}
