//! Agents that give no sign of life: those whose Lease has not changed here for as long as it says it lasts.
//!
//! Judged by this clock alone, as the hosts' may be wrong. An agent without a Lease, whose report is there all the same,
//! has stopped before it made one, or its Lease was deleted: it counts as unresponsive after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::sync::mpsc::UnboundedSender;

/// Between looks at what has run out.
const LOOK: Duration = Duration::from_secs(5);

/// An agent makes its Lease when it starts; one without a Lease for so long does not run.
const ABSENT: Duration = Duration::from_secs(60);

/// What is known of agents by their Leases.
#[derive(Debug, Default)]
pub(super) struct Silence {
    signs: Mutex<BTreeMap<String, Sign>>,
    absent: Mutex<Absent>,
}

/// Agents without a Lease.
#[derive(Debug, Default)]
struct Absent {
    /// Since when, as far as this program has followed Leases.
    since: BTreeMap<String, Instant>,
    /// Those of whom it was said.
    told: BTreeSet<String>,
}

/// Why an agent counts as unresponsive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silent {
    /// Its Lease was last renewed then, in its own words.
    Since(String),
    /// It has no Lease.
    NoLease,
}

/// The last sign of life.
#[derive(Debug, Clone)]
struct Sign {
    /// As the agent wrote it.
    renewed: String,
    seen: Instant,
    lasts: Duration,
    /// Whether it was said that it had run out.
    told: bool,
}

impl Silence {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Sign>> {
        self.signs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self) -> MutexGuard<'_, Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why an agent is unresponsive, if it is and that was not said yet.
    pub(super) fn untold(&self, node: &str) -> Option<Silent> {
        if let Some(sign) = self.lock().get(node) {
            return (sign.is_out() && !sign.told).then(|| Silent::Since(sign.renewed.clone()));
        }
        let absent = self.absent();
        let is_out = absent.since.get(node).is_some_and(|since| since.elapsed() >= ABSENT);
        (is_out && !absent.told.contains(node)).then_some(Silent::NoLease)
    }

    /// It was said: not again for this silence. An agent that lives but cannot renew its Lease says otherwise, and has
    /// the last word.
    pub(super) fn told(&self, node: &str) {
        match self.lock().get_mut(node) {
            Some(sign) => sign.told = true,
            None => drop(self.absent().told.insert(node.to_owned())),
        }
    }

    fn see(&self, lease: &Lease) {
        let Some(spec) = &lease.spec else { return };
        let renewed = spec.renew_time.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        let seconds =
            u64::try_from(spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
        let mut all = self.lock();
        let known = all.get(&lease.name_any()).filter(|known| known.renewed == renewed).cloned();
        let new = Sign { renewed, seen: Instant::now(), lasts: Duration::ZERO, told: false };
        let sign = Sign { lasts: Duration::from_secs(seconds), ..known.unwrap_or(new) };
        all.insert(lease.name_any(), sign);
    }

    /// Nodes whose agents have fallen silent since the last look, among these that have reported.
    fn fallen(&self, known: &mut BTreeSet<String>, reported: Vec<String>) -> Vec<String> {
        let all = self.lock();
        let mut out: BTreeSet<String> =
            all.iter().filter(|(_, sign)| sign.is_out()).map(|(name, _)| name.clone()).collect();
        let mut absent = self.absent();
        let without: BTreeSet<String> =
            reported.into_iter().filter(|name| !all.contains_key(name)).collect();
        absent.since.retain(|name, _| without.contains(name));
        absent.told.retain(|name| without.contains(name));
        for name in without {
            let since = *absent.since.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= ABSENT {
                out.insert(name);
            }
        }
        let new = out.difference(known).cloned().collect();
        *known = out;
        new
    }

    /// Follows Leases for ever, and tells of agents that fall silent. `reported` names the hosts that agents report of.
    pub(super) async fn follow(
        &self,
        leases: Api<Lease>,
        reported: impl Fn() -> Vec<String>,
        tell: UnboundedSender<String>,
    ) {
        let mut events = watcher(leases, watcher::Config::default()).default_backoff().boxed();
        let (mut known, mut said) = (BTreeSet::new(), String::new());
        let mut ticks = tokio::time::interval(LOOK);
        let mut listed = BTreeSet::new();
        let mut is_listed = false;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(Event::Apply(lease))) => self.see(&lease),
                    Some(Ok(Event::Init)) => listed.clear(),
                    Some(Ok(Event::InitApply(lease))) => {
                        listed.insert(lease.name_any());
                        self.see(&lease);
                    }
                    Some(Ok(Event::InitDone)) => {
                        is_listed = true;
                        self.lock().retain(|name, _| listed.contains(name));
                    }
                    Some(Ok(Event::Delete(lease))) => {
                        self.lock().remove(&lease.name_any());
                    }
                    Some(Err(error)) => {
                        let sentence = berth_runtime::cli::text::chain(&error);
                        if sentence != said {
                            tracing::warn!("agents' Leases cannot be followed: {sentence}; trying again");
                            said = sentence;
                        }
                    }
                    None => return,
                },
                _ = ticks.tick() => {
                    let reported = if is_listed { reported() } else { Vec::new() };
                    for node in self.fallen(&mut known, reported) {
                        tracing::info!("the agent of {node} gives no sign of life");
                        tell.send(node).unwrap_or_default();
                    }
                }
            }
        }
    }
}

impl Sign {
    fn is_out(&self) -> bool {
        !self.lasts.is_zero() && self.seen.elapsed() >= self.lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_has_reported_and_has_no_lease_is_unresponsive() {
        let silence = Silence::default();
        let mut known = BTreeSet::new();
        let reported = || vec!["a".to_owned(), "b".to_owned()];
        let lease = serde_json::json!({"metadata": {"name": "b"},
            "spec": {"leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
        silence.see(&serde_json::from_value(lease).unwrap());
        assert_eq!(silence.fallen(&mut known, reported()), [""; 0], "it may be starting");
        assert_eq!(silence.untold("a"), None);
        let long_ago = Instant::now().checked_sub(ABSENT).unwrap();
        silence.absent().since.insert("a".to_owned(), long_ago);
        assert_eq!(silence.fallen(&mut known, reported()), ["a"]);
        assert_eq!((silence.untold("a"), silence.untold("b")), (Some(Silent::NoLease), None));
        silence.told("a");
        assert_eq!(silence.fallen(&mut known, reported()), [""; 0], "once");
        assert_eq!(silence.untold("a"), None);
    }
}
