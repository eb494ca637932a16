//! One cycle: read the manifest, converge the host, publish.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_api::infra_node::ChangeResult;
use berth_api::names::LINK_ALIAS_PREFIX;
use berth_api::{InfraNode, InfraNodeStatus, LinkName};
use tokio::sync::mpsc::Sender;

use super::desired::{Desired, DesiredReader};
use super::events::EventLog;
use super::link_events::Interest;
use super::metrics::ResultLabel;
use super::state::State;
use super::watch::Event;
use super::{Settings, last_report};
use crate::apply::links::trial;
use crate::apply::{CannotStart, Converged, Hands, Outcome, converge, look};
use crate::cluster::{CycleEvent, Store};
use crate::conditions;
use crate::manifest::{Fault, Part};
use crate::observe::links::{LinkKind, Links};
use crate::observe::shape::Shape;
use crate::observe::{self, HostFacts, Wanted};
use crate::plan::{AttemptId, Change, ChangeId, NetworkState};
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
    attempts: BTreeMap<AttemptId, Attempt>,
    conditions: conditions::Memory,
    /// What was told last, so that the log has each thing once.
    told: BTreeSet<String>,
    /// The last whole look, for what only events of links change.
    last: Option<Converged>,
    /// How long the last look took.
    look_took: Duration,
    /// Whether removals are left that there was no time for.
    unfinished: bool,
    /// Changes of links that failed, and why.
    fell_short: BTreeMap<ChangeId, String>,
    /// Reader of the desired state.
    desired: DesiredReader,
    /// Who is told, where there is a cluster.
    cluster: Option<Cluster>,
    /// Which links' events matter.
    interest: Arc<Mutex<Interest>>,
}

#[derive(Debug)]
struct Cluster {
    store: Arc<Store>,
    sender: Sender<CycleEvent>,
    events: EventLog,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    next: Instant,
    pause: Duration,
}

/// For how long one cycle removes links; what came meanwhile has its turn then. At least as long as the look
/// before it took, as else a slow host with many links would only look.
const REMOVALS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// After an event of links, changes of links that failed are tried again this late.
const SOON: Duration = Duration::from_secs(5);
/// The pause between cycles while there are more of them.
const BREATH: Duration = Duration::from_millis(50);
/// The first and the longest pause between tries of a change that fails.
const PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

impl Worker {
    pub(super) fn new(
        root: Arc<Root>,
        settings: Settings,
        state: Arc<State>,
        interest: Arc<Mutex<Interest>>,
    ) -> Self {
        Self {
            root,
            desired: DesiredReader::new(settings.source.clone(), !settings.observe),
            cluster: None,
            settings,
            state,
            devices: None,
            attempts: BTreeMap::new(),
            conditions: conditions::Memory::default(),
            told: BTreeSet::new(),
            last: None,
            look_took: Duration::ZERO,
            unfinished: false,
            fell_short: BTreeMap::new(),
            interest,
        }
    }

    /// When the next cycle is due by the timer.
    pub(super) fn next_in(&self, interval: Duration, since_whole: Duration) -> Duration {
        if self.unfinished {
            return BREATH;
        }
        let interval = interval.saturating_sub(since_whole).max(BREATH);
        let now = Instant::now();
        // What is due and was not tried (it is blocked by now) waits for the next cycle like all else.
        let due = self.attempts.values().map(|attempt| attempt.next).filter(|next| *next > now);
        let retry = due.map(|next| next.saturating_duration_since(now)).min();
        retry.map_or(interval, |retry| retry.max(Duration::from_secs(1)).min(interval))
    }

    /// Runs one cycle.
    pub(super) fn run(&mut self, begun_by: Event) {
        let begin = Instant::now();
        self.state.begin();
        if matches!(begun_by, Event::Shape | Event::Manifest | Event::Start) {
            // What failed may succeed now.
            self.attempts.clear();
        }
        if begun_by == Event::Links {
            // So may changes of links, but not at once: what failed may be what the event is of.
            let fell_short = &self.fell_short;
            for (_, attempt) in
                self.attempts.iter_mut().filter(|(id, _)| fell_short.contains_key(&id.change))
            {
                attempt.next = attempt.next.min(begin + SOON);
                attempt.pause = PAUSES.0 / 2;
            }
        }
        let only_links = begun_by == Event::Links || (begun_by == Event::Timer && self.unfinished);
        let halted = self.recover();
        // A burst of events is known by its last word, so a manifest's may hide one of devices.
        if begun_by >= Event::Devices || self.devices.is_none() {
            self.look_at_devices();
        }
        let desired = self.read_desired();
        let root = Arc::clone(&self.root);
        let state = Arc::clone(&self.state);
        let alive = || state.progress();
        let boot_id = observe::boot_id(&root).unwrap_or_default();
        let hands = Hands::new(&root, &boot_id, &alive).halted(halted);
        let waits: BTreeSet<AttemptId> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.next > begin)
            .map(|(id, _)| id.clone())
            .collect();
        let servers = || {
            let cluster = self.cluster.as_ref();
            cluster.map(|cluster| cluster.store.server_addresses()).unwrap_or_default()
        };
        let hands = hands.in_cluster(&servers).within(self.look_took.clamp(REMOVALS.0, REMOVALS.1));
        let hands = if self.settings.observe { hands.tied() } else { hands };
        let look_took = Cell::new(Duration::ZERO);
        let timed = |look: &dyn Fn() -> (HostFacts, Shape)| {
            let begin = Instant::now();
            let seen = look();
            look_took.set(begin.elapsed());
            seen
        };
        let pci = self.devices.as_ref().map(|devices| devices.pci.clone()).unwrap_or_default();
        let mut converged = if only_links && self.last.is_some() {
            let look = || timed(&|| (observe::observe_links(&root, &pci), Shape::default()));
            let (spec, unclear) = desired.networks_only();
            converge(&hands, &spec, &unclear, &waits, &look, &mut log)
        } else {
            let wanted = Wanted { pci: Some(pci), ..Wanted::to_plan() };
            let look = || timed(&|| look(&root, &wanted));
            converge(&hands, &desired.spec, &desired.unclear, &waits, &look, &mut log)
        };
        self.look_took = look_took.get();
        self.unfinished = converged.unfinished;
        if only_links && let Some(last) = self.last.take() {
            converged = only_links_of(last, converged);
        }
        self.remember_attempts(&converged, begin);
        self.publish(&desired, converged, begin);
        self.state.end();
    }

    /// Undoes what an earlier process left on trial. Says why nothing else may be changed, if it cannot.
    fn recover(&self) -> Option<CannotStart> {
        let boot_id = observe::boot_id(&self.root).unwrap_or_default();
        match trial::recover(&self.root, &boot_id) {
            Ok(None) => None,
            Ok(Some(said)) => {
                tracing::warn!("{said}");
                None
            }
            // The log has it once, with all that stops the cycle.
            Err(error) => Some(CannotStart::Trial(error)),
        }
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

    /// From now on the cluster says what is asked for, and hears what is done.
    pub(super) fn join(&mut self, store: Arc<Store>, sender: Sender<CycleEvent>) {
        self.desired.join(&self.root, Arc::clone(&store));
        self.cluster = Some(Cluster { store, sender, events: EventLog::default() });
    }

    fn read_desired(&mut self) -> Desired {
        let candidate = match self.desired.read(&self.root) {
            Ok(candidate) => candidate,
            Err(desired) => return *desired,
        };
        let mut another = candidate.meant_for_another(self.node_name().as_deref());
        if another.is_some() {
            // A kubelet that started after us may have told another name.
            self.look_at_devices();
            another = candidate.meant_for_another(self.node_name().as_deref());
        }
        candidate.accept(another)
    }

    fn node_name(&self) -> Option<String> {
        let observed =
            || self.devices.as_ref().and_then(|facts| facts.node_name()).map(str::to_owned);
        self.settings.node_name.clone().or_else(observed)
    }

    fn remember_attempts(&mut self, converged: &Converged, now: Instant) {
        for id in &converged.fell_short {
            let attempt = self
                .attempts
                .entry(id.clone())
                .or_insert(Attempt { next: now, pause: PAUSES.0 / 2 });
            attempt.pause = (attempt.pause * 2).min(PAUSES.1);
            attempt.next = now + attempt.pause;
        }
        let of_links = converged.plan.changes.iter().filter(|change| change.links().is_some());
        let left_of_links: BTreeSet<&ChangeId> = of_links.map(|change| &change.id).collect();
        for outcome in converged.outcomes.iter().filter(|o| o.result != ChangeResult::Blocked) {
            self.fell_short.insert(outcome.id.clone(), outcome.message.clone().unwrap_or_default());
        }
        self.fell_short.retain(|id, _| left_of_links.contains(id));
        // What is no longer to be done needs no patience.
        let possible = converged.plan.changes.iter().filter(|change| change.blocked.is_none());
        let left: BTreeSet<AttemptId> = possible.map(Change::desired).collect();
        self.attempts.retain(|id, _| left.contains(id));
    }

    fn publish(&mut self, desired: &Desired, converged: Converged, begin: Instant) {
        let Converged { outcomes, mut plan, mut facts, shape, fell_short, unfinished, stopped } =
            converged;
        let stopped_why = stopped.as_ref().map(ToString::to_string);
        if let Some(devices) = &self.devices {
            facts.adopt_devices(devices);
        }
        plan.fail(&self.fell_short);
        if let Ok(mut interest) = self.interest.lock() {
            interest.update(&facts.links, &desired.spec);
        }
        let faults: Vec<Fault> = desired.faults.iter().chain(&plan.faults).cloned().collect();
        let mut lines: Vec<String> =
            faults.iter().map(|fault| format!("manifest: {fault}")).collect();
        lines.extend(desired.waiting.clone());
        lines.extend(stopped_why.clone());
        lines.extend(facts.notes.warnings.iter().map(ToString::to_string));
        let blocked = outcomes.iter().filter(|outcome| outcome.result == ChangeResult::Blocked);
        lines
            .extend(blocked.map(|o| {
                format!("blocked: {}: {}", o.what, o.message.clone().unwrap_or_default())
            }));

        let certificate = self.cluster.as_ref().and_then(|cluster| cluster.store.certificate());
        let name = self.node_name().unwrap_or_default();
        let reserved = plan.reserved_cpus.as_ref();
        let mut status = report::status_with(&facts, reserved);
        if let Some(cluster) = &mut self.cluster {
            cluster.store.complete(&mut status);
            for event in cluster.events.new_events(&outcomes, &faults, &plan.changes) {
                // While the server is unreachable for long some are lost; the status has the current state.
                cluster.sender.try_send(event).unwrap_or_default();
            }
        }
        let mut conditions = self.conditions.judge(&conditions::Input {
            facts: &facts,
            plan: &plan,
            faults: &faults,
            waiting: desired.waiting.as_deref(),
            stopped: stopped_why.as_deref(),
            spec: &desired.spec,
            kvm: &status.capabilities.kvm,
            certificate,
        });
        // While the API server takes no request of ours, the log has it.
        let credential = conditions.iter().find(|one| one.type_ == "CredentialValid");
        lines.extend(credential.filter(|one| one.status == "False").map(|one| one.message.clone()));
        self.tell_once(&lines);

        let observed_generation = desired.generation.as_ref().map(|of| of.number);
        for condition in &mut conditions {
            condition.observed_generation = observed_generation;
        }
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
        inner.changes.retain(|(_, change)| change.result != ChangeResult::Blocked);
        inner.add_changes(&outcomes);
        let changes = inner.changes.iter().map(|(_, change)| change.clone()).collect();
        let mut node = InfraNode::new(&name, desired.spec.clone());
        let mut status = InfraNodeStatus {
            observed_generation,
            changes,
            conditions,
            networks: plan.networks.iter().map(NetworkState::status).collect(),
            ..status
        };
        let before = inner.node.take().and_then(|node| node.status);
        let before = before.or_else(|| self.cluster.as_ref()?.store.status());
        if let Some(before) = before {
            let unclear = desired.unclear.parts.contains(&Part::Networks);
            last_report::carry_over(&mut status, &before, &facts, unclear);
        }
        status.fit();
        inner.metrics.see_networks(&status.networks);
        node.status = Some(status);
        inner.node = Some(node);
        inner.acted_on.clone_from(&desired.generation);
        // What is asked is not known, so what is missing may be meant to be there.
        let unclear =
            desired.waiting.is_some() || faults.iter().any(|fault| fault.is_of(Part::Networks));
        inner.bridges = if unclear { None } else { bridges(&facts.links) };
        inner.labels_in_use = shape.pods.not_drained().is_some();
        inner.memory.clone_from(&facts.kubelet.memory_state);
        inner.waiting = desired.waiting.clone().or(stopped_why);
        inner.faults.clone_from(&faults);
        inner.ready = true;
        inner.metrics.see(&facts, &shape, &plan, faults.len());
        inner.metrics.see_certificate(certificate);
        inner.metrics.cycles.inc();
        inner.metrics.cycle_seconds.set(begin.elapsed().as_secs_f64());
        if let Some((cpu, resident)) = observe::processes::myself(&self.root) {
            inner.metrics.see_self(cpu, resident);
        }
        drop(inner);
        if let Some(cluster) = &self.cluster {
            cluster.store.wake();
        }
        self.last = Some(Converged {
            outcomes: Vec::new(),
            plan,
            facts,
            shape,
            fell_short,
            unfinished,
            stopped,
        });
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

/// The last whole look with what a look at links alone found since.
fn only_links_of(mut last: Converged, now: Converged) -> Converged {
    last.facts.links = now.facts.links;
    last.facts.ledger = now.facts.ledger;
    last.plan.changes.retain(|change| change.links().is_none());
    last.plan.changes.extend(now.plan.changes);
    last.plan.networks = now.plan.networks;
    last.plan.faults.retain(|fault| !fault.is_of(Part::Networks));
    last.plan.faults.extend(now.plan.faults);
    let Converged { outcomes, fell_short, unfinished, stopped, .. } = now;
    Converged { outcomes, fell_short, unfinished, stopped, ..last }
}

/// Bridges that Berth made and that are up, by network; `None` where the kernel could not be asked.
fn bridges(links: &Links) -> Option<BTreeMap<String, Vec<LinkName>>> {
    if links.incomplete {
        return None;
    }
    let mut bridges: BTreeMap<String, Vec<LinkName>> = BTreeMap::new();
    for link in
        links.all.iter().filter(|link| link.kind == LinkKind::Bridge && link.up == Some(true))
    {
        let ours = link.alias.as_deref().and_then(|alias| alias.strip_prefix(LINK_ALIAS_PREFIX));
        let Some(ours) = ours else { continue };
        let network = ours.split_once('/').map_or(ours, |(network, _)| network);
        bridges.entry(network.to_owned()).or_default().push(link.name.clone());
    }
    Some(bridges)
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
