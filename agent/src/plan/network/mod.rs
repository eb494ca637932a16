//! Tenant networks: from what the spec asks and the links there are to changes in an operator's words.
//!
//! A link is Berth's if its alias says so; others are never changed, but for an uplink that becomes a port of
//! our bridge. What is wrong with one network holds up that network alone.

mod diff;
pub mod difference;
pub mod filter;
mod handover;
pub mod id;
mod link_change;
pub mod mismatch;
mod names;
mod op;
mod planner;
mod refusal;
pub(super) mod removal;
pub mod state;
mod tenants;
mod uplink;
mod users;
mod wanted;
mod wire;
pub(super) mod work;

use std::collections::BTreeMap;

use super::change::Change;
use super::input::Input;
use crate::manifest::{Fault, Part};
use berth_host_facts::ledger::MadeNetwork;
pub use diff::holds;
pub(crate) use diff::{ARP_IGNORE_ALL, RP_FILTER_STRICT};
pub use names::LINK_GROUP;
pub use op::LinkOp;
use planner::Planner;
pub use removal::Forget;
use state::NetworkState;
pub use users::users;
pub use wanted::{WantedKind, WantedLink};
pub use work::{FilterWork, LinkWork, Stage};

/// What came of planning.
#[derive(Debug, Default)]
pub(super) struct NetworkPlan {
    pub(super) changes: Vec<Change>,
    pub(super) faults: Vec<Fault>,
    pub(super) states: Vec<NetworkState>,
    pub(super) forget: Forget,
    pub(super) adopt: BTreeMap<String, MadeNetwork>,
}

/// Plans all networks.
pub(super) fn plan(input: Input) -> NetworkPlan {
    if input.unclear.parts.contains(&Part::Networks) {
        // What is asked for is not known, so nothing is put back; and what is in place goes on.
        return NetworkPlan::default();
    }
    if input.facts.links.incomplete {
        // Without the kernel's own words nobody knows what is in use, or what carries the host.
        return NetworkPlan::default();
    }
    let wanted = wanted::read(input);
    let mut plan = NetworkPlan::default();
    for network in &wanted.networks {
        if input.unclear.networks.contains(network.name) {
            continue;
        }
        let mut planner = Planner::new(input, network);
        planner.plan();
        plan.states.push(state::of(network, &planner));
        if let Some(made) = planner.adopted() {
            plan.adopt.insert(network.name.to_owned(), made);
        }
        plan.changes.extend(planner.changes);
    }
    for (network, why) in &wanted.frozen {
        plan.states.push(state::of_frozen(input, network, why));
    }
    for network in &input.unclear.networks {
        if !wanted.frozen.contains_key(network) {
            plan.states.push(state::of_frozen(input, network, "its spec has a fault"));
        }
    }
    let (changes, forget) = removal::plan(input, &wanted);
    plan.changes.extend(changes);
    plan.forget = forget;
    let all_clear = wanted.frozen.is_empty() && input.unclear.networks.is_empty();
    let filter = filter::plan(input, &plan.changes, all_clear);
    plan.forget.filter = filter.is_none() && filter::is_gone(input);
    plan.changes.extend(filter);
    plan.faults = wanted.faults;
    plan.changes.sort_by_key(|change| change.links().map(|work| work.stage));
    plan
}
