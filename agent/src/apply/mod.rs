//! Carries out a plan: dull, one outcome per change, everything read back.
//!
//! What was found is saved durably before the first change. A change that fails does not stop the others.
//! What is done here is what the plan says, and nothing else is decided but how often to try.

mod converge;
mod files;
mod hugepages;
mod interrupts;
mod ksm;
pub mod links;
mod outcome;
mod settings;

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use crate::host_write::HostWrite as _;
use crate::host_write::WriteError;
use crate::plan::{Action, Change, Plan, Step, Why};
use crate::state_folder::save_ledger;
use crate::systemd::{Systemd, SystemdError};
use berth_host_facts::ledger::Ledger;
use berth_host_facts::processes;
use berth_host_facts::root::Root;
use berth_host_facts::setting::{KsmSetting, Setting};
pub use converge::{CannotStart, Converged, converge, look};
pub use links::Kernel;
pub use outcome::Outcome;
use outcome::{Ended, Result};

/// What is needed to change a host.
pub struct Hands<'a> {
    root: &'a Root,
    /// The boot that found values belong to.
    boot_id: &'a str,
    /// Called whenever something was done, also within a long change: whoever waits knows it goes on.
    alive: &'a dyn Fn(),
    /// How long links may be removed before something else is looked at; what is left is done later.
    budget: Option<Duration>,
    /// Whether nothing is to be changed, only told.
    tied: bool,
    /// Looks up the API server's addresses, where there is a cluster.
    servers: &'a dyn Fn() -> Vec<SocketAddr>,
    systemd: OnceCell<std::result::Result<Systemd, SystemdError>>,
    /// In place of the running kernel's links.
    kernel: Option<&'a RefCell<dyn Kernel + 'static>>,
    /// Why nothing may be changed.
    halted: Option<CannotStart>,
}

impl std::fmt::Debug for Hands<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands")
            .field("root", &self.root)
            .field("boot_id", &self.boot_id)
            .finish_non_exhaustive()
    }
}

impl<'a> Hands<'a> {
    /// For this host in this boot.
    #[must_use]
    pub fn new(root: &'a Root, boot_id: &'a str, alive: &'a dyn Fn()) -> Self {
        Self {
            root,
            boot_id,
            alive,
            budget: None,
            tied: false,
            servers: &Vec::new,
            systemd: OnceCell::new(),
            kernel: None,
            halted: None,
        }
    }

    /// On the links of another kernel, such as a model of one.
    #[must_use]
    pub const fn on(mut self, kernel: &'a RefCell<dyn Kernel + 'static>) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Halted, if there is a reason: nothing is changed.
    #[must_use]
    pub fn halted(mut self, why: Option<CannotStart>) -> Self {
        self.halted = why;
        self
    }

    /// With a limit for removals at a time.
    #[must_use]
    pub const fn within(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Tied: all that would be changed counts as blocked.
    #[must_use]
    pub const fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    /// In a cluster: what may cut the host off must leave it the API server.
    #[must_use]
    pub const fn in_cluster(mut self, servers: &'a dyn Fn() -> Vec<SocketAddr>) -> Self {
        self.servers = servers;
        self
    }

    fn systemd(&self) -> std::result::Result<&Systemd, SystemdError> {
        // A tree has no systemd, and this machine's is not meant.
        let connect =
            || if self.root.is_live() { Systemd::connect() } else { Err(SystemdError::captured()) };
        self.systemd.get_or_init(connect).as_ref().map_err(Clone::clone)
    }

    fn alive(&self) {
        (self.alive)();
    }
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// One for each change, in order; the last changes have none if there was no time for them.
    pub outcomes: Vec<Outcome>,
    /// What became of the found values, if they could not be saved afterwards.
    pub state: Option<Outcome>,
}

/// Carries out the plan; `told` hears of each outcome as soon as it is there.
///
/// # Errors
/// If what was found cannot be saved: then nothing was changed.
pub fn apply(
    hands: &Hands,
    plan: &Plan,
    ledger: &Ledger,
    told: &mut dyn FnMut(&Outcome),
) -> std::result::Result<Applied, WriteError> {
    let mut after = ledger.clone();
    remember(plan, &mut after);
    if plan.changes.is_empty() {
        // In one save: were it cut off between two, nobody would come again for what is left.
        tidy(plan, &mut after);
    }
    if &after != ledger {
        save_ledger(&after, hands.root, hands.boot_id)?;
    }
    let saved = after.clone();
    let mut outcomes = Vec::new();
    let (on_links, on_settings): (Vec<&Change>, Vec<&Change>) =
        plan.changes.iter().partition(|change| change.links().is_some());
    for change in on_settings {
        let outcome = carry_out(hands, change, &mut after);
        told(&outcome);
        outcomes.push(outcome);
        hands.alive();
    }
    outcomes.extend(links::carry_out(hands, &on_links, &mut after, told));
    tidy(plan, &mut after);
    let mut state = None;
    if after != saved {
        // The found values are safe already; what is lost here is asked of the host again next time.
        if let Err(error) = save_ledger(&after, hands.root, hands.boot_id) {
            let outcome = Outcome::of_state(&error);
            told(&outcome);
            state = Some(outcome);
        }
    }
    Ok(Applied { outcomes, state })
}

/// Forgets what was learned for changes that nobody asks for any more.
fn tidy(plan: &Plan, ledger: &mut Ledger) {
    if !plan.housekeeping && !ledger.has(|setting| matches!(setting, Setting::IrqAffinity(_))) {
        ledger.unmovable.clear();
    }
    if ledger.entries.is_empty() && plan.kubelet_runs == Some(false) {
        ledger.hugepages_changed = None;
    }
}

/// Puts into the ledger what must be known before the first change is made.
fn remember(plan: &Plan, ledger: &mut Ledger) {
    for setting in &plan.forget {
        ledger.entries.remove(setting);
    }
    for network in &plan.forget_networks.networks {
        ledger.networks.remove(network);
    }
    for uplink in &plan.forget_networks.uplinks {
        ledger.raised.remove(uplink);
    }
    if plan.forget_networks.filter {
        ledger.filter = None;
    }
    ledger.networks.extend(plan.adopt.clone());
    for change in plan.changes.iter().filter(|change| change.blocked.is_none()) {
        if let Action::Kubelet(action) = &change.action {
            ledger.files.extend(files::made_by(action));
        }
        // Drift of one that was up says nothing of how it was found.
        if !change.drift {
            ledger.raised.extend(change.links().into_iter().flat_map(links::raises));
        }
        if let Some(work) = change.links() {
            links::note_joins(work, ledger);
        }
        for step in change.steps() {
            ledger.found(step.setting, step.was.clone());
            for (setting, was) in &step.disturbs {
                ledger.found(*setting, was.clone());
            }
        }
    }
}

fn carry_out(hands: &Hands, change: &Change, ledger: &mut Ledger) -> Outcome {
    if change.blocked.is_some() {
        return Outcome::blocked(change);
    }
    let takes_checkpoints = match &change.action {
        Action::Kubelet(action) => action.takes_checkpoints(),
        Action::Set(_) | Action::Links(_) => !change.removes.is_empty(),
    };
    // Checked right before the change: the kubelet may have been started since the plan.
    if takes_checkpoints && processes::observe(hands.root).kubelet_runs() {
        let why = "the kubelet was started just now, and would write its checkpoints again";
        return Outcome::of(change, Ended::Blocked(why.to_owned()));
    }
    for file in &change.removes {
        if let Err(error) = hands.root.remove(file) {
            return Outcome::of(change, Ended::Failed(outcome::meaning(&error)));
        }
    }
    if let Action::Kubelet(action) = &change.action {
        return Outcome::of(change, files::carry_out(hands, action, ledger));
    }
    let steps = change.steps();
    if steps.iter().all(|step| matches!(step.setting, Setting::IrqAffinity(_))) {
        return Outcome::of(change, interrupts::carry_out(hands, change.why, steps, ledger));
    }
    let mut ended = Ended::Done(None);
    for step in steps {
        ended = set(hands, step);
        settle(change.why, step, &ended, ledger);
        if !matches!(ended, Ended::Done(_)) {
            break;
        }
    }
    let now = |step: &Step| settings::read(hands.root, step.setting);
    let pages = |step: &&Step| matches!(step.setting, Setting::Hugepages { .. });
    if steps.iter().filter(pages).any(|step| now(step).as_ref() != Some(&step.was)) {
        ledger.hugepages_changed = settings::uptime(hands.root).or(ledger.hugepages_changed);
    }
    Outcome::of(change, ended)
}

fn set(hands: &Hands, step: &Step) -> Ended {
    let done: Result = match step.setting {
        Setting::Hugepages { zone, size } => hugepages::set(hands, zone, size, step),
        Setting::Ksm(KsmSetting::MergeAcrossNodes) => ksm::set_merge_across_nodes(hands, step),
        _ => settings::set(hands, step.setting, &step.will_be),
    };
    done.unwrap_or_else(|ended| ended)
}

/// Notes what became of a setting: what was put back need not be remembered, and what was set is drift if
/// it is ever otherwise.
fn settle(why: Why, step: &Step, ended: &Ended, ledger: &mut Ledger) {
    if !matches!(ended, Ended::Done(_)) {
        return;
    }
    match why {
        Why::PutBack => _ = ledger.entries.remove(&step.setting),
        Why::Asked => {
            if let Some(entry) = ledger.entries.get_mut(&step.setting) {
                entry.set = Some(step.asked.clone());
            }
        }
    }
}
