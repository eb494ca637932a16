//! Applies changes of links in the order of their stages.

use std::collections::BTreeMap;

use berth_api::infra_node::ChangeResult;

use super::batches::apply_batches;
use super::kernel::Kernel;
use super::ledger_updates::record_link_outcome;
use super::removal;
use crate::apply::context::ApplyContext;
use crate::apply::outcome::{ApplyResult, Outcome};
use crate::plan::network::Stage;
use crate::plan::{Change, ChangeId};
use berth_host_facts::ledger::Ledger;

pub(super) fn execute_on(
    kernel: &mut dyn Kernel,
    context: &ApplyContext,
    changes: &[&Change],
    ledger: &mut Ledger,
    report: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut lost: BTreeMap<&str, &ChangeId> = BTreeMap::new();
    let mut unfiltered: Option<&ChangeId> = None;
    // A change on trial is applied alone, because a probe shows the effect of one change only.
    let together =
        |a: &&Change, b: &&Change| stage_of(a) == stage_of(b) && !is_trial(a) && !is_trial(b);
    for stage in changes.chunk_by(together) {
        if stage_of(stage[0]) == Some(Stage::Filter) {
            for change in stage {
                let work = change.links().and_then(|work| work.filter.as_ref());
                let done = work.map_or(Ok(()), |work| kernel.filter(work));
                let ended = done.map_or_else(
                    |error| ApplyResult::Failed(error.to_string()),
                    |()| ApplyResult::Done(None),
                );
                let outcome = Outcome::new(change, ended);
                if let (Some(work), ChangeResult::Done) = (change.links(), outcome.result) {
                    record_link_outcome(work, ledger);
                } else {
                    unfiltered = Some(&change.id);
                }
                report(&outcome);
                outcomes.push(outcome);
            }
            continue;
        }
        if stage_of(stage[0]) == Some(Stage::Removals) {
            removal::execute(context, kernel, stage, &mut |change, ended| {
                let outcome = Outcome::new(change, ended);
                if let (Some(work), ChangeResult::Done) = (change.links(), outcome.result) {
                    record_link_outcome(work, ledger);
                }
                report(&outcome);
                outcomes.push(outcome);
            });
            continue;
        }
        let possible = |change: &&Change| failed_dependency(change, &lost, unfiltered).is_none();
        let possible: Vec<&Change> = stage.iter().copied().filter(possible).collect();
        let mut done = apply_batches(context, kernel, &possible).into_iter();
        for change in stage {
            let (ended, rolled_back) = match failed_dependency(change, &lost, unfiltered) {
                Some(first) => (ApplyResult::Blocked(format!("waits for: {first}")), false),
                None => done
                    .next()
                    .unwrap_or_else(|| (ApplyResult::Failed("not done".to_owned()), false)),
            };
            let outcome = Outcome::new(change, ended);
            if let Some(work) = change.links() {
                if outcome.result == ChangeResult::Done {
                    record_link_outcome(work, ledger);
                } else if stage_of(change) < Some(Stage::Tenants) {
                    lost.insert(&work.network, &change.id);
                }
                if rolled_back {
                    let made = ledger.networks.entry(work.network.clone()).or_default();
                    let why = outcome.message.clone().unwrap_or_default();
                    made.trial = Some((work.settings.clone().unwrap_or_default(), why));
                }
            }
            report(&outcome);
            outcomes.push(outcome);
        }
        context.report_progress();
    }
    outcomes
}

fn is_trial(change: &Change) -> bool {
    change.links().is_some_and(|work| work.trial)
}

fn stage_of(change: &Change) -> Option<Stage> {
    change.links().map(|work| work.stage)
}

/// Returns the failed change that this change depends on, if there is one.
fn failed_dependency<'a>(
    change: &Change,
    lost: &BTreeMap<&str, &'a ChangeId>,
    unfiltered: Option<&'a ChangeId>,
) -> Option<&'a ChangeId> {
    let work = change.links().filter(|work| work.stage != Stage::Removals)?;
    let filter = unfiltered.filter(|_| change.waits_for_filter());
    filter.or_else(|| lost.get(work.network.as_str()).copied())
}
