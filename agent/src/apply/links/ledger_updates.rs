//! Updates the entries of the rollback ledger about links.

use std::collections::BTreeSet;

use berth_api::LinkName;

use crate::plan::network::{FilterAction, LinkAction, LinkOp};
use berth_host_facts::ledger::Ledger;

/// Records the filter, tenants and uplinks that exist after a successful change, and removes the entries of objects
/// that the change removed.
pub(super) fn record_link_outcome(action: &LinkAction, ledger: &mut Ledger) {
    match &action.filter {
        Some(FilterAction::Replace(filter)) => ledger.filter = Some(filter.clone()),
        Some(FilterAction::Delete) => ledger.filter = None,
        None => {}
    }
    if action.is_interim {
        return;
    }
    if let Some(settings) = &action.settings {
        let record = ledger.networks.entry(action.network.clone()).or_default();
        if record.settings != *settings {
            record.settings.clone_from(settings);
            record.tenants.clear();
            record.failed_trial = None;
        }
        record.tenants.extend(action.added_tenants.clone());
    }
    if let Some(record) = ledger.networks.get_mut(&action.network) {
        record.tenants.retain(|id, _| !action.removed_tenants.contains(id));
        if action.uplink.is_some() {
            record.uplink.clone_from(&action.uplink);
            record.joining_uplinks.clear();
        }
    }
    for op in &action.ops {
        if let LinkOp::Down(name) = op {
            ledger.uplinks_set_up.remove(name);
        }
    }
}

/// Records the links that are about to become uplinks.
pub(crate) fn record_joining_uplinks(action: &LinkAction, ledger: &mut Ledger) {
    if let Some((port, _)) = action.joined_uplink() {
        let record = ledger.networks.entry(action.network.clone()).or_default();
        if record.uplink.as_ref() != Some(port) {
            record.joining_uplinks.insert(port.clone());
        }
    }
}

/// Returns the names of the uplinks that the steps of `action` set up.
pub(crate) fn uplinks_set_up(action: &LinkAction) -> BTreeSet<LinkName> {
    let raised = action.ops.iter().filter_map(|op| match op {
        LinkOp::Up(name) => Some(name.clone()),
        _ => None,
    });
    raised.collect()
}
