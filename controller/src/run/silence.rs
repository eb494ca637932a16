//! Agents that give no sign of life: those whose Lease has not changed here for as long as it says it lasts.
//!
//! Judged by this clock alone, as the hosts' may be wrong. An agent without a Lease is not judged.

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

/// What is known of agents by their Leases.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<BTreeMap<String, Sign>>);

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when an agent is silent, in its own words, if it is and that was not said yet.
    pub(super) fn untold(&self, node: &str) -> Option<String> {
        let all = self.lock();
        let sign = all.get(node).filter(|sign| sign.is_out() && !sign.told)?;
        Some(sign.renewed.clone())
    }

    /// It was said: not again for this silence. An agent that lives but cannot renew its Lease says otherwise, and has
    /// the last word.
    pub(super) fn told(&self, node: &str) {
        if let Some(sign) = self.lock().get_mut(node) {
            sign.told = true;
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

    /// Nodes whose agents have fallen silent since the last look.
    fn fallen(&self, known: &mut BTreeSet<String>) -> Vec<String> {
        let all = self.lock();
        let out: BTreeSet<String> =
            all.iter().filter(|(_, sign)| sign.is_out()).map(|(name, _)| name.clone()).collect();
        let new = out.difference(known).cloned().collect();
        *known = out;
        new
    }

    /// Follows Leases for ever, and tells of agents that fall silent.
    pub(super) async fn follow(&self, leases: Api<Lease>, tell: UnboundedSender<String>) {
        let mut events = watcher(leases, watcher::Config::default()).default_backoff().boxed();
        let (mut known, mut said) = (BTreeSet::new(), String::new());
        let mut ticks = tokio::time::interval(LOOK);
        let mut listed = BTreeSet::new();
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(Event::Apply(lease))) => self.see(&lease),
                    Some(Ok(Event::Init)) => listed.clear(),
                    Some(Ok(Event::InitApply(lease))) => {
                        listed.insert(lease.name_any());
                        self.see(&lease);
                    }
                    Some(Ok(Event::InitDone)) => self.lock().retain(|name, _| listed.contains(name)),
                    Some(Ok(Event::Delete(lease))) => {
                        self.lock().remove(&lease.name_any());
                    }
                    Some(Err(error)) => {
                        let sentence = berth_cli::text::chain(&error);
                        if sentence != said {
                            tracing::warn!("agents' Leases cannot be followed: {sentence}; trying again");
                            said = sentence;
                        }
                    }
                    None => return,
                },
                _ = ticks.tick() => {
                    for node in self.fallen(&mut known) {
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
