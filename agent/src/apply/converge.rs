//! Reads the host, plans and applies changes in rounds, until no applicable change is left. A change that becomes
//! possible only after another change is applied in the next round. No change is tried twice.

use std::collections::BTreeSet;

use berth_api::infra_node::{ChangeResult, InfraNodeSpec};

use super::apply_blocked::ApplyBlocked;
use super::context::ApplyContext;
use super::execute::apply;
use super::outcome::Outcome;
use crate::manifest::UnparsedParts;
use crate::observe;
use crate::plan::network::Stage;
use crate::plan::{self, AttemptId, Plan};
use crate::state_folder::write_kubelet_record;
use berth_host_facts::host_settings::HostSettings;
use berth_host_facts::kubelet::StartRecord;
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, ObserveOptions};

/// Maximum number of rounds. A second round is needed where a write to one setting makes the kernel reset another
/// setting.
const MAX_ROUNDS: usize = 4;

/// Result of a convergence of the host.
#[derive(Debug)]
pub struct ConvergeResult {
    /// Outcomes of all changes that were tried, in order, and then outcomes of the changes that are blocked.
    pub outcomes: Vec<Outcome>,
    /// Attempts whose result is not `Done`, each with the desired values of its change.
    pub incomplete_attempts: Vec<AttemptId>,
    /// True if the time limit ended before all links were removed.
    pub has_unfinished_removals: bool,
    /// Reason why no further change can be applied: a rollback would not be safe.
    pub blocked_reason: Option<ApplyBlocked>,
    /// The pending changes of the last plan.
    pub plan: Plan,
    /// The facts of the last read of the host.
    pub facts: HostFacts,
    /// The settings of the last read of the host.
    pub settings: HostSettings,
}

/// Reads all facts that a plan needs. `options` is the result of [`ObserveOptions::for_spec`]; facts that are already
/// known may be added to it.
#[must_use]
pub fn observe_for_plan(root: &Root, options: &ObserveOptions) -> (HostFacts, HostSettings) {
    let facts = observe::observe(root, options);
    let settings = observe::settings(root, &facts);
    (facts, settings)
}

/// Converges the host to `spec`. Parts in `unparsed` are not changed. A change whose attempt is in `deferred_attempts`
/// is not applied before its next retry. If a rollback would not be safe, the function makes the plan but applies no
/// change.
pub fn converge(
    context: &ApplyContext,
    spec: &InfraNodeSpec,
    unparsed: &UnparsedParts,
    deferred_attempts: &BTreeSet<AttemptId>,
    observe_host: &dyn Fn() -> (HostFacts, HostSettings),
    report: &mut dyn FnMut(&Outcome),
) -> ConvergeResult {
    let mut attempted = BTreeSet::new();
    let mut incomplete_attempts = Vec::new();
    let mut outcomes = Vec::new();
    let mut round = 0;
    let mut unfinished = false;
    let mut blocked_reason = None;
    loop {
        round += 1;
        let (facts, settings) = observe_host();
        blocked_reason = blocked_reason.or_else(|| apply_blocked_reason(context, &facts));
        if blocked_reason.is_none() {
            save_kubelet_record(context, &facts);
        }
        context.report_progress();
        let input = plan::Input {
            spec,
            unparsed,
            facts: &facts,
            settings: &settings,
            leases: context.leases,
        };
        let mut plan = plan::plan(input);
        if context.dry_run {
            plan.block_all_changes();
        }
        let is_new = |attempt: &AttemptId| !attempted.contains(attempt);
        // A change also waits if a change that it depends on waits for its retry: a change of the same network in an
        // earlier stage, or the change of the nftables rules.
        let network_of = |change: &plan::Change| {
            change
                .link_action()
                .filter(|action| action.stage < Stage::Removals)
                .map(|action| action.network.clone())
        };
        let waiting = plan
            .changes
            .iter()
            .filter(|change| deferred_attempts.contains(&change.desired_attempt_id()));
        let before_tenants = |change: &&plan::Change| {
            change.link_action().is_some_and(|action| action.stage < Stage::Tenants)
        };
        let filter_deferred = waiting.clone().any(plan::Change::is_filter_change);
        let deferred_networks: BTreeSet<Option<String>> =
            waiting.filter(before_tenants).map(network_of).collect();
        let possible = plan.changes.iter().filter(|change| change.blocked.is_none());
        let possible = possible.filter(|change| {
            let network = network_of(change);
            let network_deferred = network.is_some() && deferred_networks.contains(&network);
            let lacks_filter = filter_deferred && change.waits_for_filter();
            !(deferred_attempts.contains(&change.desired_attempt_id())
                || network_deferred
                || lacks_filter)
        });
        let new: BTreeSet<AttemptId> =
            possible.map(plan::Change::next_attempt_id).filter(is_new).collect();
        let no_ledger_updates = plan.stale_settings.is_empty()
            && plan.stale_records.is_empty()
            && plan.records_to_adopt.is_empty();
        let up_to_date = new.is_empty() && no_ledger_updates;
        if blocked_reason.is_some() || unfinished || round > MAX_ROUNDS || up_to_date {
            for change in plan.changes.iter().filter(|change| change.blocked.is_some()) {
                let outcome = Outcome::new_blocked(change);
                report(&outcome);
                outcomes.push(outcome);
            }
            return ConvergeResult {
                outcomes,
                incomplete_attempts,
                has_unfinished_removals: unfinished,
                blocked_reason,
                plan,
                facts,
                settings,
            };
        }
        let mut round_plan = plan;
        round_plan
            .changes
            .retain(|change| change.blocked.is_none() && new.contains(&change.next_attempt_id()));
        let applied = match apply(context, &round_plan, &facts.ledger, report) {
            Ok(applied) => applied,
            Err(error) => {
                blocked_reason = Some(ApplyBlocked::LedgerNotSaved(error));
                continue;
            }
        };
        let round_outcomes = applied.outcomes;
        unfinished = round_outcomes.len() < round_plan.changes.len();
        let changes_with_outcomes = round_plan.changes.iter().zip(&round_outcomes);
        let incomplete =
            changes_with_outcomes.filter(|(_, outcome)| outcome.result != ChangeResult::Done);
        incomplete_attempts.extend(incomplete.map(|(change, _)| change.desired_attempt_id()));
        outcomes.extend(round_outcomes);
        outcomes.extend(applied.ledger_outcome);
        attempted.extend(new);
    }
}

/// Saves the configuration that the running kubelet was started with, before the agent changes the kubelet's files. If
/// the record cannot be saved, that configuration counts as unknown after the change, which is safe.
fn save_kubelet_record(context: &ApplyContext, facts: &HostFacts) {
    let Some(record) = facts.kubelet.start_record().filter(|_| !context.dry_run) else { return };
    if StartRecord::read(context.root).is_ok_and(|kept| kept.as_ref() == Some(&record)) {
        return;
    }
    if let Err(error) = write_kubelet_record(context.root, &record) {
        tracing::warn!(%error, "failed to record the configuration of the kubelet");
    }
}

/// Returns the reason why a host with these facts must not be changed.
fn apply_blocked_reason(context: &ApplyContext, facts: &HostFacts) -> Option<ApplyBlocked> {
    if context.blocked_reason.is_some() {
        return context.blocked_reason.clone();
    }
    // Without the boot ID the ledger would be regarded as the ledger of another boot, and would be
    // overwritten.
    if context.boot_id.is_empty() || facts.boot_id.as_deref() != Some(context.boot_id) {
        return Some(ApplyBlocked::UnknownBootId);
    }
    facts.ledger_error.clone().map(ApplyBlocked::LedgerNotRead)
}
