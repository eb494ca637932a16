//! Plans tenant networks: the changes from the observed links to the links of the spec.
//!
//! A link belongs to Berth if its alias has the prefix `berth:`. Other links are never changed, except an uplink
//! that becomes a port of a bridge of Berth. A fault in the spec of one network does not affect the other networks.

pub(super) mod action;
mod desired;
mod desired_link;
mod desired_network;
mod diff;
pub mod difference;
mod effective_mtu;
pub mod filter;
mod frame_path;
mod handover;
pub mod id;
mod link_change;
pub mod mismatch;
mod names;
mod op;
mod planner;
mod read_network;
mod read_tenant;
mod refusal;
pub(super) mod removal;
mod scenario;
pub(crate) mod server_guard;
pub(crate) mod source_guard;
pub mod state;
mod tenants;
mod tunnels;
mod uplink;
mod users;

use std::collections::BTreeMap;

use super::change::Change;
use super::input::Input;
use crate::manifest::{Fault, SpecPart};
pub use action::{FilterAction, LinkAction, Stage};
use berth_host_facts::ledger::NetworkRecord;
pub use desired_link::{DesiredKind, DesiredLink};
pub use diff::verify_step;
pub(crate) use diff::{ARP_IGNORE_ALL, RP_FILTER_STRICT};
pub use names::LINK_GROUP;
pub(crate) use names::link_owner;
pub use op::LinkOp;
use planner::Planner;
pub use removal::StaleRecords;
use state::NetworkState;
pub use users::disconnected_links;

#[derive(Debug, Default)]
pub(super) struct NetworkPlan {
    pub(super) changes: Vec<Change>,
    pub(super) faults: Vec<Fault>,
    pub(super) states: Vec<NetworkState>,
    pub(super) stale_records: StaleRecords,
    pub(super) records_to_adopt: BTreeMap<String, NetworkRecord>,
}

pub(super) fn plan(input: Input) -> NetworkPlan {
    if input.unparsed.parts.contains(&SpecPart::Networks) {
        // The spec of the networks cannot be read, so the desired state is unknown: existing links stay, and no
        // original value is restored.
        return NetworkPlan::default();
    }
    if input.facts.links.is_incomplete {
        // If the kernel's list of links is incomplete, it is unknown which links are in use, and which links carry
        // the host's own traffic.
        return NetworkPlan::default();
    }
    let desired = desired::read_networks(input);
    let mut plan = NetworkPlan::default();
    for network in &desired.networks {
        if input.unparsed.networks.contains(network.name) {
            continue;
        }
        let mut planner = Planner::new(input, network);
        planner.plan();
        plan.states.push(state::network_state(network, &planner));
        if let Some(record) = planner.record_to_adopt() {
            plan.records_to_adopt.insert(network.name.to_owned(), record);
        }
        plan.changes.extend(planner.changes);
    }
    for (network, reason) in &desired.frozen_networks {
        plan.states.push(state::frozen_state(input, network, reason));
    }
    for network in &input.unparsed.networks {
        if !desired.frozen_networks.contains_key(network) {
            plan.states.push(state::frozen_state(
                input,
                network,
                "the spec of the network has a fault",
            ));
        }
    }
    let (changes, stale_records) = removal::plan_removals(input, &desired);
    plan.changes.extend(changes);
    plan.stale_records = stale_records;
    let allow_removal = desired.frozen_networks.is_empty() && input.unparsed.networks.is_empty();
    let sources = source_guard::desired_sources(input, &desired, !allow_removal);
    let guard = server_guard::desired_guard(input, &desired, sources, !allow_removal);
    let filter = filter::plan_filter(input, &plan.changes, guard, allow_removal);
    plan.stale_records.is_filter_stale = filter.is_none() && filter::is_recorded_but_absent(input);
    plan.changes.extend(filter);
    plan.faults = desired.faults;
    plan.changes.sort_by_key(|change| change.link_action().map(|action| action.stage));
    plan
}
