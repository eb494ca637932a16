//! Publishes the results of a cycle: to the state that HTTP and the cluster read, as metrics, Events and log lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use berth_api::Condition;
use berth_api::infra_node::{ChangeResult, TrunkStatus};
use berth_api::names::condition::CREDENTIAL_VALID;
use berth_api::{InfraNode, InfraNodeStatus};
use tokio::sync::mpsc::Sender;

use super::desired::HostDesiredState;
use super::events::EventLog;
use super::link_events::WatchedLinks;
use super::metrics::ResultLabel;
use super::problems::{Problem, ProblemLog};
use super::state::{SharedState, State};
use super::status;
use crate::apply::{ConvergeResult, Outcome};
use crate::cluster::{CycleEvent, Store};
use crate::conditions;
use crate::dhcp::AddressConflicts;
use crate::manifest::{Fault, SpecPart};
use crate::report;
use crate::trunk::{TrunkMonitor, TrunkReport};

/// Publishes results, and stores the last conditions and problems for comparison.
#[derive(Debug)]
pub(super) struct Publisher {
    state: Arc<State>,
    /// Links whose events start a cycle.
    watched_links: Arc<Mutex<WatchedLinks>>,
    conditions: conditions::ConditionHistory,
    problems: ProblemLog,
    cluster: Option<ClusterPublisher>,
    /// Tasks that probe trunks; `None` for a captured tree.
    trunk_monitor: Option<TrunkMonitor>,
    /// The trunk report that was published last.
    trunks: Option<TrunkReport>,
    address_conflicts: AddressConflicts,
}

#[derive(Debug)]
struct ClusterPublisher {
    store: Arc<Store>,
    event_sender: Sender<CycleEvent>,
    events: EventLog,
}

#[derive(Debug)]
pub(super) struct CycleResults<'a> {
    pub(super) begin: Instant,
    /// Name of the Node; empty if it is unknown.
    pub(super) node: String,
    pub(super) desired: &'a HostDesiredState,
    pub(super) converged: &'a ConvergeResult,
    /// CPU time in seconds and resident memory in bytes of the agent; `None` if they cannot be read.
    pub(super) usage: Option<(f64, f64)>,
}

impl Publisher {
    pub(super) fn new(
        state: Arc<State>,
        watched_links: Arc<Mutex<WatchedLinks>>,
        address_conflicts: AddressConflicts,
    ) -> Self {
        Self {
            state,
            watched_links,
            conditions: conditions::ConditionHistory::default(),
            problems: ProblemLog::default(),
            cluster: None,
            trunk_monitor: None,
            trunks: None,
            address_conflicts,
        }
    }

    pub(super) fn connect_to_cluster(&mut self, store: Arc<Store>, sender: Sender<CycleEvent>) {
        self.cluster =
            Some(ClusterPublisher { store, event_sender: sender, events: EventLog::default() });
    }

    /// Sets the tasks that probe trunks; their results are then published.
    pub(super) fn set_trunk_monitor(&mut self, monitor: TrunkMonitor) {
        self.trunk_monitor = Some(monitor);
    }

    /// Returns the results of the verification of trunks that were published last, by host network.
    pub(super) fn trunks(&self) -> Option<&BTreeMap<String, TrunkStatus>> {
        self.trunks.as_ref().map(|trunks| &trunks.networks)
    }

    /// Updates the networks to probe, and returns the trunk report to publish.
    fn update_trunks(&mut self, cycle: &CycleResults) -> TrunkReport {
        let ConvergeResult { plan, facts, .. } = cycle.converged;
        let previous = self.trunks.take().or_else(|| {
            // The status that an earlier process wrote to the API server.
            let status = self.cluster.as_ref()?.store.status()?;
            Some(TrunkReport::from_status(&status))
        });
        let previous = previous.unwrap_or_default();
        let report = match &mut self.trunk_monitor {
            None => TrunkReport::default(),
            Some(monitor) => {
                let unparsed = cycle.desired.unparsed.parts.contains(&SpecPart::Networks);
                // If the networks are unknown, the tasks continue with their previous targets.
                if !facts.links.is_incomplete && !unparsed {
                    monitor.update(&cycle.node, &plan.networks, &facts.links);
                }
                monitor.report(&previous)
            }
        };
        self.trunks = Some(report.clone());
        report
    }

    pub(super) fn publish(&mut self, cycle: &CycleResults) {
        let CycleResults {
            desired,
            converged: ConvergeResult { outcomes, plan, facts, blocked_reason, .. },
            ..
        } = *cycle;
        if let Ok(mut watched_links) = self.watched_links.lock() {
            watched_links.update(&facts.links, &desired.spec);
        }
        let blocked_reason = blocked_reason.as_ref().map(ToString::to_string);
        let faults: Vec<Fault> = desired.faults.iter().chain(&plan.faults).cloned().collect();
        let mut report = report::status_with_reserved_cpus(facts, plan.reserved_cpus.as_ref());
        if let Some(cluster) = &mut self.cluster {
            cluster.store.add_cluster_facts(&mut report);
            for event in cluster.events.new_events(outcomes, &faults, &plan.changes) {
                // While the API server is unreachable for a long time, some events are lost; the status has
                // the current state.
                cluster.event_sender.try_send(event).unwrap_or_default();
            }
        }
        let trunks = self.update_trunks(cycle);
        let address_conflicts = self.address_conflicts.all();
        let certificate = self.cluster.as_ref().and_then(|cluster| cluster.store.certificate());
        let conditions = self.conditions.evaluate(&conditions::Input {
            facts,
            plan,
            faults: &faults,
            not_applied_reason: desired.not_applied_reason.as_deref(),
            blocked_reason: blocked_reason.as_deref(),
            spec: &desired.spec,
            kvm: &report.capabilities.kvm,
            certificate,
            trunks: &trunks.networks,
            address_conflicts: &address_conflicts,
        });
        self.problems.update(collect_problems(
            cycle,
            &faults,
            blocked_reason.as_deref(),
            &conditions,
        ));

        let mut inner = self.state.lock();
        inner.count_outcomes(outcomes);
        // This is the last status of this process or, in its first cycle, the status that an earlier process wrote to
        // the API server.
        let last_status = inner.node.take().and_then(|node| node.status);
        let last_status = last_status.or_else(|| self.cluster.as_ref()?.store.status());
        let input = status::Input {
            facts,
            desired,
            networks: &plan.networks,
            conditions,
            changes: inner.changes.iter().map(|(_, change)| change.clone()).collect(),
            previous_status: last_status.as_ref(),
            trunks: &trunks,
            address_conflicts: &address_conflicts,
        };
        inner.store_results(cycle, status::build_status(report, input), faults, blocked_reason);
        inner.metrics.update_certificate(certificate);
        inner.metrics.update_trunks(&trunks);
        inner.metrics.dhcp.update_conflicts(address_conflicts.len());
        drop(inner);
        if let Some(cluster) = &self.cluster {
            cluster.store.wake();
        }
    }
}

impl SharedState {
    /// Counts outcomes in the metrics, and adds them to the changes of the status.
    fn count_outcomes(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes.iter().filter(|o| o.result != ChangeResult::Blocked) {
            let result = result_label(outcome.result);
            self.metrics.changes.get_or_create(&ResultLabel { result }).inc();
        }
        let corrected = outcomes.iter().filter(|o| o.drift && o.result == ChangeResult::Done);
        self.metrics.drift_corrections.inc_by(corrected.count() as u64);
        // Changes that are still blocked are among the new outcomes.
        self.changes.retain(|(_, change)| change.result != ChangeResult::Blocked);
        self.add_changes(outcomes);
    }

    /// Stores the status and the metrics of a cycle.
    fn store_results(
        &mut self,
        cycle: &CycleResults,
        status: InfraNodeStatus,
        faults: Vec<Fault>,
        blocked_reason: Option<String>,
    ) {
        let CycleResults {
            desired, converged: ConvergeResult { plan, facts, settings, .. }, ..
        } = *cycle;
        self.metrics.update_networks(&status.networks);
        let mut node = InfraNode::new(&cycle.node, desired.spec.clone());
        node.status = Some(status);
        self.node = Some(node);
        self.applied_generation.clone_from(&desired.generation);
        // While the desired state is unknown, a bridge that does not exist may be desired.
        let networks_unknown = desired.not_applied_reason.is_some()
            || faults.iter().any(|fault| fault.is_about_part(SpecPart::Networks));
        self.bridges =
            if networks_unknown { None } else { status::bridges_by_network(&facts.links) };
        self.labels_in_use = settings.pods.not_drained_reason().is_some();
        self.memory_state.clone_from(&facts.kubelet.memory_state);
        self.not_applied_reason = desired.not_applied_reason.clone().or(blocked_reason);
        self.metrics.update_host(facts, settings, plan, faults.len());
        self.faults = faults;
        self.is_ready = true;
        self.metrics.cycles.inc();
        self.metrics.cycle_seconds.set(cycle.begin.elapsed().as_secs_f64());
        if let Some((cpu_seconds, resident_bytes)) = cycle.usage {
            self.metrics.update_process(cpu_seconds, resident_bytes);
        }
    }
}

/// Returns all problems that this cycle found.
fn collect_problems(
    cycle: &CycleResults,
    faults: &[Fault],
    blocked_reason: Option<&str>,
    conditions: &[Condition],
) -> BTreeSet<Problem> {
    let ConvergeResult { outcomes, facts, .. } = cycle.converged;
    let blocked = outcomes.iter().filter(|outcome| outcome.result == ChangeResult::Blocked);
    // While the API server rejects the credential, the condition can only be read in the log.
    let credential = conditions.iter().find(|one| one.type_ == CREDENTIAL_VALID);
    let expiring = credential.filter(|condition| condition.status == "False");
    let mut problems: BTreeSet<Problem> = faults.iter().cloned().map(Problem::Fault).collect();
    problems.extend(cycle.desired.not_applied_reason.clone().map(Problem::NotApplied));
    problems.extend(blocked_reason.map(|reason| Problem::ChangesBlocked(reason.to_owned())));
    let warnings = facts.notes.warnings.iter();
    problems.extend(warnings.map(|warning| Problem::Warning(warning.to_string())));
    problems.extend(blocked.map(|outcome| Problem::Blocked {
        change: outcome.what.clone(),
        reason: outcome.message.clone().unwrap_or_default(),
    }));
    problems.extend(expiring.map(|condition| Problem::Certificate(condition.message.clone())));
    problems
}

const fn result_label(result: ChangeResult) -> &'static str {
    match result {
        ChangeResult::Done => "Done",
        ChangeResult::Partial => "Partial",
        ChangeResult::Blocked => "Blocked",
        ChangeResult::Failed => "Failed",
    }
}
