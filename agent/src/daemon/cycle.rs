//! One reconcile cycle: read the desired state, converge the host, publish the result.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_api::infra_node::ChangeResult;
use tokio::sync::mpsc::Sender;

use super::desired::{DesiredReader, HostDesiredState};
use super::link_events::WatchedLinks;
use super::publisher::{CycleResults, Publisher};
use super::retries::RetryTracker;
use super::settings::{Settings, Source};
use super::state::State;
use super::trigger::Trigger;
use crate::apply::links::trial;
use crate::apply::{
    ApplyBlocked, ApplyContext, ConvergeResult, Outcome, converge, observe_for_plan,
};
use crate::cluster::{CycleEvent, Store};
use crate::dhcp::DhcpHandle;
use crate::manifest::SpecPart;
use crate::observe;
use crate::plan::{ChangeId, LeasedNetworks, leased_networks};
use crate::state_folder::{self, CONFLICTS_FILE, ConflictRecord, TRUNK_FILE, TrunkRecord};
use crate::trunk::TrunkMonitor;
use berth_host_facts::host_settings::HostSettings;
use berth_host_facts::kernel_files::boot_id as read_boot_id;
use berth_host_facts::links::Links;
use berth_host_facts::root::Root;
use berth_host_facts::setting::Setting;
use berth_host_facts::{HostFacts, ObserveOptions, processes};

/// Runs cycles, and stores results of the last cycle that the next cycle needs.
#[derive(Debug)]
pub(super) struct CycleRunner {
    root: Arc<Root>,
    settings: Settings,
    state: Arc<State>,
    dhcp: DhcpHandle,
    desired: DesiredReader,
    store: Option<Arc<Store>>,
    retries: RetryTracker,
    publisher: Publisher,
    scan: ScanResults,
    /// Results of the verification of trunks that this process saved last; `None` if it saved none.
    saved_trunks: Option<TrunkRecord>,
    saved_conflicts: Option<ConflictRecord>,
}

/// Results of the last reads of the host.
#[derive(Debug, Default)]
struct ScanResults {
    /// Facts of the last full read, without links. Later cycles reuse those facts that change only with device events.
    device_facts: Option<HostFacts>,
    /// Result of the last full cycle, without links. A cycle of link events reuses the facts that it does not read
    /// itself.
    last_full_cycle: Option<ConvergeResult>,
    /// Duration of the last read.
    read_duration: Duration,
    /// True if the time limit of the last cycle expired before all links were removed.
    has_unfinished_removals: bool,
}

/// Lower and upper time limit for the removal of links in one cycle, so that other changes are not delayed.
/// Between these bounds the limit is the duration of the last read of the host. With a fixed limit, a slow host
/// with many links would spend most of the time on reads.
const REMOVAL_TIME_LIMITS: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(10));
/// Wait between cycles while links remain to be removed.
const REMOVAL_INTERVAL: Duration = Duration::from_millis(50);
/// Shortest time until a retry.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl CycleRunner {
    pub(super) fn new(
        root: Arc<Root>,
        settings: Settings,
        state: Arc<State>,
        watched_links: Arc<Mutex<WatchedLinks>>,
        dhcp: DhcpHandle,
    ) -> Self {
        let conflicts = dhcp.conflicts().clone();
        Self {
            root,
            dhcp,
            desired: DesiredReader::new(settings.source.clone(), !settings.observe),
            store: None,
            settings,
            retries: RetryTracker::default(),
            publisher: Publisher::new(Arc::clone(&state), watched_links, conflicts),
            state,
            scan: ScanResults::default(),
            saved_trunks: None,
            saved_conflicts: None,
        }
    }

    /// Connects the runner to the cluster, which provides the desired state and receives events.
    pub(super) fn connect_to_cluster(&mut self, store: Arc<Store>, sender: Sender<CycleEvent>) {
        self.desired.connect_to_cluster(&self.root, Arc::clone(&store));
        self.publisher.connect_to_cluster(Arc::clone(&store), sender);
        self.store = Some(store);
    }

    /// Sets the tasks that probe trunks; their results are then published.
    pub(super) fn set_trunk_monitor(&mut self, monitor: TrunkMonitor) {
        self.publisher.set_trunk_monitor(monitor);
    }

    /// Returns the time until the next cycle of the timer.
    pub(super) fn time_until_next_cycle(
        &self,
        interval: Duration,
        since_full_cycle: Duration,
    ) -> Duration {
        if self.scan.has_unfinished_removals {
            return REMOVAL_INTERVAL;
        }
        let interval = interval.saturating_sub(since_full_cycle).max(REMOVAL_INTERVAL);
        let retry = self.retries.time_until_retry(Instant::now());
        retry.map_or(interval, |retry| retry.max(MIN_RETRY_INTERVAL).min(interval))
    }

    /// Runs one cycle.
    pub(super) fn run(&mut self, trigger: Trigger) {
        let span = tracing::info_span!("cycle", ?trigger, generation = tracing::field::Empty);
        let _entered = span.enter();
        let begin = Instant::now();
        self.state.mark_cycle_started();
        match trigger {
            // The event may have removed the cause of a failure, so failed changes are retried at once.
            Trigger::Capacity | Trigger::Manifest | Trigger::Start => {
                self.retries.allow_all_retries()
            }
            Trigger::Links => self.retries.retry_links_soon(begin),
            _ => {}
        }
        let blocked_reason = self.roll_back_unfinished_trial();
        // Triggers that arrive together are reported as the greatest of them, so a manifest trigger may include a
        // device trigger.
        if trigger >= Trigger::Devices || self.scan.device_facts.is_none() {
            self.read_devices();
        }
        let desired = self.read_desired();
        span.record("generation", desired.generation.as_ref().map(|generation| generation.number));
        let links_only = trigger == Trigger::Links
            || (trigger == Trigger::Timer && self.scan.has_unfinished_removals);
        let mut converged = self.converge(&desired, blocked_reason, links_only, begin);
        if converged.outcomes.iter().any(has_changed_driver) {
            self.read_devices();
        }
        self.scan.has_unfinished_removals = converged.has_unfinished_removals;
        if let Some(full) = self.scan.last_full_cycle.take().filter(|_| links_only) {
            converged = merge_links(full, converged);
        }
        self.retries.record_attempts(&converged, begin);
        converged.plan.mark_tenants_failed(self.retries.link_failures());
        if let Some(devices) = &self.scan.device_facts {
            converged.facts.copy_devices_from(devices);
        }
        self.publisher.publish(&CycleResults {
            begin,
            node: self.node_name().unwrap_or_default(),
            desired: &desired,
            converged: &converged,
            usage: processes::read_own_resource_usage(&self.root),
        });
        self.update_dhcp(&desired, &converged.facts);
        self.save_trunks();
        self.save_conflicts();
        // Each cycle reads the links again, and a host may have thousands.
        converged.facts.links = Links::default();
        self.scan.last_full_cycle = Some(ConvergeResult { outcomes: Vec::new(), ..converged });
        self.state.mark_cycle_ended();
    }

    /// Passes the host networks, and the leases of a manifest in a file, to the service that answers DHCP requests.
    fn update_dhcp(&self, desired: &HostDesiredState, facts: &HostFacts) {
        // While the ledger cannot be read, the last known networks stay.
        if facts.ledger_error.is_none() {
            self.dhcp.set_host_networks(&facts.ledger);
        }
        if let (Source::File(_), Some(leases)) = (&self.settings.source, &desired.leases) {
            self.dhcp.set_leases(leases);
        }
        // The cycle may have missed events of links that were not watched before.
        self.dhcp.notify_links_changed();
    }

    /// Returns the leases for the source guard; `None` while they are unknown, and if no network has source guard.
    fn guarded_leases(&self, desired: &HostDesiredState) -> Option<LeasedNetworks> {
        let mut tenants = desired.spec.tenant_networks.iter();
        let has_source_guard = tenants.any(|tenant| tenant.source_guard == Some(true));
        // A network whose spec has a fault is not in `desired.spec`, but may have source guard.
        let known = self.dhcp.guarded_leases(has_source_guard || !desired.faults.is_empty());
        match (&self.settings.source, &desired.leases) {
            (Source::File(_), Some(leases)) => Some(leased_networks(leases)),
            _ => known,
        }
    }

    /// Converges the whole host, or only its links.
    fn converge(
        &mut self,
        desired: &HostDesiredState,
        blocked_reason: Option<ApplyBlocked>,
        links_only: bool,
        begin: Instant,
    ) -> ConvergeResult {
        let leases = self.guarded_leases(desired);
        let report_progress = || self.state.record_progress();
        let boot_id = read_boot_id(&self.root).unwrap_or_default();
        let api_servers =
            || self.store.as_ref().map(|store| store.server_addresses()).unwrap_or_default();
        let context = ApplyContext::new(&self.root, &boot_id, &report_progress)
            .with_blocked_reason(blocked_reason)
            .with_api_servers(&api_servers)
            .with_leases(leases.as_ref())
            .with_removal_time_limit(
                self.scan.read_duration.clamp(REMOVAL_TIME_LIMITS.0, REMOVAL_TIME_LIMITS.1),
            );
        let context = if self.settings.observe { context.with_dry_run() } else { context };
        let postponed = self.retries.postponed_attempts(begin);
        let read_duration = Cell::new(Duration::ZERO);
        let timed = |read: &dyn Fn() -> (HostFacts, HostSettings)| {
            let begin = Instant::now();
            let facts = read();
            read_duration.set(begin.elapsed());
            facts
        };
        let pci =
            self.scan.device_facts.as_ref().map(|devices| devices.pci.clone()).unwrap_or_default();
        let converged = if links_only && self.scan.last_full_cycle.is_some() {
            let read = || {
                timed(&|| {
                    (berth_host_facts::observe_links(&self.root, &pci), HostSettings::default())
                })
            };
            let (spec, unparsed) = desired.restrict_to_networks();
            converge(&context, &spec, &unparsed, &postponed, &read, &mut log_outcome)
        } else {
            let options =
                ObserveOptions { pci: Some(pci), ..ObserveOptions::for_spec(&desired.spec) };
            let read = || timed(&|| observe_for_plan(&self.root, &options));
            converge(
                &context,
                &desired.spec,
                &desired.unparsed,
                &postponed,
                &read,
                &mut log_outcome,
            )
        };
        self.scan.read_duration = read_duration.get();
        converged
    }

    /// Rolls back a trial that an earlier agent process did not finish. If the rollback fails, returns the reason why
    /// no change can be applied.
    fn roll_back_unfinished_trial(&self) -> Option<ApplyBlocked> {
        let boot_id = read_boot_id(&self.root).unwrap_or_default();
        match trial::roll_back_unfinished_trial(&self.root, &boot_id) {
            Ok(None) => None,
            Ok(Some(recovered)) => {
                tracing::warn!(%recovered, "rolled back an unfinished trial");
                None
            }
            // The publisher logs the error once, with the other problems.
            Err(error) => Some(ApplyBlocked::TrialNotRolledBack(error)),
        }
    }

    fn read_devices(&mut self) {
        let first = self.scan.device_facts.is_none();
        let mut facts = observe::observe(
            &self.root,
            &ObserveOptions { includes_kvm: first, ..ObserveOptions::default() },
        );
        if let Some(before) = &self.scan.device_facts {
            facts.copy_kvm_from(before);
        }
        facts.links = Links::default();
        self.scan.device_facts = Some(facts);
        self.state.record_progress();
    }

    fn read_desired(&mut self) -> HostDesiredState {
        let candidate = match self.desired.read(&self.root) {
            Ok(candidate) => candidate,
            Err(desired) => return *desired,
        };
        let mut mismatch = candidate.node_mismatch(self.node_name().as_deref());
        if mismatch.is_some() {
            // A kubelet that started after the agent may use another node name.
            self.read_devices();
            mismatch = candidate.node_mismatch(self.node_name().as_deref());
        }
        candidate.into_desired(mismatch)
    }

    /// Saves the results of the verification of trunks for `berth-agent check`, if they changed.
    fn save_trunks(&mut self) {
        // An agent with `--observe` has no state folder.
        let Some(networks) = self.publisher.trunks().filter(|_| !self.settings.observe) else {
            return;
        };
        let boot_id = read_boot_id(&self.root).unwrap_or_default();
        let record = TrunkRecord { boot_id, networks: networks.clone() };
        let is_new = self.saved_trunks.as_ref() != Some(&record);
        let is_needed = !record.networks.is_empty() || self.root.exists(TRUNK_FILE);
        if !is_new || !is_needed {
            return;
        }
        match state_folder::save_trunk_record(&self.root, &record) {
            Ok(()) => self.saved_trunks = Some(record),
            Err(error) => {
                tracing::warn!(%error, "failed to save the results of the verification of trunks")
            }
        }
    }

    /// Saves the addresses in use for `berth-agent check`, if they changed.
    fn save_conflicts(&mut self) {
        let boot_id = read_boot_id(&self.root).unwrap_or_default();
        let record = ConflictRecord { boot_id, conflicts: self.dhcp.conflicts().all() };
        let is_new = self.saved_conflicts.as_ref() != Some(&record);
        let is_needed = !record.conflicts.is_empty() || self.root.exists(CONFLICTS_FILE);
        // An agent with `--observe` does not probe.
        if self.settings.observe || !is_new || !is_needed {
            return;
        }
        match state_folder::save_conflict_record(&self.root, &record) {
            Ok(()) => self.saved_conflicts = Some(record),
            Err(error) => tracing::warn!(%error, "failed to save the addresses in use"),
        }
    }

    fn node_name(&self) -> Option<String> {
        let observed = || {
            let facts = self.scan.device_facts.as_ref();
            facts.and_then(|facts| facts.node_name()).map(str::to_owned)
        };
        self.settings.node_name.clone().or_else(observed)
    }
}

/// Updates the result of the last full cycle with the result of a later cycle that read only links.
fn merge_links(mut full: ConvergeResult, links: ConvergeResult) -> ConvergeResult {
    full.facts.links = links.facts.links;
    full.facts.ledger = links.facts.ledger;
    full.plan.changes.retain(|change| change.link_action().is_none());
    full.plan.changes.extend(links.plan.changes);
    full.plan.networks = links.plan.networks;
    full.plan.faults.retain(|fault| !fault.is_about_part(SpecPart::Networks));
    full.plan.faults.extend(links.plan.faults);
    let ConvergeResult {
        outcomes,
        incomplete_attempts,
        has_unfinished_removals: unfinished,
        blocked_reason,
        ..
    } = links;
    ConvergeResult {
        outcomes,
        incomplete_attempts,
        has_unfinished_removals: unfinished,
        blocked_reason,
        ..full
    }
}

/// Returns true if the driver of a PCI function was changed, or may have been changed.
fn has_changed_driver(outcome: &Outcome) -> bool {
    matches!(outcome.id, ChangeId::Setting(Setting::PciDriver(_)))
        && outcome.result != ChangeResult::Blocked
}

fn log_outcome(outcome: &Outcome) {
    let change = &outcome.what;
    let message = outcome.message.as_deref().unwrap_or_default();
    match outcome.result {
        ChangeResult::Done => {
            tracing::info!(%change, drift = outcome.drift, message, "applied a change");
        }
        ChangeResult::Partial => tracing::warn!(%change, %message, "applied a change partially"),
        ChangeResult::Failed => {
            tracing::error!(%change, error = %message, "failed to apply a change")
        }
        // The publisher logs blocked changes once, with the other problems.
        ChangeResult::Blocked => {}
    }
}
