//! Applies the changes of one plan.

use super::context::ApplyContext;
use super::kubelet_files;
use super::outcome::{self, ApplyResult, Outcome, Result};
use super::setting_outcome::record_setting_outcome;
use super::{hugepages, interrupts, ksm, links, settings, vfio};
use crate::host_write::{HostWrite as _, WriteError};
use crate::plan::{Action, Change, Plan, Step};
use crate::state_folder::save_ledger;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::processes;
use berth_host_facts::setting::{KsmSetting, Setting};

/// Outcomes of the changes of one plan.
#[derive(Debug, Default)]
pub struct ApplyOutcomes {
    /// One outcome for each change, in order. If the time limit for removals expired, the changes that were not tried
    /// have no outcome.
    pub outcomes: Vec<Outcome>,
    /// Outcome for the rollback ledger, if it could not be saved after the changes.
    pub ledger_outcome: Option<Outcome>,
}

/// Applies the plan, and passes each outcome to `report` as soon as the change has ended.
///
/// # Errors
/// If the original values cannot be saved. The host is not changed in this case.
pub fn apply(
    context: &ApplyContext,
    plan: &Plan,
    ledger: &Ledger,
    report: &mut dyn FnMut(&Outcome),
) -> std::result::Result<ApplyOutcomes, WriteError> {
    let mut updated_ledger = ledger.clone();
    record_original_values(plan, &mut updated_ledger);
    if plan.changes.is_empty() {
        // Without changes, the ledger is pruned before the first save, so that no second save is needed. If the agent
        // crashed between two saves, the stale entries would stay in the ledger, because the next plan would have no
        // changes either.
        prune_ledger(plan, &mut updated_ledger);
    }
    if &updated_ledger != ledger {
        save_ledger(&updated_ledger, context.root, context.boot_id)?;
    }
    let saved = updated_ledger.clone();
    let mut outcomes = Vec::new();
    let (on_links, on_settings): (Vec<&Change>, Vec<&Change>) =
        plan.changes.iter().partition(|change| change.link_action().is_some());
    for change in on_settings {
        let outcome = apply_change(context, change, &mut updated_ledger);
        report(&outcome);
        outcomes.push(outcome);
        context.report_progress();
    }
    outcomes.extend(links::apply_link_changes(context, &on_links, &mut updated_ledger, report));
    prune_ledger(plan, &mut updated_ledger);
    let mut ledger_outcome = None;
    if updated_ledger != saved {
        // A failure of this save does not stop the agent: the original values were saved before the changes, and the
        // next cycle derives the missing entries from the host again.
        if let Err(error) = save_ledger(&updated_ledger, context.root, context.boot_id) {
            let outcome = Outcome::new_ledger_failure(&error);
            report(&outcome);
            ledger_outcome = Some(outcome);
        }
    }
    Ok(ApplyOutcomes { outcomes, ledger_outcome })
}

/// Removes stale entries from the ledger.
fn prune_ledger(plan: &Plan, ledger: &mut Ledger) {
    if !plan.housekeeping && !ledger.has_entry(|setting| matches!(setting, Setting::IrqAffinity(_)))
    {
        ledger.unmovable_irqs.clear();
    }
    if ledger.entries.is_empty() && plan.is_kubelet_running == Some(false) {
        ledger.hugepages_changed_at = None;
    }
}

/// Records the original values in the ledger before the first change is made.
fn record_original_values(plan: &Plan, ledger: &mut Ledger) {
    for setting in &plan.stale_settings {
        ledger.entries.remove(setting);
    }
    for network in &plan.stale_records.networks {
        ledger.networks.remove(network);
    }
    for uplink in &plan.stale_records.uplinks {
        ledger.uplinks_set_up.remove(uplink);
    }
    if plan.stale_records.is_filter_stale {
        ledger.filter = None;
    }
    ledger.networks.extend(plan.records_to_adopt.clone());
    for change in plan.changes.iter().filter(|change| change.blocked.is_none()) {
        if let Action::Kubelet(action) = &change.action {
            ledger.files.extend(kubelet_files::files_created_by(action));
        }
        // The ledger records uplinks that were down originally. If the change corrects drift, the link was up before,
        // and its current state is not the original state.
        if !change.drift {
            ledger.uplinks_set_up.extend(
                change.link_action().into_iter().flat_map(links::ledger_updates::uplinks_set_up),
            );
        }
        if let Some(action) = change.link_action() {
            links::ledger_updates::record_joining_uplinks(action, ledger);
        }
        for step in change.steps() {
            ledger.record_original_value(step.setting, step.current_value.clone());
            for (setting, was) in &step.dependent_settings {
                ledger.record_original_value(*setting, was.clone());
            }
        }
    }
}

fn apply_change(context: &ApplyContext, change: &Change, ledger: &mut Ledger) -> Outcome {
    if change.blocked.is_some() {
        return Outcome::new_blocked(change);
    }
    let removes_checkpoints = match &change.action {
        Action::Kubelet(action) => action.removes_checkpoints(),
        Action::Set(_) | Action::Links(_) => !change.removes.is_empty(),
    };
    // The check is made right before the change, because the kubelet may have been started since
    // the plan was made.
    if removes_checkpoints && processes::observe(context.root).is_kubelet_running() {
        let reason = "the kubelet was started after the plan was made, and would write its checkpoints again";
        return Outcome::new(change, ApplyResult::Blocked(reason.to_owned()));
    }
    for file in &change.removes {
        if let Err(error) = context.root.remove(file) {
            return Outcome::new(change, ApplyResult::Failed(outcome::error_with_hint(&error)));
        }
    }
    if let Action::Kubelet(action) = &change.action {
        return Outcome::new(
            change,
            kubelet_files::apply_and_record_files(context, action, ledger),
        );
    }
    let steps = change.steps();
    if steps.iter().all(|step| matches!(step.setting, Setting::IrqAffinity(_))) {
        return Outcome::new(
            change,
            interrupts::set_affinities(context, change.why, steps, ledger),
        );
    }
    let mut result = ApplyResult::Done(None);
    for step in steps {
        result = apply_step(context, step);
        record_setting_outcome(change.why, step, &result, ledger);
        if !matches!(result, ApplyResult::Done(_)) {
            break;
        }
    }
    let current_value = |step: &Step| settings::read_current_value(context.root, step.setting);
    let pages = |step: &&Step| matches!(step.setting, Setting::Hugepages { .. });
    if steps
        .iter()
        .filter(pages)
        .any(|step| current_value(step).as_ref() != Some(&step.current_value))
    {
        ledger.hugepages_changed_at =
            settings::uptime(context.root).or(ledger.hugepages_changed_at);
    }
    Outcome::new(change, result)
}

fn apply_step(context: &ApplyContext, step: &Step) -> ApplyResult {
    let result: Result = match step.setting {
        Setting::Hugepages { zone, size } => hugepages::set_page_count(context, zone, size, step),
        Setting::Ksm(KsmSetting::MergeAcrossNodes) => ksm::set_merge_across_nodes(context, step),
        Setting::PciDriver(address) => vfio::set_driver(context, address, step),
        _ => settings::write_and_confirm(context, step.setting, &step.new_value),
    };
    result.unwrap_or_else(|result| result)
}
