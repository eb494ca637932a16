//! Applies changes of links in the order of their stages.

use std::collections::BTreeMap;

use berth_api::infra_node::ChangeResult;
use nix::errno::Errno;

use super::batches::apply_batches;
use super::error::FilterError;
use super::kernel::Kernel;
use super::ledger_updates::record_link_outcome;
use super::removal;
use crate::apply::context::ApplyContext;
use crate::apply::outcome::{ApplyResult, Outcome};
use crate::netlink::KernelRefusal;
use crate::plan::network::{FilterAction, Stage};
use crate::plan::{Change, ChangeId};
use berth_host_facts::ledger::Ledger;

pub(super) fn apply_link_changes_on(
    kernel: &mut dyn Kernel,
    context: &ApplyContext,
    changes: &[&Change],
    ledger: &mut Ledger,
    report: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut failed_networks: BTreeMap<&str, &ChangeId> = BTreeMap::new();
    let mut failed_filter: Option<&ChangeId> = None;
    // A trial is applied alone, because the probe of the gateways after the trial must show the effect of one change
    // only.
    let same_batch =
        |a: &&Change, b: &&Change| stage_of(a) == stage_of(b) && !is_trial(a) && !is_trial(b);
    for stage in changes.chunk_by(same_batch) {
        if stage_of(stage[0]) == Some(Stage::Filter) {
            for change in stage {
                let mut action = change.link_action().cloned();
                let filter = action.as_mut().and_then(|action| action.filter.as_mut());
                let result = filter.map_or(Ok(None), |filter| apply_filter(kernel, filter));
                let result = result.map_or_else(
                    |error| ApplyResult::Failed(error.to_string()),
                    |message| ApplyResult::Done(message.map(str::to_owned)),
                );
                let outcome = Outcome::new(change, result);
                if let (Some(action), ChangeResult::Done) = (&action, outcome.result) {
                    record_link_outcome(action, ledger);
                } else {
                    failed_filter = Some(&change.id);
                }
                report(&outcome);
                outcomes.push(outcome);
            }
            continue;
        }
        if stage_of(stage[0]) == Some(Stage::Removals) {
            removal::remove_links(context, kernel, stage, &mut |change, result| {
                let outcome = Outcome::new(change, result);
                if let (Some(action), ChangeResult::Done) = (change.link_action(), outcome.result) {
                    record_link_outcome(action, ledger);
                }
                report(&outcome);
                outcomes.push(outcome);
            });
            continue;
        }
        let possible =
            |change: &&Change| failed_dependency(change, &failed_networks, failed_filter).is_none();
        let possible: Vec<&Change> = stage.iter().copied().filter(possible).collect();
        let mut results = apply_batches(context, kernel, &possible).into_iter();
        for change in stage {
            let (result, rolled_back) =
                match failed_dependency(change, &failed_networks, failed_filter) {
                    Some(first) => {
                        (ApplyResult::Blocked(format!("waiting for the change: {first}")), false)
                    }
                    None => results.next().unwrap_or_else(|| {
                        (ApplyResult::Failed("the change was not applied".to_owned()), false)
                    }),
                };
            let outcome = Outcome::new(change, result);
            if let Some(action) = change.link_action() {
                if outcome.result == ChangeResult::Done {
                    record_link_outcome(action, ledger);
                } else if stage_of(change) < Some(Stage::Tenants) {
                    failed_networks.insert(&action.network, &change.id);
                }
                if rolled_back {
                    let record = ledger.networks.entry(action.network.clone()).or_default();
                    let message = outcome.message.clone().unwrap_or_default();
                    record.failed_trial =
                        Some((action.settings.clone().unwrap_or_default(), message));
                }
            }
            report(&outcome);
            outcomes.push(outcome);
        }
        context.report_progress();
    }
    outcomes
}

/// Message about a filter change on a kernel without the expression `NFT_META_BRI_IIFNAME`.
const SERVER_RULES_UNSUPPORTED: &str = "the kernel has no nftables expression for the bridge of a frame (CONFIG_NFT_BRIDGE_META, \
    Linux 5.3): DHCP servers and routers among VMs are reported, but not dropped";

/// Message about a filter change with source guard on a kernel without the expression `NFT_META_BRI_IIFNAME`.
const SOURCE_RULES_UNSUPPORTED: &str = "the kernel has no nftables expression for the bridge of a frame (CONFIG_NFT_BRIDGE_META, \
    Linux 5.3): foreign addresses of VMs, and DHCP servers and routers among VMs are not dropped";

/// Applies a change of the nftables table. If the kernel does not support the rules against DHCP servers, routers and
/// foreign addresses of VMs, removes these rules from `action` and applies the other rules, which protect the host's
/// connection. Returns a message in this case.
fn apply_filter(
    kernel: &mut dyn Kernel,
    action: &mut FilterAction,
) -> Result<Option<&'static str>, FilterError> {
    match kernel.apply_filter(action) {
        Err(FilterError::Refused(KernelRefusal { errno: Errno::EOPNOTSUPP, .. }))
            if let Some(reduced) = action.without_guard() =>
        {
            kernel.apply_filter(&reduced)?;
            let has_sources = matches!(&reduced, FilterAction::Replace(filter) if !filter.guard.sources.is_empty());
            *action = reduced;
            Ok(Some(if has_sources { SOURCE_RULES_UNSUPPORTED } else { SERVER_RULES_UNSUPPORTED }))
        }
        result => result.map(|()| None),
    }
}

fn is_trial(change: &Change) -> bool {
    change.link_action().is_some_and(|action| action.on_trial)
}

fn stage_of(change: &Change) -> Option<Stage> {
    change.link_action().map(|action| action.stage)
}

/// Returns the failed change that this change depends on, if there is one.
fn failed_dependency<'a>(
    change: &Change,
    failed_networks: &BTreeMap<&str, &'a ChangeId>,
    failed_filter: Option<&'a ChangeId>,
) -> Option<&'a ChangeId> {
    let action = change.link_action().filter(|action| action.stage != Stage::Removals)?;
    let filter = failed_filter.filter(|_| change.waits_for_filter());
    filter.or_else(|| failed_networks.get(action.network.as_str()).copied())
}
