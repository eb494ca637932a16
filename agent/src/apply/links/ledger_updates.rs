//! Updates the entries of the rollback ledger about links.

use std::collections::BTreeSet;

use berth_api::LinkName;

use crate::plan::network::{FilterAction, LinkAction, LinkOp};
use berth_host_facts::ledger::Ledger;

/// Records the filter, tenants and uplinks that exist after a successful change, and removes the entries of objects
/// that the change removed.
pub(super) fn record_link_outcome(work: &LinkAction, ledger: &mut Ledger) {
    match &work.filter {
        Some(FilterAction::Replace(filter)) => ledger.filter = Some(filter.clone()),
        Some(FilterAction::Delete) => ledger.filter = None,
        None => {}
    }
    if work.is_interim {
        return;
    }
    if let Some(settings) = &work.settings {
        let record = ledger.networks.entry(work.network.clone()).or_default();
        if record.settings != *settings {
            record.settings.clone_from(settings);
            record.tenants.clear();
            record.failed_trial = None;
        }
        record.tenants.extend(work.added_tenants.clone());
    }
    if let Some(record) = ledger.networks.get_mut(&work.network) {
        record.tenants.retain(|id, _| !work.removed_tenants.contains(id));
        if work.uplink.is_some() {
            record.uplink.clone_from(&work.uplink);
            record.joining_uplinks.clear();
        }
    }
    for op in &work.ops {
        if let LinkOp::Down(name) = op {
            ledger.uplinks_set_up.remove(name);
        }
    }
}

/// Records the links that are about to become uplinks.
pub(crate) fn record_joining_uplinks(work: &LinkAction, ledger: &mut Ledger) {
    if let Some((port, _)) = work.joined_uplink() {
        let record = ledger.networks.entry(work.network.clone()).or_default();
        if record.uplink.as_ref() != Some(port) {
            record.joining_uplinks.insert(port.clone());
        }
    }
}

/// Returns the names of the uplinks that a plan sets up.
pub(crate) fn uplinks_set_up(work: &LinkAction) -> BTreeSet<LinkName> {
    let raised = work.ops.iter().filter_map(|op| match op {
        LinkOp::Up(name) => Some(name.clone()),
        _ => None,
    });
    raised.collect()
}
