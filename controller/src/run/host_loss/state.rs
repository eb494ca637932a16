//! State that the triggers update and the reconciles read: the evidence about all hosts, and the lost hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::host_loss::away_host_limit::AwayHostLimit;
use crate::host_loss::evidence::HostEvidence;
use crate::host_loss::machine_hosts::MachineHosts;
use crate::host_loss::report::LostHost;
use crate::observation::Observation;
use crate::run::clock::ProcessClock;

/// State of all hosts, with its lock.
#[derive(Debug)]
pub(super) struct LossState {
    /// Clock that starts when this process becomes the leader.
    clock: ProcessClock,
    facts: Mutex<LossFacts>,
}

/// State of all hosts.
#[derive(Debug, Default)]
pub(super) struct LossFacts {
    evidence: BTreeMap<String, HostEvidence>,
    away_count: usize,
    /// Observations of the hosts that are down, by host.
    observations: BTreeMap<String, Observation>,
    /// Limit on the number of hosts that are away.
    pub(super) away_host_limit: AwayHostLimit,
    pub(super) machines: MachineHosts,
    /// Hosts that are lost, with the verdicts on their machines.
    pub(super) lost: BTreeMap<String, LostHost>,
}

impl LossState {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { clock: ProcessClock::start(), facts: Mutex::default() })
    }

    /// Returns the time of the monotonic clock.
    pub(super) fn clock(&self) -> Duration {
        self.clock.monotonic()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LossFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LossFacts {
    /// Sets the evidence about a host; `None` if the host does not exist. `observation` returns the new observation if
    /// the host goes down. Returns true if the evidence has changed.
    pub(super) fn set_evidence(
        &mut self,
        host: &str,
        evidence: Option<HostEvidence>,
        observation: impl FnOnce(Timestamp) -> Observation,
    ) -> bool {
        let before = self.evidence.get(host).copied();
        if before == evidence {
            return false;
        }
        let is_away = |evidence: Option<HostEvidence>| {
            usize::from(evidence.is_some_and(|evidence| evidence.is_away()))
        };
        self.away_count =
            self.away_count.saturating_sub(is_away(before)).saturating_add(is_away(evidence));
        if let Some(evidence) = evidence {
            self.evidence.insert(host.to_owned(), evidence);
        } else {
            self.evidence.remove(host);
        }
        if let Some(since) = evidence.and_then(|evidence| evidence.down_since()) {
            let entry = self.observations.entry(host.to_owned());
            entry.or_insert_with(|| observation(since));
        } else {
            self.observations.remove(host);
        }
        true
    }

    /// Compares the number of hosts that are away with the limit. Returns true if the limit has become exceeded, or is
    /// no longer exceeded.
    pub(super) fn update_away_host_limit(&mut self) -> bool {
        let (away_count, all) = self.away_hosts();
        self.away_host_limit.update(away_count, all)
    }

    /// Returns the number of hosts that are away, and of all hosts.
    pub(super) fn away_hosts(&self) -> (usize, usize) {
        (self.away_count, self.evidence.len())
    }

    /// Returns the names of all hosts with evidence.
    pub(super) fn known_hosts(&self) -> Vec<String> {
        self.evidence.keys().cloned().collect()
    }

    /// Returns the observation of a host, and the time since which its objects report that it is down; `None` if it is
    /// not down.
    pub(super) fn down_observation(&self, host: &str) -> Option<(Observation, Timestamp)> {
        let since = self.evidence.get(host)?.down_since()?;
        Some((*self.observations.get(host)?, since))
    }

    pub(super) fn down_hosts(&self) -> Vec<String> {
        self.observations.keys().cloned().collect()
    }

    /// Returns true if all hosts that are down are lost, so that `lost` is complete.
    pub(super) fn are_down_hosts_decided(&self) -> bool {
        self.observations.keys().all(|host| self.lost.contains_key(host))
    }

    /// Sets the verdicts on a lost host; `None` if it is not lost. Returns the namespaces of all machines with a
    /// verdict before or after the change, or `None` if nothing has changed.
    pub(super) fn set_lost(
        &mut self,
        host: &str,
        lost: Option<LostHost>,
    ) -> Option<BTreeSet<String>> {
        if self.lost.get(host) == lost.as_ref() {
            return None;
        }
        let before = self.lost.remove(host);
        let both = before.iter().chain(&lost);
        let namespaces = both.flat_map(|lost| lost.machines.keys().map(|(of, _)| of.clone()));
        let namespaces = namespaces.collect();
        if let Some(lost) = lost {
            self.lost.insert(host.to_owned(), lost);
        }
        Some(namespaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_start_once_and_end() {
        let mut facts = LossFacts::default();
        let time = |second| Some(Timestamp::from_second(second).unwrap());
        let evidence = |not_ready_since, unresponsive_since| {
            Some(HostEvidence { not_ready_since, unresponsive_since })
        };
        let at = |seconds| move |_: Timestamp| Observation::new(Duration::from_secs(seconds));
        assert!(facts.set_evidence("a", evidence(None, None), at(0)));
        assert!(facts.set_evidence("b", evidence(time(1), None), at(0)));
        assert_eq!((facts.away_hosts(), facts.down_observation("b")), ((1, 2), None));
        assert!(facts.set_evidence("b", evidence(time(1), time(2)), at(3)));
        assert!(!facts.set_evidence("b", evidence(time(1), time(2)), at(4)));
        assert!(facts.set_evidence("b", evidence(time(1), time(5)), at(5)));
        let expected = Some((Observation::new(Duration::from_secs(3)), time(5).unwrap()));
        assert_eq!(facts.down_observation("b"), expected, "the observation continues");
        assert!(!facts.are_down_hosts_decided());
        assert!(facts.update_away_host_limit(), "one of two");
        assert!(facts.set_evidence("b", None, at(6)));
        assert_eq!((facts.away_hosts(), facts.down_observation("b")), ((0, 1), None));
        assert!(facts.update_away_host_limit() && facts.are_down_hosts_decided());
    }
}
