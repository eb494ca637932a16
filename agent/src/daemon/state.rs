//! State that the cycle writes and that HTTP, the publishers and systemd read.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_api::infra_node::{ChangeResult, ChangeStatus};
use berth_api::{InfraNode, LinkName};

use super::metrics::Metrics;
use crate::apply::Outcome;
use crate::cluster::{Generation, Report};
use crate::manifest::Fault;
use crate::plan::ChangeId;
use berth_host_facts::kubelet::MemoryManagerState;

/// State shared between the cycle and its readers.
#[derive(Debug)]
pub(super) struct State {
    interval: Duration,
    inner: Mutex<SharedState>,
}

/// Mutable part of the state.
#[derive(Debug)]
pub(super) struct SharedState {
    /// Time of the last progress: a cycle, or a step of a long change.
    last_progress: Instant,
    /// True while a cycle runs.
    is_cycle_running: bool,
    /// True after the first cycle.
    pub(super) is_ready: bool,
    /// Reason why the desired state is not applied; `None` if it is applied.
    pub(super) not_applied_reason: Option<String>,
    /// Faults of the manifest.
    pub(super) faults: Vec<Fault>,
    /// The host as an InfraNode with its status; `None` before the end of the first cycle.
    pub(super) node: Option<InfraNode>,
    /// Generation of the InfraNode that the last cycle applied.
    pub(super) applied_generation: Option<Generation>,
    /// Existing bridges by network; `None` if the links are unknown.
    pub(super) bridges: Option<BTreeMap<String, Vec<LinkName>>>,
    /// True if pods run that a scheduler may have placed because of a label of the Node.
    pub(super) labels_in_use: bool,
    /// Checkpoint of the kubelet's Memory Manager.
    pub(super) memory_state: Option<MemoryManagerState>,
    /// Last changes, newest first.
    pub(super) changes: Vec<(ChangeId, ChangeStatus)>,
    /// Metrics for Prometheus.
    pub(super) metrics: Metrics,
}

/// Limit of changes in the status: `maxItems` of `status.changes` in the CRD.
const MAX_CHANGES: usize = 64;
/// Time without progress after which a cycle counts as hung. The longest single system call writes a large pool
/// of huge pages.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(180);

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        let inner = SharedState {
            last_progress: Instant::now(),
            is_cycle_running: false,
            is_ready: false,
            not_applied_reason: None,
            faults: Vec::new(),
            node: None,
            applied_generation: None,
            bridges: None,
            labels_in_use: true,
            memory_state: None,
            changes: Vec::new(),
            metrics: Metrics::default(),
        };
        Self { interval, inner: Mutex::new(inner) }
    }

    /// Locks the state, which stays readable after a panic of another thread.
    pub(super) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mark_cycle_started(&self) {
        self.lock().is_cycle_running = true;
        self.record_progress();
    }

    pub(super) fn mark_cycle_ended(&self) {
        self.lock().is_cycle_running = false;
        self.record_progress();
    }

    /// Records that the cycle made progress.
    pub(super) fn record_progress(&self) {
        self.lock().last_progress = Instant::now();
    }

    /// Returns the report to publish; `None` before the end of the first cycle.
    pub(super) fn report(&self) -> Option<Report> {
        let inner = self.lock();
        let node = inner.node.clone()?;
        Some(Report {
            node,
            applied_generation: inner.applied_generation.clone(),
            bridges: inner.bridges.clone(),
            labels_in_use: inner.labels_in_use,
            memory_state: inner.memory_state.clone(),
        })
    }

    /// Returns true if the daemon makes progress.
    pub(super) fn is_alive(&self) -> bool {
        let inner = self.lock();
        let idle = if inner.is_cycle_running { Duration::ZERO } else { self.interval };
        inner.last_progress.elapsed() < idle + PROGRESS_TIMEOUT
    }

    /// Returns the status line for `systemctl status`.
    pub(super) fn summary(&self) -> String {
        let inner = self.lock();
        let count =
            |result| inner.changes.iter().filter(|(_, change)| change.result == result).count();
        if let Some(reason) = &inner.not_applied_reason {
            return reason.clone();
        }
        let (blocked, failed) = (count(ChangeResult::Blocked), count(ChangeResult::Failed));
        match (inner.faults.len(), blocked, failed) {
            (0, 0, 0) => "the host has the desired state".to_owned(),
            (faults, blocked, failed) => {
                format!(
                    "{faults} faults in the manifest, {blocked} changes blocked, {failed} failed"
                )
            }
        }
    }
}

impl SharedState {
    /// Adds outcomes to the list, and replaces earlier outcomes of the same change.
    pub(super) fn add_changes(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            self.changes.retain(|(id, _)| !outcome.id.supersedes(id));
            self.changes.insert(0, (outcome.id.clone(), outcome.status()));
        }
        self.changes.truncate(MAX_CHANGES);
    }
}
