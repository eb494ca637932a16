//! One cycle: read the manifest, converge the host, publish.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::infra_node::{ChangeResult, InfraNodeSpec};
use berth_api::{InfraNode, InfraNodeStatus};

use super::Settings;
use super::metrics::ResultLabel;
use super::state::State;
use super::watch::Event;
use crate::apply::{Converged, Hands, Outcome, converge};
use crate::conditions;
use crate::manifest::{Fault, Manifest, Part};
use crate::observe::{self, HostFacts, Wanted};
use crate::report;
use crate::root::Root;

/// What lives from one cycle to the next.
#[derive(Debug)]
pub(super) struct Worker {
    root: Arc<Root>,
    settings: Settings,
    state: Arc<State>,
    /// The last full look at the host, for what only devices' events change.
    devices: Option<HostFacts>,
    /// Changes that failed or were partial: they are tried again, ever more rarely.
    attempts: BTreeMap<String, Attempt>,
    conditions: conditions::Memory,
    /// What was told last, so that the log has each thing once.
    told: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    next: Instant,
    pause: Duration,
}

/// The first and the longest pause between tries of a change that fails.
const PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

impl Worker {
    pub(super) fn new(root: Arc<Root>, settings: Settings, state: Arc<State>) -> Self {
        Self {
            root,
            settings,
            state,
            devices: None,
            attempts: BTreeMap::new(),
            conditions: conditions::Memory::default(),
            told: BTreeSet::new(),
        }
    }

    /// When the next cycle is due by the timer.
    pub(super) fn next_in(&self, interval: Duration) -> Duration {
        let now = Instant::now();
        // What is due and was not tried (it is blocked by now) waits for the next cycle like all else.
        let due = self.attempts.values().map(|attempt| attempt.next).filter(|next| *next > now);
        let retry = due.map(|next| next.saturating_duration_since(now)).min();
        retry.map_or(interval, |retry| retry.clamp(Duration::from_secs(1), interval))
    }

    /// Runs one cycle.
    pub(super) fn run(&mut self, begun_by: Event) {
        let begin = Instant::now();
        self.state.begin();
        if matches!(begun_by, Event::Shape | Event::Manifest | Event::Start) {
            // What failed may succeed now.
            self.attempts.clear();
        }
        // A burst of events is known by its last word, so a manifest's may hide one of devices.
        if begun_by >= Event::Devices || self.devices.is_none() {
            self.look_at_devices();
        }
        let mut wish = self.wish();
        let root = Arc::clone(&self.root);
        let state = Arc::clone(&self.state);
        let alive = || state.progress();
        let boot_id = root.read("proc/sys/kernel/random/boot_id").unwrap_or_default();
        let hands = Hands::new(&root, &boot_id, &alive);
        let waits: BTreeSet<String> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.next > begin)
            .map(|(key, _)| key.clone())
            .collect();
        let result = converge(&hands, &wish.spec, &wish.unclear, &waits, &mut log);
        match result {
            Ok(converged) => {
                self.remember_attempts(&converged, begin);
                self.publish(&wish, converged, begin);
            }
            Err(error) => {
                wish.waiting = Some(error.to_string());
                self.tell_once(&[error.to_string()]);
                let mut inner = self.state.lock();
                inner.waiting = wish.waiting;
                inner.faults = wish.faults;
            }
        }
        self.state.end();
    }

    fn look_at_devices(&mut self) {
        let first = self.devices.is_none();
        let mut facts = observe::observe(&self.root, &Wanted { kvm: first, ..Wanted::default() });
        if let Some(before) = &self.devices {
            facts.adopt_kvm(before);
        }
        self.devices = Some(facts);
        self.state.progress();
    }

    /// The manifest as it is now. Where it is not there, or not for this node, or not readable, nothing is
    /// changed and nothing put back: the host keeps the last good shape.
    fn wish(&mut self) -> Wish {
        let path = self.settings.manifest.to_string_lossy().into_owned();
        let nothing = |waiting: String, faults: Vec<Fault>| Wish {
            spec: InfraNodeSpec::default(),
            unclear: Part::ALL.into(),
            faults,
            waiting: Some(waiting),
        };
        let text = match self.root.read_large(&path) {
            Ok(text) => text,
            Err(error) => return nothing(format!("{error}: the host stays as it is"), Vec::new()),
        };
        let manifest = match Manifest::parse(&text) {
            Ok(manifest) => manifest,
            Err(fault) => {
                return nothing(format!("{path}: {fault}: the host stays as it is"), vec![fault]);
            }
        };
        if manifest.meant_for_another(self.node_name().as_deref()).is_some() {
            // A kubelet that started after us may have told another name, and the network a late one.
            self.look_at_devices();
        }
        if let Some(fault) = manifest.meant_for_another(self.node_name().as_deref()) {
            return nothing(format!("{path}: {fault}: the host stays as it is"), vec![fault]);
        }
        Wish {
            spec: manifest.spec,
            unclear: manifest.unclear,
            faults: manifest.faults,
            waiting: None,
        }
    }

    fn node_name(&self) -> Option<String> {
        let observed =
            || self.devices.as_ref().and_then(|facts| facts.node_name()).map(str::to_owned);
        self.settings.node_name.clone().or_else(observed)
    }

    fn remember_attempts(&mut self, converged: &Converged, now: Instant) {
        for key in &converged.fell_short {
            let attempt = self
                .attempts
                .entry(key.clone())
                .or_insert(Attempt { next: now, pause: PAUSES.0 / 2 });
            attempt.pause = (attempt.pause * 2).min(PAUSES.1);
            attempt.next = now + attempt.pause;
        }
        // What is no longer to be done needs no patience.
        let possible = converged.plan.changes.iter().filter(|change| change.blocked.is_none());
        let left: BTreeSet<String> = possible.map(crate::apply::key).collect();
        self.attempts.retain(|key, _| left.contains(key));
    }

    fn publish(&mut self, wish: &Wish, converged: Converged, begin: Instant) {
        let Converged { outcomes, plan, mut facts, shape, .. } = converged;
        if let Some(devices) = &self.devices {
            facts.adopt_devices(devices);
        }
        let faults: Vec<Fault> = wish.faults.iter().chain(&plan.faults).cloned().collect();
        let mut lines: Vec<String> =
            faults.iter().map(|fault| format!("manifest: {fault}")).collect();
        lines.extend(wish.waiting.clone());
        lines.extend(facts.notes.warnings.iter().map(ToString::to_string));
        let blocked = outcomes.iter().filter(|outcome| outcome.result == ChangeResult::Blocked);
        lines
            .extend(blocked.map(|o| {
                format!("blocked: {}: {}", o.what, o.message.clone().unwrap_or_default())
            }));
        self.tell_once(&lines);

        let name = self.node_name().unwrap_or_default();
        let conditions = self.conditions.judge(&conditions::Input {
            facts: &facts,
            shape: &shape,
            plan: &plan,
            faults: &faults,
            waiting: wish.waiting.as_deref(),
            kubelet: wish.spec.cpu.as_ref().and_then(|cpu| cpu.kubelet),
        });
        let mut inner = self.state.lock();
        for outcome in &outcomes {
            let result = word(outcome.result);
            if outcome.result != ChangeResult::Blocked {
                inner.metrics.changes.get_or_create(&ResultLabel { result }).inc();
            }
        }
        let repaired = outcomes.iter().filter(|o| o.drift && o.result == ChangeResult::Done);
        inner.metrics.drift.inc_by(repaired.count() as u64);
        // What was blocked and no longer is goes from the list; what still is comes again.
        inner.changes.retain(|change| change.result != ChangeResult::Blocked);
        inner.add_changes(outcomes.iter().map(Outcome::status).collect());
        let changes = inner.changes.clone();
        let mut node = InfraNode::new(&name, wish.spec.clone());
        let reserved = plan.reserved_cpus.as_ref();
        node.status =
            Some(InfraNodeStatus { changes, conditions, ..report::status_with(&facts, reserved) });
        inner.node = Some(node);
        inner.waiting.clone_from(&wish.waiting);
        inner.faults.clone_from(&faults);
        inner.ready = true;
        inner.metrics.see(&facts, &shape, &plan, faults.len());
        inner.metrics.cycles.inc();
        inner.metrics.cycle_seconds.set(begin.elapsed().as_secs_f64());
        if let Some((cpu, resident)) = observe::processes::myself(&self.root) {
            inner.metrics.see_self(cpu, resident);
        }
    }

    /// Warns of what is new, and says what is over.
    fn tell_once(&mut self, lines: &[String]) {
        let now: BTreeSet<String> = lines.iter().cloned().collect();
        for line in now.difference(&self.told) {
            tracing::warn!("{line}");
        }
        for line in self.told.difference(&now) {
            tracing::info!("over: {line}");
        }
        self.told = now;
    }
}

/// What the manifest wants, as far as it is clear.
struct Wish {
    spec: InfraNodeSpec,
    unclear: BTreeSet<Part>,
    faults: Vec<Fault>,
    /// Why nothing of it is carried out.
    waiting: Option<String>,
}

fn log(outcome: &Outcome) {
    let message = outcome.message.as_deref().unwrap_or_default();
    let drift = if outcome.drift { " (drift)" } else { "" };
    match outcome.result {
        ChangeResult::Done => tracing::info!("done{drift}: {} {message}", outcome.what),
        ChangeResult::Partial => tracing::warn!("partial: {} {message}", outcome.what),
        ChangeResult::Failed => tracing::error!("failed: {} {message}", outcome.what),
        // Told once by the cycle.
        ChangeResult::Blocked => {}
    }
}

const fn word(result: ChangeResult) -> &'static str {
    match result {
        ChangeResult::Done => "Done",
        ChangeResult::Partial => "Partial",
        ChangeResult::Blocked => "Blocked",
        ChangeResult::Failed => "Failed",
    }
}
