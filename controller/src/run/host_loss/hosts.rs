//! Reconciles a host: waits while it is down, and handles its machines when it is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::condition::HOST_LOST;
use berth_api::names::{HOST_LOSS_FIELD_MANAGER, TENANT_PREFIX};
use berth_api::{Condition, InfraNode, ReplaceAfter, TenantCluster};
use futures::{StreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::machine::{mark_if_replaceable, report_wait};
use super::state::{LossFacts, LossState};
use super::triggers::Queues;
use crate::host_loss::machine_hosts::MachineName;
use crate::host_loss::report::{LostHost, host_condition};
use crate::host_loss::verdict::{Verdict, WaitReason};
use crate::profiles::{ConditionUpdate, new_condition};
use crate::run::clock::now_in_seconds;
use crate::run::context::Context;
use crate::run::reconcile::ReconcileFailure;

/// Number of machines of one host that are read at the same time.
const CONCURRENT_MACHINES: usize = 4;
/// Interval between checks whether the Lease of an agent has expired, after a new leader has started to observe it.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct HostReconciler {
    pub(super) context: Arc<Context>,
    pub(super) state: Arc<LossState>,
    pub(super) queues: Queues,
}

enum HostLossState {
    /// The host is not down.
    Up,
    /// The host is down. It is checked again after this time.
    Pending(Duration),
    Lost(LostHostMachines),
}

struct LostHostMachines {
    /// Time since which the host is down, according to its objects.
    since: Timestamp,
    /// Machines whose time limit has passed, each with its verdict if the verdict requires no request.
    machines: BTreeMap<MachineName, Option<Verdict>>,
    /// Time until the earliest time limit of the other machines.
    next_limit: Option<Duration>,
}

impl HostReconciler {
    /// Reconciles a host. Returns the time until it must be reconciled again, if that is known.
    pub(super) async fn reconcile(
        &self,
        infra_node: &InfraNode,
    ) -> Result<Option<Duration>, ReconcileFailure> {
        let host = infra_node.name_any();
        let loss = match self.state_of(&host) {
            HostLossState::Up => {
                self.set_lost(&host, None);
                self.write_condition(infra_node, None).await?;
                return Ok(None);
            }
            HostLossState::Pending(time) => return Ok(Some(time)),
            HostLossState::Lost(loss) => loss,
        };
        let LostHostMachines { since, machines, next_limit } = loss;
        let decided: Vec<(MachineName, Result<Verdict, ReconcileFailure>)> = stream::iter(machines)
            .map(|(machine, verdict)| self.decide((host.as_str(), since), machine, verdict))
            .buffer_unordered(CONCURRENT_MACHINES)
            .collect()
            .await;
        let (mut verdicts, mut failure) = (BTreeMap::new(), None);
        for (machine, verdict) in decided {
            match verdict {
                Ok(verdict) => drop(verdicts.insert(machine, verdict)),
                Err(error) => failure = Some(error),
            }
        }
        // If the host has returned meanwhile, the change of its evidence has already triggered another reconcile.
        if self.state.lock().down_observation(&host).is_none() {
            return failure.map_or(Ok(Some(Duration::ZERO)), Err);
        }
        let lost = LostHost { since, machines: verdicts };
        let condition = host_condition(&lost);
        let before = self.set_lost(&host, Some(lost.clone()));
        if self.write_condition(infra_node, Some(&condition)).await? {
            self.report_waits(&host, &lost, before.as_ref()).await;
        }
        failure.map_or(Ok(next_limit), Err)
    }

    fn state_of(&self, host: &str) -> HostLossState {
        let clock = self.state.clock();
        let facts = self.state.lock();
        let Some((observation, since)) = facts.down_observation(host) else {
            return HostLossState::Up;
        };
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        let all = facts.machines.machines_on(host);
        let limits = all.iter().map(|(namespace, _)| self.replace_after(namespace));
        let limits: Vec<ReplaceAfter> = limits.collect();
        for (machine, limit) in all.iter().zip(&limits) {
            let remaining = observation.remaining(time_limit(*limit), clock);
            if remaining.is_zero() {
                due.push((machine, *limit));
            } else {
                next = Some(next.map_or(remaining, |next| next.min(remaining)));
            }
        }
        if due.is_empty() {
            // A host without machines is also reported as lost.
            let remaining = observation.remaining(ReplaceAfter::DEFAULT_TIME, clock);
            let delay = next.map_or(remaining, |next| next.min(remaining));
            if !remaining.is_zero() {
                return HostLossState::Pending(delay);
            }
        }
        if !self.context.agent_leases.is_unresponsive(host) {
            return HostLossState::Pending(LEASE_CHECK_INTERVAL);
        }
        let machines = due
            .into_iter()
            .map(|(machine, limit)| (machine.clone(), known_verdict(&facts, host, machine, limit)));
        let machines = machines.collect();
        drop(facts);
        HostLossState::Lost(LostHostMachines { since, machines, next_limit: next })
    }

    /// Returns `spec.replaceAfter` of the tenant with this namespace. If the tenant could not be parsed since the
    /// controller started, the field is unknown, so the machines wait.
    fn replace_after(&self, namespace: &str) -> ReplaceAfter {
        let Some(name) = namespace.strip_prefix(TENANT_PREFIX) else {
            return ReplaceAfter::default();
        };
        // The malformed objects are read first: a tenant that is corrected meanwhile is then in the store.
        let malformed = self.context.watch_health.malformed_objects().names::<TenantCluster>();
        if let Some(tenant) = self.context.tenants.get(name) {
            return tenant.spec.replace_after.unwrap_or_default();
        }
        if malformed.contains(name) { ReplaceAfter::Never } else { ReplaceAfter::default() }
    }

    async fn decide(
        &self,
        (host, since): (&str, Timestamp),
        machine: MachineName,
        known: Option<Verdict>,
    ) -> (MachineName, Result<Verdict, ReconcileFailure>) {
        if let Some(verdict) = known {
            return (machine, Ok(verdict));
        }
        let is_still_lost = || {
            let facts = self.state.lock();
            let is_on_host = facts.machines.host_of(&machine).is_some_and(|one| one.name == host);
            is_on_host
                && facts.down_observation(host).is_some()
                && !facts.away_host_limit.is_exceeded()
                && self.context.agent_leases.is_unresponsive(host)
        };
        let verdict =
            mark_if_replaceable(&self.context, (host, since), &machine, is_still_lost).await;
        (machine, verdict)
    }

    /// Sets the verdicts on a host, triggers the tenants, and returns the previous verdicts.
    fn set_lost(&self, host: &str, lost: Option<LostHost>) -> Option<LostHost> {
        let mut facts = self.state.lock();
        let before = facts.lost.get(host).cloned();
        if let Some(namespaces) = facts.set_lost(host, lost) {
            let waiting = facts.lost.values().map(LostHost::waiting).sum();
            self.context.metrics.set_lost_hosts(facts.lost.len(), waiting);
            self.queues.trigger_tenants(&namespaces, &self.context);
        }
        before
    }

    /// Writes the condition of a host; `None` removes it. Returns true if it was written.
    async fn write_condition(
        &self,
        infra_node: &InfraNode,
        update: Option<&ConditionUpdate>,
    ) -> Result<bool, ReconcileFailure> {
        let before = infra_node.status.as_ref().map(|status| status.conditions.as_slice());
        let before = before.unwrap_or_default();
        let existing = before.iter().find(|one| one.type_ == HOST_LOST);
        let is_same = |one: &Condition, update: &ConditionUpdate| {
            (one.status.as_str(), one.reason.as_str(), &one.message)
                == (update.status, update.reason.as_str(), &update.message)
        };
        match (existing, update) {
            (None, None) => return Ok(false),
            (Some(one), Some(update)) if is_same(one, update) => return Ok(false),
            _ => {}
        }
        let generation = infra_node.metadata.generation;
        let now = now_in_seconds();
        let conditions: Vec<Condition> =
            update.iter().map(|update| new_condition(update, before, generation, &now)).collect();
        let request = format!("apply condition {HOST_LOST} of InfraNode {}", infra_node.name_any());
        let writer = &self.context.writer;
        let written = writer
            .apply_host_conditions(HOST_LOSS_FIELD_MANAGER, infra_node, &[HOST_LOST], conditions)
            .await;
        written.map_err(ReconcileFailure::with_request(request))?;
        if let Some(update) = update {
            self.context.events.warn(infra_node, update.reason.as_str(), &update.message).await;
        }
        Ok(true)
    }

    async fn report_waits(&self, host: &str, lost: &LostHost, before: Option<&LostHost>) {
        for (machine, verdict) in &lost.machines {
            let known = before.and_then(|before| before.machines.get(machine));
            let Verdict::Waits(reason) = verdict else { continue };
            // While too many hosts are away, machines get no Events: the Events of the InfraNodes are sufficient.
            let are_too_many_hosts_away = matches!(reason, WaitReason::TooManyHostsAway { .. });
            if known != Some(verdict) && !are_too_many_hosts_away {
                report_wait(&self.context, host, machine, &reason.to_string()).await;
            }
        }
    }
}

/// Returns the time after which a machine may be replaced. A machine that is never replaced is reported after the
/// default time.
fn time_limit(limit: ReplaceAfter) -> Duration {
    match limit {
        ReplaceAfter::After(time) => time,
        ReplaceAfter::Never => ReplaceAfter::DEFAULT_TIME,
    }
}

/// Returns the verdict on a machine that needs no request; `None` if the machine must be read.
fn known_verdict(
    facts: &LossFacts,
    host: &str,
    machine: &MachineName,
    limit: ReplaceAfter,
) -> Option<Verdict> {
    let known = facts.lost.get(host).and_then(|lost| lost.machines.get(machine));
    if let Some(Verdict::Replaced) = known {
        return Some(Verdict::Replaced);
    }
    let target = facts.machines.host_of(machine).and_then(|one| one.migration_target.clone());
    let reason = if limit == ReplaceAfter::Never {
        WaitReason::NeverReplaced
    } else if facts.away_host_limit.is_exceeded() {
        let (away, all) = facts.away_hosts();
        WaitReason::TooManyHostsAway { away, all }
    } else if let Some(target) = target {
        WaitReason::Migration(target)
    } else {
        return None;
    };
    Some(Verdict::Waits(reason))
}
