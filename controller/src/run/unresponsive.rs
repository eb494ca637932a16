//! Detects unresponsive agents: an agent is unresponsive if its Lease has not changed for the Lease's own duration.
//!
//! The time is measured by the clock of this program, because the clocks of hosts may be wrong. If an agent has written
//! a report but has no Lease, the agent stopped before it created the Lease, or the Lease was deleted. Such an agent
//! counts as unresponsive after `MISSING_LEASE_TIMEOUT`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::watch::{Config, Event, continue_after_error, watch_events};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt as _};
use tokio::sync::mpsc::UnboundedSender;

/// Interval between checks for expired Leases.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time after which an agent without a Lease counts as unresponsive. An agent creates its Lease when it starts.
const MISSING_LEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Observed Leases of agents.
#[derive(Debug, Default)]
pub(super) struct AgentLeases {
    renewals: Mutex<BTreeMap<String, Renewal>>,
    missing: Mutex<MissingLeases>,
}

/// Agents without a Lease.
#[derive(Debug, Default)]
struct MissingLeases {
    /// Time at which each agent's Lease was first found to be missing.
    missing_since: BTreeMap<String, Instant>,
    /// Agents without a Lease that have been reported as unresponsive in conditions.
    reported: BTreeSet<String>,
}

/// Reason why an agent is unresponsive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnresponsiveReason {
    /// The Lease has expired. The value is its `renewTime`, as the agent wrote it.
    LeaseExpired(String),
    /// The agent has no Lease.
    NoLease,
}

/// Last renewal of a Lease.
#[derive(Debug, Clone)]
struct Renewal {
    /// `renewTime` of the Lease, as the agent wrote it.
    renew_time: String,
    observed_at: Instant,
    lease_duration: Duration,
    /// True if the expiry of the Lease has been reported in the conditions of the InfraNode.
    is_reported: bool,
}

impl AgentLeases {
    fn lock_renewals(&self) -> MutexGuard<'_, BTreeMap<String, Renewal>> {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_missing_leases(&self) -> MutexGuard<'_, MissingLeases> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why an agent is unresponsive; `None` if the agent is responsive, or was already reported as
    /// unresponsive.
    pub(super) fn unreported_reason(&self, node: &str) -> Option<UnresponsiveReason> {
        if let Some(renewal) = self.lock_renewals().get(node) {
            return (renewal.has_expired() && !renewal.is_reported)
                .then(|| UnresponsiveReason::LeaseExpired(renewal.renew_time.clone()));
        }
        let absent = self.lock_missing_leases();
        let has_expired = absent
            .missing_since
            .get(node)
            .is_some_and(|since| since.elapsed() >= MISSING_LEASE_TIMEOUT);
        (has_expired && !absent.reported.contains(node)).then_some(UnresponsiveReason::NoLease)
    }

    /// Returns true if the agent is unresponsive now, even if this has already been reported.
    pub(super) fn is_unresponsive(&self, node: &str) -> bool {
        if let Some(renewal) = self.lock_renewals().get(node) {
            return renewal.has_expired();
        }
        let missing = self.lock_missing_leases();
        let since = missing.missing_since.get(node);
        since.is_some_and(|since| since.elapsed() >= MISSING_LEASE_TIMEOUT)
    }

    /// Records that an agent has been reported as unresponsive in conditions. It must be reported only once: an agent
    /// that still runs but cannot renew its Lease writes its own conditions again, which must not be overwritten.
    pub(super) fn mark_reported(&self, node: &str) {
        match self.lock_renewals().get_mut(node) {
            Some(renewal) => renewal.is_reported = true,
            None => drop(self.lock_missing_leases().reported.insert(node.to_owned())),
        }
    }

    fn observe(&self, lease: &Lease) {
        let Some(spec) = &lease.spec else { return };
        let renewed = spec.renew_time.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        let seconds =
            u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
        let mut all = self.lock_renewals();
        let known = all.get(&lease.name_any()).filter(|known| known.renew_time == renewed).cloned();
        let new = Renewal {
            renew_time: renewed,
            observed_at: Instant::now(),
            lease_duration: Duration::ZERO,
            is_reported: false,
        };
        let renewal =
            Renewal { lease_duration: Duration::from_secs(seconds), ..known.unwrap_or(new) };
        all.insert(lease.name_any(), renewal);
    }

    /// Returns the Nodes whose agents have become unresponsive since the last call, and updates `known`. A Node whose
    /// agent has neither a Lease nor a report is omitted.
    fn update_unresponsive(
        &self,
        known: &mut BTreeSet<String>,
        reported: Vec<String>,
    ) -> Vec<String> {
        let all = self.lock_renewals();
        let mut unresponsive: BTreeSet<String> = all
            .iter()
            .filter(|(_, renewal)| renewal.has_expired())
            .map(|(name, _)| name.clone())
            .collect();
        let mut absent = self.lock_missing_leases();
        let without_lease: BTreeSet<String> =
            reported.into_iter().filter(|name| !all.contains_key(name)).collect();
        absent.missing_since.retain(|name, _| without_lease.contains(name));
        absent.reported.retain(|name| without_lease.contains(name));
        for name in without_lease {
            let since = *absent.missing_since.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= MISSING_LEASE_TIMEOUT {
                unresponsive.insert(name);
            }
        }
        let new = unresponsive.difference(known).cloned().collect();
        *known = unresponsive;
        new
    }

    /// Watches the Leases of agents until this future is dropped, and sends the Nodes whose agents become unresponsive.
    /// `reported` returns the hosts that have a report of an agent.
    pub(super) async fn watch(
        &self,
        leases: Api<Lease>,
        reported: impl Fn() -> Vec<String>,
        unresponsive: UnboundedSender<String>,
    ) {
        let is_listed = AtomicBool::new(false);
        let mut listed = BTreeSet::new();
        let handle = |event: Event<Lease>| match event {
            Event::Apply(lease) => self.observe(&lease),
            Event::Init => listed.clear(),
            Event::InitApply(lease) => {
                listed.insert(lease.name_any());
                self.observe(&lease);
            }
            Event::InitDone => {
                is_listed.store(true, Ordering::Relaxed);
                self.lock_renewals().retain(|name, _| listed.contains(name));
            }
            Event::Delete(lease) => {
                self.lock_renewals().remove(&lease.name_any());
            }
        };
        tokio::join!(
            watch_events(leases, Config::default(), "leases", handle, continue_after_error),
            self.send_unresponsive(&is_listed, reported, unresponsive),
        );
    }

    /// Sends the Nodes whose agents become unresponsive, until this future is dropped. Before the Leases are listed,
    /// agents without a Lease do not count.
    async fn send_unresponsive(
        &self,
        is_listed: &AtomicBool,
        reported: impl Fn() -> Vec<String>,
        unresponsive: UnboundedSender<String>,
    ) {
        let mut known = BTreeSet::new();
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            ticks.tick().await;
            let is_listed = is_listed.load(Ordering::Relaxed);
            let reported = if is_listed { reported() } else { Vec::new() };
            for node in self.update_unresponsive(&mut known, reported) {
                tracing::info!(%node, "agent is unresponsive");
                unresponsive.send(node).unwrap_or_default();
            }
        }
    }
}

impl Renewal {
    fn has_expired(&self) -> bool {
        !self.lease_duration.is_zero() && self.observed_at.elapsed() >= self.lease_duration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_has_reported_and_has_no_lease_is_unresponsive() {
        let leases = AgentLeases::default();
        let mut known = BTreeSet::new();
        let reported = || vec!["a".to_owned(), "b".to_owned()];
        let lease = serde_json::json!({"metadata": {"name": "b"},
            "spec": {"leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
        leases.observe(&serde_json::from_value(lease).unwrap());
        assert_eq!(
            leases.update_unresponsive(&mut known, reported()),
            [""; 0],
            "the agent may be starting"
        );
        assert_eq!(leases.unreported_reason("a"), None);
        assert!(!leases.is_unresponsive("a"));
        let long_ago = Instant::now().checked_sub(MISSING_LEASE_TIMEOUT).unwrap();
        leases.lock_missing_leases().missing_since.insert("a".to_owned(), long_ago);
        assert_eq!(leases.update_unresponsive(&mut known, reported()), ["a"]);
        assert_eq!(
            (leases.unreported_reason("a"), leases.unreported_reason("b")),
            (Some(UnresponsiveReason::NoLease), None)
        );
        leases.mark_reported("a");
        assert!(leases.is_unresponsive("a") && !leases.is_unresponsive("b"));
        assert_eq!(leases.update_unresponsive(&mut known, reported()), [""; 0], "reported once");
        assert_eq!(leases.unreported_reason("a"), None);
    }
}
