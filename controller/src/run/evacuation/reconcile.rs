//! Reconciles one host, in numbered steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::{EventReason, InfraNode};
use berth_runtime::backoff::add_jitter;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::apply::{MigrationCreation, WriteOutcome};
use super::evacuator::Evacuator;
use super::read::{Evacuation, ObservedMachine};
use super::status::was_cordoned;
use super::triggers::{is_cordoned, recorded_host};
use super::write_results::{RETRY_DELAY, WriteResults};
use crate::evacuation::cancel::{Cancellation, is_cancelled};
use crate::evacuation::decide::{Action, Decision, Targets, decide, migration_queries};
use crate::evacuation::machine::EvacuatingMachine;
use crate::evacuation::reason::EvacuationReason;
use crate::evacuation::record::EvacuationRecord;
use crate::evacuation::summary::{cancelled_condition, draining_condition};
use crate::removal::mark::{RemovalMark, RemovalReason};
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;

/// Period after which an evacuation is reconciled again, in case an event was lost.
const WAIT_PERIOD: Duration = Duration::from_secs(60);
/// Delay of the next attempt after the server has refused a migration.
const REFUSED_DELAY: Duration = Duration::from_secs(30);

impl Evacuator {
    /// Reconciles a host. Returns the delay of the next reconcile.
    pub(super) async fn reconcile(&self, host: &InfraNode) -> Result<Duration, ReconcileFailure> {
        let name = host.name_any();
        self.metrics.set_evacuating_machines(self.index.len());
        // A host without a Node is handled as lost, not as drained.
        let Some(node) = self.informers.nodes.get(&name) else {
            return Ok(add_jitter(self.resync));
        };
        let is_schedulable = !is_cordoned(&node);
        let is_cancelled = is_cancelled(was_cordoned(host), is_schedulable);
        let end = if is_cancelled {
            EventReason::EvacuationCancelled
        } else {
            EventReason::EvacuationCompleted
        };
        // A webhook that refuses the change of one machine must not keep the other machines on the host.
        let mut results = WriteResults::new(&name);
        // 1. Remove the evacuation records of machines that have left the host.
        let keys = self.index.machines_on(&name);
        self.remove_evacuation_records(&name, &mut results).await;
        if keys.is_empty() {
            let updated = self.update_condition(host, None, end).await;
            results.record(updated.map(|()| WriteOutcome::Done));
            return results.finish(add_jitter(self.resync));
        }
        // 2. Read. Hold the lock until all removal marks are written, so that no rollout uses the same budget of
        // `maxUnavailable`.
        let removals = self.informers.removal_lock.lock_all().await;
        let now = now_in_seconds().0;
        let evacuation = match self.read(&keys, now).await {
            Ok(evacuation) => evacuation,
            Err(error) => {
                results.record_failure(error);
                return results.finish(RETRY_DELAY);
            }
        };
        // 3. Cancel the evacuation if the host was uncordoned. The condition is updated last, because it records that
        // the host was cordoned. While its reason is `HostCordoned` or `DrainCancelled`, the next reconcile repeats
        // failed steps.
        if is_cancelled {
            drop(removals);
            let remaining = self.cancel(&name, &evacuation.machines, &mut results).await;
            if remaining == 0 {
                return results.finish(RETRY_DELAY);
            }
            let update = Some(cancelled_condition(remaining));
            let updated = self.update_condition(host, update, end).await;
            results.record(updated.map(|()| WriteOutcome::Done));
            return results.finish(add_jitter(self.resync));
        }
        // 4. Decide, and act.
        let Evacuation { machines, mut deployments } = evacuation;
        let evacuating: Vec<EvacuatingMachine> =
            machines.iter().map(|observed| observed.evacuating.clone()).collect();
        let targets = self.find_targets(&name, &evacuating, now);
        let decisions = decide(&name, &evacuating, &mut deployments, &targets, now);
        let mut delay = add_jitter(WAIT_PERIOD);
        let mut records = Vec::new();
        for (observed, decision) in machines.iter().zip(decisions) {
            let planned = EvacuationRecord::new(observed.record.as_ref(), &name, &decision, now);
            let record = match self.execute_decision(&name, observed, decision, now).await {
                Ok((record, retry)) => {
                    delay = delay.min(retry.unwrap_or(delay));
                    record
                }
                Err(error) => {
                    results.record_failure(error);
                    planned
                }
            };
            records.push((observed.qualified_name(), record));
        }
        drop(removals);
        // 5. Update the status.
        let update = draining_condition(&records, is_schedulable);
        let updated = self.update_condition(host, update, end).await;
        results.record(updated.map(|()| WriteOutcome::Done));
        results.finish(delay)
    }

    fn find_targets(&self, host: &str, machines: &[EvacuatingMachine], now: Timestamp) -> Targets {
        let Some(finder) = &self.targets else { return Targets::NoEngine };
        let queries = migration_queries(host, machines, now);
        if queries.is_empty() {
            return Targets::Known(BTreeMap::new());
        }
        let nodes = self.informers.nodes.all();
        let cordoned = nodes.iter().filter(|node| is_cordoned(node));
        let cordoned: BTreeSet<String> = cordoned.map(|node| node.name_any()).collect();
        let Some(answers) = finder.find(&queries, &cordoned) else { return Targets::NotReady };
        let uids = queries.into_iter().map(|query| query.instance_uid);
        Targets::Known(uids.zip(answers).collect())
    }

    /// Executes a decision. Returns the new evacuation record of the machine, and the delay after which the machine
    /// must be reconciled again.
    async fn execute_decision(
        &self,
        host: &str,
        observed: &ObservedMachine,
        mut decision: Decision,
        now: Timestamp,
    ) -> Result<(EvacuationRecord, Option<Duration>), ReconcileFailure> {
        if let Action::Migrate(name) = &decision.action
            && let MigrationCreation::Refused(message) =
                self.create_migration(observed, name).await?
        {
            let reason = EvacuationReason::MigrationRefused(message);
            decision = Decision { action: Action::Wait, reason, until: None };
        }
        let record = EvacuationRecord::new(observed.record.as_ref(), host, &decision, now);
        if self.write_record(observed, &record, &decision.action, now).await?
            == WriteOutcome::Conflict
        {
            return Ok((record, Some(RETRY_DELAY)));
        }
        self.emit_machine_event(observed, &decision, &record).await;
        let label = match &decision.action {
            Action::Wait => None,
            Action::Migrate(_) => Some("migrate"),
            Action::RequestReplacement => Some("request_replacement"),
            Action::Remove => Some("remove"),
        };
        if let Some(action) = label {
            self.metrics.count_evacuation_action(action);
            let (namespace, machine) =
                (&observed.evacuating.namespace, &observed.evacuating.machine.name);
            tracing::info!(%namespace, %machine, host, action, "moving a machine from its host");
        }
        let remaining = decision.until.map(|until| {
            let remaining = until.duration_since(now).unsigned_abs();
            if until > now { remaining.max(Duration::from_secs(1)) } else { RETRY_DELAY }
        });
        let retry = match decision.reason {
            EvacuationReason::EngineNotReady => Some(RETRY_DELAY),
            EvacuationReason::MigrationRefused(_) => Some(add_jitter(REFUSED_DELAY)),
            // The reconciler of removals applies the time limit.
            EvacuationReason::BeingRemoved(..) => None,
            _ => remaining,
        };
        Ok((record, retry))
    }

    /// Cancels all steps that have not begun, and ends the evacuation of each machine. Returns the number of
    /// machines whose evacuation KubeVirt cannot end.
    async fn cancel(
        &self,
        host: &str,
        machines: &[ObservedMachine],
        results: &mut WriteResults<'_>,
    ) -> usize {
        let mut remaining: usize = 0;
        for observed in machines {
            let (namespace, machine) =
                (&observed.evacuating.namespace, &observed.evacuating.machine.name);
            let changes = Cancellation::for_machine(&observed.evacuating, host);
            let mut is_cleared = true;
            for migration in &changes.migrations {
                is_cleared &= results.record(self.delete_migration(namespace, migration).await);
            }
            let cleared = self.clear_machine(&observed.object, changes.removes_mark).await;
            is_cleared &= results.record(cleared);
            // The evacuation of the instance is cancelled last: as long as the instance must leave the host, the next
            // reconcile repeats an interrupted cancellation.
            if !is_cleared {
                continue;
            }
            match self.cancel_evacuation(namespace, machine, host).await {
                Ok(true) => {
                    self.metrics.count_evacuation_action("cancel");
                    tracing::info!(%namespace, %machine, host, "cancelled the evacuation of a machine");
                }
                Ok(false) => remaining = remaining.saturating_add(1),
                Err(error) => results.record_failure(error),
            }
        }
        remaining
    }

    /// Removes the evacuation records of machines that no longer need to leave the host.
    async fn remove_evacuation_records(&self, host: &str, results: &mut WriteResults<'_>) {
        let recorded =
            self.machines.filter(|machine| recorded_host(machine).as_deref() == Some(host));
        for machine in recorded {
            let key = (machine.namespace().unwrap_or_default(), machine.name_any());
            if self.index.evacuated_host_of(&key).is_some()
                || machine.metadata.deletion_timestamp.is_some()
            {
                continue;
            }
            let has_instance = self.informers.instances.informer().get(&key.0, &key.1).is_some();
            let is_drained = RemovalMark::from_machine(&machine)
                .is_some_and(|mark| mark.reason == RemovalReason::HostDrain);
            // The machine is being removed: its instance ends before its VirtualMachine is deleted.
            if is_drained && !has_instance {
                continue;
            }
            results.record(self.clear_machine(&machine, is_drained).await);
        }
    }
}
