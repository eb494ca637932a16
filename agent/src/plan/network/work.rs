//! Work on links, as a change has it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::op::LinkOp;
use berth_host_facts::ledger::MadeFilter;

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

/// Work on links.
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
    /// Work on the rules that drop guests' control frames.
    pub filter: Option<FilterWork>,
}

/// Work on the rules that drop guests' control frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterWork {
    /// Makes the table, or makes it again from scratch.
    Replace(MadeFilter),
    /// Deletes it.
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

    /// Returns true if guests could send frames by the links that it makes.
    #[must_use]
    pub fn needs_filter(&self) -> bool {
        let opens = |op: &LinkOp| {
            matches!(op, LinkOp::Make(_) | LinkOp::Join { .. } | LinkOp::AddVlans { .. })
        };
        self.ops.iter().any(opens)
    }

    /// Returns the uplink that becomes a port, and the bridge.
    #[must_use]
    pub fn joins(&self) -> Option<(&LinkName, &LinkName)> {
        self.ops.iter().find_map(|op| match op {
            LinkOp::Join { port, bridge } => Some((port, bridge)),
            _ => None,
        })
    }
}
