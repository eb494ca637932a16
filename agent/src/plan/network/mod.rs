//! Tenant networks: from what the spec asks and the links there are to changes in an operator's words.
//!
//! A link is Berth's if its alias says so; others are never changed, but for an uplink that becomes a port of
//! our bridge. What is wrong with one network holds up that network alone.

mod diff;
pub mod difference;
pub mod filter;
mod handover;
pub mod id;
pub mod mismatch;
mod names;
mod planner;
mod refusal;
mod removal;
pub mod state;
mod tenants;
mod uplink;
mod users;
mod wanted;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::{LinkName, VlanSet};

use super::{Action, Change, ChangeId, Disruption, Input, Why};
use crate::manifest::{Fault, Part};
use berth_host_facts::ledger::{MadeFilter, MadeNetwork};
pub use diff::holds;
pub(crate) use diff::{ARP_IGNORE_ALL, RP_FILTER_STRICT};
use id::LinkChangeId;
use planner::Planner;
use state::NetworkState;
pub use users::users;
use wanted::Wanted;
pub use wanted::{WantedKind, WantedLink};

/// The group of all links that Berth makes, for `ip link show group`. The alias says whose they are; the group
/// is set in the same moment as the link is made, the alias just after.
pub const LINK_GROUP: u32 = 0xBE27;

/// Why drift is left.
const NOT_ENFORCED: &str = "somebody changed it after Berth had set it, and spec.enforce is false";

/// One step on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkOp {
    /// Makes it, and raises it last.
    Make(WantedLink),
    /// Makes what is there as it should be.
    Settle(WantedLink),
    /// Has a tenant's bridge no longer look at VLANs.
    Unfilter(LinkName),
    /// Takes addresses away.
    RemoveAddresses {
        /// From here.
        link: LinkName,
        /// With prefix length.
        addresses: Vec<String>,
    },
    /// Raises it.
    Up(LinkName),
    /// Lowers it.
    Down(LinkName),
    /// Makes it a port of a bridge.
    Join {
        /// The port.
        port: LinkName,
        /// The bridge.
        bridge: LinkName,
    },
    /// Makes it nobody's port.
    Leave {
        /// The port.
        port: LinkName,
        /// The bridge it was a port of.
        bridge: LinkName,
    },
    /// Lets a port carry VLANs, tagged.
    AddVlans {
        /// The port.
        port: LinkName,
        /// VLAN ids.
        vlans: VlanSet,
    },
    /// Lets a port, or the bridge itself, no longer carry VLANs.
    RemoveVlans {
        /// The port.
        port: LinkName,
        /// VLAN ids.
        vlans: VlanSet,
        /// Whether it is the bridge itself.
        itself: bool,
    },
    /// Changes where a tunnel sends what is for everybody.
    Peers {
        /// The VXLAN link.
        link: LinkName,
        /// New ends.
        add: BTreeSet<IpAddr>,
        /// Ends that are gone.
        remove: BTreeSet<IpAddr>,
    },
    /// Removes it, unless it is a bridge with ports.
    Remove(LinkName),
}

/// When a change is made: what stands on another is made after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The rules for what guests send, before there is anything to send by.
    Filter,
    /// Shared bridges.
    Bridges,
    /// Their uplinks.
    Uplinks,
    /// From one uplink of a shared bridge to another.
    Handovers,
    /// Tenants' VLANs and links, many in one message.
    Tenants,
    /// One link after the other, with pauses, so that others find the kernel's lock free in between.
    Removals,
}

/// What is done about links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkWork {
    /// The host network.
    pub network: String,
    /// When.
    pub stage: Stage,
    /// The steps, in order.
    pub ops: Vec<LinkOp>,
    /// By what the network is made; nothing for removals.
    pub settings: Option<String>,
    /// Tenants that are in place once it is done.
    pub made: BTreeMap<u32, String>,
    /// Tenants that are gone then.
    pub gone: BTreeSet<u32>,
    /// Whether the host's own traffic may be lost by it: then it is done on trial.
    pub trial: bool,
    /// Whether links that are attached may lose the network by it. Otherwise each step that takes something away is
    /// blocked if something is attached by then.
    pub may_disrupt: bool,
    /// Steps that restore what was there, for when a step fails after something was taken away. Each is tried, whatever
    /// becomes of the others.
    pub undo: Vec<LinkOp>,
    /// The network's uplink once it is done.
    pub uplink: Option<LinkName>,
    /// Whether another change completes it: then nothing is in place yet once it is done.
    pub interim: bool,
    /// What is done about the rules for what guests send.
    pub filter: Option<FilterWork>,
}

/// What is done about the rules for what guests send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterWork {
    /// Makes the table, or makes it again from scratch.
    Replace(MadeFilter),
    /// Deletes it.
    Delete,
}

/// What need no longer be remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forget {
    /// Uplinks that are as they were found, or gone.
    pub uplinks: Vec<LinkName>,
    /// Networks of which nothing is left.
    pub networks: Vec<String>,
    /// Whether the filter is gone.
    pub filter: bool,
}

impl LinkWork {
    fn new(network: &str, stage: Stage, ops: Vec<LinkOp>) -> Self {
        Self {
            network: network.to_owned(),
            stage,
            ops,
            settings: None,
            made: BTreeMap::new(),
            gone: BTreeSet::new(),
            trial: false,
            may_disrupt: false,
            undo: Vec::new(),
            uplink: None,
            interim: false,
            filter: None,
        }
    }

    /// Whether guests could send frames by what it makes.
    #[must_use]
    pub fn needs_filter(&self) -> bool {
        let opens = |op: &LinkOp| {
            matches!(op, LinkOp::Make(_) | LinkOp::Join { .. } | LinkOp::AddVlans { .. })
        };
        self.ops.iter().any(opens)
    }

    /// The uplink that becomes a port by it, and of which bridge.
    #[must_use]
    pub fn joins(&self) -> Option<(&LinkName, &LinkName)> {
        self.ops.iter().find_map(|op| match op {
            LinkOp::Join { port, bridge } => Some((port, bridge)),
            _ => None,
        })
    }
}

impl Forget {
    /// Whether there is nothing to forget.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.uplinks.is_empty() && self.networks.is_empty() && !self.filter
    }
}

/// What came of planning.
#[derive(Debug, Default)]
pub(super) struct NetworkPlan {
    pub(super) changes: Vec<Change>,
    pub(super) faults: Vec<Fault>,
    pub(super) states: Vec<NetworkState>,
    pub(super) forget: Forget,
    pub(super) adopt: BTreeMap<String, MadeNetwork>,
}

impl LinkOp {
    /// Whether links that are attached may lose the network by it.
    #[must_use]
    pub const fn takes_away(&self) -> bool {
        matches!(
            self,
            Self::Remove(_)
                | Self::Down(_)
                | Self::Leave { .. }
                | Self::Join { .. }
                | Self::RemoveVlans { itself: false, .. }
        )
    }

    /// The link it works on.
    #[must_use]
    pub const fn link(&self) -> &LinkName {
        match self {
            Self::Make(wanted) | Self::Settle(wanted) => &wanted.name,
            Self::RemoveAddresses { link, .. } | Self::Peers { link, .. } => link,
            Self::Up(link) | Self::Down(link) | Self::Remove(link) | Self::Unfilter(link) => link,
            Self::Join { port, .. }
            | Self::Leave { port, .. }
            | Self::AddVlans { port, .. }
            | Self::RemoveVlans { port, .. } => port,
        }
    }
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

impl Wanted<'_> {
    /// Whether nothing of this network may be changed.
    fn is_frozen(&self, input: Input, network: &str) -> bool {
        self.frozen.contains_key(network) || input.unclear.networks.contains(network)
    }
}

fn change(id: LinkChangeId, was: &str, will_be: &str, why: Why, work: LinkWork) -> Change {
    Change {
        id: ChangeId::Links(id),
        was: was.to_owned(),
        will_be: will_be.to_owned(),
        why,
        drift: false,
        disruption: Disruption::None,
        effect: String::new(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Links(work),
    }
}
