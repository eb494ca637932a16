//! Reports of all removals, from which the conditions of MachineDeployments and of hosts, and the metrics are computed.
//! After a restart of the controller, the reports are computed again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use berth_api::ConditionReason;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::removal::grace_periods::GracePeriodTable;
use crate::removal::pod::DrainPod;
use crate::removal::report::RemovalReport;
use crate::run::metrics::Metrics;

/// Minimum interval between updates of a report if only its message changes. Without this limit, a tenant could cause
/// any number of updates, because the message depends on the tenant's pods.
const MIN_MESSAGE_INTERVAL: Duration = Duration::from_secs(30);
/// Time after the deadline after which a machine that still exists is overdue.
const OVERDUE_TIME: SignedDuration = SignedDuration::from_mins(10);

/// Function that is called with the namespace and the name of each machine whose report has changed.
type Handler = Box<dyn Fn(&str, &str) + Send + Sync>;
type Key = (String, String);

struct Entry {
    report: RemovalReport,
    changed_at: Instant,
}

/// Reports of all removals, by namespace and name of the machine.
pub struct RemovalTable {
    entries: Mutex<BTreeMap<Key, Entry>>,
    /// Time until which each machine's removal waits.
    waits: Mutex<BTreeMap<Key, Instant>>,
    /// Ends of the grace periods of the machines' pods.
    grace_periods: Mutex<GracePeriodTable>,
    handlers: RwLock<Vec<Handler>>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for RemovalTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemovalTable").finish_non_exhaustive()
    }
}

impl RemovalTable {
    /// Returns a table without reports.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            entries: Mutex::default(),
            waits: Mutex::default(),
            grace_periods: Mutex::default(),
            handlers: RwLock::default(),
            metrics,
        }
    }

    /// Calls `handle` with each machine whose report changes from now on.
    pub(in crate::run) fn subscribe(&self, handle: impl Fn(&str, &str) + Send + Sync + 'static) {
        self.handlers.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(handle));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the report of a machine. Returns true if its reason has changed.
    pub(super) fn set(&self, namespace: &str, name: &str, report: RemovalReport) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let (is_changed, is_new_reason) = {
            let mut entries = self.lock();
            let known = entries.get(&key);
            let is_new_reason = known.is_none_or(|known| known.report.reason != report.reason);
            let is_changed = known.is_none_or(|known| {
                known.report != report
                    && (is_new_reason || known.changed_at.elapsed() >= MIN_MESSAGE_INTERVAL)
            });
            if is_changed {
                entries.insert(key, Entry { report, changed_at: Instant::now() });
            }
            self.update_metrics(&entries);
            (is_changed, is_new_reason)
        };
        if is_changed {
            self.notify(namespace, name);
        }
        is_new_reason
    }

    fn waits(&self) -> MutexGuard<'_, BTreeMap<Key, Instant>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a delay of a machine's removal. Changes that trigger a reconcile of the machine do not shorten this
    /// delay.
    pub(super) fn begin_wait(&self, namespace: &str, name: &str, delay: Duration) {
        let now = Instant::now();
        let mut waits = self.waits();
        waits.retain(|_, end| *end > now);
        if let Some(end) = now.checked_add(delay) {
            waits.insert((namespace.to_owned(), name.to_owned()), end);
        }
    }

    /// Returns the remaining delay of a machine's removal; `None` if the delay has ended.
    pub(super) fn remaining_wait(&self, namespace: &str, name: &str) -> Option<Duration> {
        let end = self.waits().get(&(namespace.to_owned(), name.to_owned())).copied()?;
        Some(end.saturating_duration_since(Instant::now())).filter(|rest| !rest.is_zero())
    }

    fn grace_periods(&self) -> MutexGuard<'_, GracePeriodTable> {
        self.grace_periods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the end of each listed pod's grace period to the earliest end that has been observed for this pod.
    pub(super) fn update_grace_periods(&self, namespace: &str, name: &str, pods: &mut [DrainPod]) {
        self.grace_periods().update(namespace, name, pods);
    }

    /// Removes the report of a machine that was deleted, or whose removal was cancelled.
    pub(in crate::run) fn remove(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.waits().remove(&key);
        self.grace_periods().remove(namespace, name);
        let is_removed = {
            let mut entries = self.lock();
            let removed = entries.remove(&key);
            self.update_metrics(&entries);
            removed.is_some()
        };
        if is_removed {
            self.notify(namespace, name);
        }
    }

    /// Updates the metrics, which also change with time. Returns true if the machine has a report.
    pub(super) fn refresh_metrics(&self, namespace: &str, name: &str) -> bool {
        let entries = self.lock();
        self.update_metrics(&entries);
        entries.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns the report of a machine.
    pub(in crate::run) fn get(&self, namespace: &str, name: &str) -> Option<RemovalReport> {
        let key = (namespace.to_owned(), name.to_owned());
        self.lock().get(&key).map(|entry| entry.report.clone())
    }

    fn notify(&self, namespace: &str, name: &str) {
        let handlers = self.handlers.read().unwrap_or_else(PoisonError::into_inner);
        handlers.iter().for_each(|handle| handle(namespace, name));
    }

    fn update_metrics(&self, entries: &BTreeMap<Key, Entry>) {
        let reports = entries.values().map(|entry| &entry.report);
        self.metrics.set_machines_in_removal(count_states(reports, Timestamp::now()));
    }
}

/// Counts the machines by the values of the label `state` of the metric.
fn count_states<'r>(
    reports: impl Iterator<Item = &'r RemovalReport>,
    now: Timestamp,
) -> [(&'static str, usize); 4] {
    let (mut draining, mut blocked, mut exceeded, mut overdue) =
        (0_usize, 0_usize, 0_usize, 0_usize);
    for report in reports {
        let limit = report.deadline.checked_add(OVERDUE_TIME);
        let count = match report.reason {
            // The time limit of the drain begins only when the host is back.
            ConditionReason::WaitingForHost => &mut draining,
            _ if limit.is_ok_and(|limit| now > limit) => &mut overdue,
            ConditionReason::DrainBlocked => &mut blocked,
            ConditionReason::DrainDeadlineExceeded => &mut exceeded,
            _ => &mut draining,
        };
        *count = count.saturating_add(1);
    }
    [
        ("draining", draining),
        ("blocked", blocked),
        ("deadline_exceeded", exceeded),
        ("overdue", overdue),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::removal::mark::{RemovalMark, RemovalReason};

    #[test]
    fn a_wait_ends() {
        let table = RemovalTable::new(Arc::default());
        assert_eq!(table.remaining_wait("ns", "a"), None);
        table.begin_wait("ns", "a", Duration::from_secs(60));
        assert!(table.remaining_wait("ns", "a").unwrap() > Duration::from_secs(30));
        assert_eq!(table.remaining_wait("ns", "b"), None);
        table.begin_wait("ns", "a", Duration::ZERO);
        assert_eq!(table.remaining_wait("ns", "a"), None);
        table.begin_wait("ns", "a", Duration::from_secs(60));
        table.remove("ns", "a");
        assert_eq!(table.remaining_wait("ns", "a"), None);
    }

    #[test]
    fn a_machine_that_waits_for_its_host_is_not_overdue() {
        let deadline: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let report = |reason| RemovalReport {
            reason,
            removal: RemovalMark::new(RemovalReason::HostLost, deadline),
            deadline,
            message: String::new(),
        };
        let reports = [
            report(ConditionReason::WaitingForHost),
            report(ConditionReason::DrainBlocked),
            report(ConditionReason::DrainingMachines),
            report(ConditionReason::DrainDeadlineExceeded),
        ];
        let count = |now: &str| count_states(reports.iter(), now.parse().unwrap());
        let states = ["draining", "blocked", "deadline_exceeded", "overdue"];
        let with_states = |counts: [usize; 4]| -> [(&'static str, usize); 4] {
            std::array::from_fn(|at| (states[at], counts[at]))
        };
        assert_eq!(count("2026-05-01T12:09:00Z"), with_states([2, 1, 1, 0]));
        assert_eq!(count("2026-05-01T12:11:00Z"), with_states([1, 0, 0, 3]));
    }

    #[test]
    fn a_new_reason_is_reported_at_once() {
        let table = RemovalTable::new(Arc::default());
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        table.subscribe(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let now = Timestamp::now();
        let report = |reason, message: &str| RemovalReport {
            reason,
            removal: RemovalMark::new(RemovalReason::Rollout, now),
            deadline: now,
            message: message.to_owned(),
        };
        assert!(table.set("ns", "a", report(ConditionReason::DrainingMachines, "1 pod")));
        assert!(!table.set("ns", "a", report(ConditionReason::DrainingMachines, "2 pods")));
        assert_eq!(table.get("ns", "a").unwrap().message, "1 pod");
        assert!(table.set("ns", "a", report(ConditionReason::DrainBlocked, "2 pods")));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        table.remove("ns", "a");
        table.remove("ns", "a");
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        assert!(!table.refresh_metrics("ns", "a"));
    }
}
