//! What the daemon says of itself and of the host: written by the cycle, read by whoever asks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_api::infra_node::{ChangeResult, ChangeStatus};
use berth_api::{InfraNode, LinkName};

use super::metrics::Metrics;
use crate::apply::Outcome;
use crate::cluster::{Generation, Report};
use crate::manifest::Fault;
use crate::observe::kubelet::MemoryManagerState;
use crate::plan::ChangeId;

/// Shared between the loop and its listeners.
#[derive(Debug)]
pub(super) struct State {
    interval: Duration,
    inner: Mutex<Inner>,
}

/// What changes.
#[derive(Debug)]
pub(super) struct Inner {
    /// When something was last done: a cycle, or a step within a long change.
    progress: Instant,
    /// Whether a cycle is under way.
    busy: bool,
    /// Whether a cycle has ended.
    pub(super) ready: bool,
    /// Why the manifest is not carried out, if it is not.
    pub(super) waiting: Option<String>,
    /// What is wrong with the manifest.
    pub(super) faults: Vec<Fault>,
    /// The host as an InfraNode.
    pub(super) node: Option<InfraNode>,
    /// The InfraNode whose spec was acted on.
    pub(super) acted_on: Option<Generation>,
    /// Bridges in place, by network; `None` if links could not be looked at.
    pub(super) bridges: Option<BTreeMap<String, Vec<LinkName>>>,
    /// Whether pods run that may have been placed by a label.
    pub(super) hold: bool,
    /// The checkpoint of the kubelet's Memory Manager.
    pub(super) memory: Option<MemoryManagerState>,
    /// Changes made, newest first, bounded.
    pub(super) changes: Vec<(ChangeId, ChangeStatus)>,
    /// Numbers for Prometheus.
    pub(super) metrics: Metrics,
}

/// Entries of `status.changes`, as its schema has it.
const MOST_CHANGES: usize = 64;
/// A cycle that says nothing for so long is stuck. The longest single call is writing a large pool.
const STUCK: Duration = Duration::from_secs(180);

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        let inner = Inner {
            progress: Instant::now(),
            busy: false,
            ready: false,
            waiting: None,
            faults: Vec::new(),
            node: None,
            acted_on: None,
            bridges: None,
            hold: true,
            memory: None,
            changes: Vec::new(),
            metrics: Metrics::default(),
        };
        Self { interval, inner: Mutex::new(inner) }
    }

    /// What is there; a panic elsewhere leaves it readable.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cycle begins.
    pub(super) fn begin(&self) {
        self.lock().busy = true;
        self.progress();
    }

    /// A cycle has ended.
    pub(super) fn end(&self) {
        self.lock().busy = false;
        self.progress();
    }

    /// Something was done.
    pub(super) fn progress(&self) {
        self.lock().progress = Instant::now();
    }

    /// What there is to say in the cluster, once a cycle has ended.
    pub(super) fn report(&self) -> Option<Report> {
        let inner = self.lock();
        let node = inner.node.clone()?;
        Some(Report {
            node,
            acted_on: inner.acted_on.clone(),
            bridges: inner.bridges.clone(),
            hold: inner.hold,
            memory: inner.memory.clone(),
        })
    }

    /// Whether the loop goes on.
    pub(super) fn is_alive(&self) -> bool {
        let inner = self.lock();
        let rest = if inner.busy { Duration::ZERO } else { self.interval };
        inner.progress.elapsed() < rest + STUCK
    }

    /// For `systemctl status`.
    pub(super) fn sentence(&self) -> String {
        let inner = self.lock();
        let count =
            |result| inner.changes.iter().filter(|(_, change)| change.result == result).count();
        if let Some(waiting) = &inner.waiting {
            return waiting.clone();
        }
        let (blocked, failed) = (count(ChangeResult::Blocked), count(ChangeResult::Failed));
        match (inner.faults.len(), blocked, failed) {
            (0, 0, 0) => "the host is as asked".to_owned(),
            (faults, blocked, failed) => {
                format!(
                    "{faults} faults in the manifest, {blocked} changes blocked, {failed} failed"
                )
            }
        }
    }
}

impl Inner {
    /// Adds what was done to the list, and replaces what stood there of the same change.
    pub(super) fn add_changes(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            self.changes.retain(|(id, _)| !outcome.id.supersedes(id));
            self.changes.insert(0, (outcome.id.clone(), outcome.status()));
        }
        self.changes.truncate(MOST_CHANGES);
    }
}
