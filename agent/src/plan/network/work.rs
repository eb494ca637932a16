//! Work on links that a change contains.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::op::LinkOp;
use berth_host_facts::ledger::FilterRecord;

/// Stage of a change. A change is made after the changes that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Rules that drop control frames of guests, before any link that guests use exists.
    Filter,
    /// Shared bridges.
    Bridges,
    /// Uplinks of shared bridges.
    Uplinks,
    /// Handovers from one uplink of a shared bridge to another.
    Handovers,
    /// VLANs and links of tenants, many in one message.
    Tenants,
    /// Removals, one after the other with pauses, so that other programs get the kernel's lock in
    /// between.
    Removals,
}

/// Work on links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkWork {
    /// The host network.
    pub network: String,
    /// Stage in which the work is done.
    pub stage: Stage,
    /// The steps, in order.
    pub ops: Vec<LinkOp>,
    /// The settings that the network is made from; empty for removals.
    pub settings: Option<String>,
    /// Tenants that are in place after the change.
    pub made: BTreeMap<u32, String>,
    /// Tenants that are removed by the change.
    pub gone: BTreeSet<u32>,
    /// True if the host's own traffic may be lost by the change, which is then made on trial.
    pub trial: bool,
    /// True if attached links may lose the network by the change. Otherwise each step that removes something is
    /// blocked if links are attached by then.
    pub may_disrupt: bool,
    /// Steps that restore the previous links, if a step fails after another step removed something. Each of them
    /// is tried, even if others fail.
    pub undo: Vec<LinkOp>,
    /// The network's uplink after the change.
    pub uplink: Option<LinkName>,
    /// True if another change completes this change, so that no tenant is in place after this
    /// change alone.
    pub interim: bool,
    /// Work on the rules that drop guests' control frames.
    pub filter: Option<FilterWork>,
}

/// Work on the rules that drop guests' control frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterWork {
    /// Creates the table, or replaces it.
    Replace(FilterRecord),
    /// Deletes the table.
    Delete,
}

impl LinkWork {
    pub(super) fn new(network: &str, stage: Stage, ops: Vec<LinkOp>) -> Self {
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

    /// Returns true if guests could send frames through the links that this work creates.
    #[must_use]
    pub fn needs_filter(&self) -> bool {
        let opens = |op: &LinkOp| {
            matches!(op, LinkOp::Make(_) | LinkOp::Join { .. } | LinkOp::AddVlans { .. })
        };
        self.ops.iter().any(opens)
    }

    /// Returns the uplink that becomes a port, and its bridge.
    #[must_use]
    pub fn joins(&self) -> Option<(&LinkName, &LinkName)> {
        self.ops.iter().find_map(|op| match op {
            LinkOp::Join { port, bridge } => Some((port, bridge)),
            _ => None,
        })
    }
}
