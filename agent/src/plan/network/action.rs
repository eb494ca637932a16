//! Steps on links that a change contains.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::op::LinkOp;
use berth_host_facts::ledger::{FilterRecord, GuardRecord};

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
    /// Removals, one after the other with waits, so that other programs can acquire the kernel's lock for links
    /// (RTNL) between them.
    Removals,
}

/// Steps on links, and the data that the rollback ledger records after the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAction {
    /// The host network.
    pub network: String,
    /// Stage in which the steps are applied.
    pub stage: Stage,
    /// The steps, in order.
    pub ops: Vec<LinkOp>,
    /// Settings from which the links of the network are created; `None` for removals and for the nftables table.
    pub settings: Option<String>,
    /// Names of the tenants that are in place after the change, by VLAN id or VNI.
    pub added_tenants: BTreeMap<u32, String>,
    /// VLAN ids or VNIs of the tenants that the change removes.
    pub removed_tenants: BTreeSet<u32>,
    /// True if the change may interrupt the host's own traffic, and is therefore applied as a trial.
    pub on_trial: bool,
    /// True if the change may disconnect attached links. If false, a step is blocked if it would disconnect links that
    /// are attached at the time of the step.
    pub may_disrupt: bool,
    /// Steps that restore the previous links, if a step fails after another step may have disconnected links. If one of
    /// these rollback steps fails, the following rollback steps are still applied, unless the failed step may
    /// disconnect links.
    pub rollback_ops: Vec<LinkOp>,
    /// The network's uplink after the change; `None` if the change does not affect the uplink.
    pub uplink: Option<LinkName>,
    /// True if another change completes this change, so that no tenant is in place after this
    /// change alone.
    pub is_interim: bool,
    /// Change of the rules that drop guests' control frames; `None` if these rules stay as they are.
    pub filter: Option<FilterAction>,
}

/// Change of the nftables table with the rules that drop guests' control frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterAction {
    /// Creates the table, or replaces it.
    Replace(FilterRecord),
    /// Deletes the table.
    Delete,
}

impl FilterAction {
    /// Returns the same table without the rules against DHCP servers, routers and foreign addresses of VMs, for a kernel
    /// that does not support these rules; `None` if the table has no such rules.
    #[must_use]
    pub fn without_guard(&self) -> Option<Self> {
        let Self::Replace(filter) = self else { return None };
        let is_guarded = filter.guard.matches_bridges();
        let guard = GuardRecord { unsupported: true, ..filter.guard.clone() };
        let filter = FilterRecord { guard, ..filter.clone() };
        is_guarded.then_some(Self::Replace(filter))
    }
}

impl LinkAction {
    pub(super) fn new(network: &str, stage: Stage, ops: Vec<LinkOp>) -> Self {
        Self {
            network: network.to_owned(),
            stage,
            ops,
            settings: None,
            added_tenants: BTreeMap::new(),
            removed_tenants: BTreeSet::new(),
            on_trial: false,
            may_disrupt: false,
            rollback_ops: Vec::new(),
            uplink: None,
            is_interim: false,
            filter: None,
        }
    }

    /// Returns true if the steps create or connect links through which guests could send frames.
    #[must_use]
    pub fn needs_filter(&self) -> bool {
        let opens = |op: &LinkOp| {
            matches!(op, LinkOp::Create(_) | LinkOp::Join { .. } | LinkOp::AddVlans { .. })
        };
        self.ops.iter().any(opens)
    }

    /// Returns the link that becomes a port of a bridge, and the bridge; `None` if no link does.
    #[must_use]
    pub fn joined_uplink(&self) -> Option<(&LinkName, &LinkName)> {
        self.ops.iter().find_map(|op| match op {
            LinkOp::Join { port, bridge } => Some((port, bridge)),
            _ => None,
        })
    }
}
