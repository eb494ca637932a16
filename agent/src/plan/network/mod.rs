//! Tenant networks: from what the spec asks and the links there are to changes in an operator's words.
//!
//! A link is Berth's if its alias says so; others are never changed, but for an uplink that becomes a port of
//! our bridge. What is wrong with one network holds up that network alone.

mod diff;
mod removal;
pub mod state;
mod tenants;
mod uplink;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::{LinkName, VlanSet};

use super::{Action, Change, Disruption, Input, Why};
use crate::ledger::MadeNetwork;
use crate::manifest::{Fault, Part};
use crate::observe::links::Links;
pub use diff::holds;
pub(crate) use diff::{ARP_IGNORE_ALL, RP_FILTER_STRICT};
use state::NetworkState;
use wanted::{Network, Wanted};
pub use wanted::{WantedKind, WantedLink};

/// The group of all links that Berth makes, for `ip link show group`. The alias says whose they are; the group
/// is set in the same moment as the link is made, the alias just after.
pub const LINK_GROUP: u32 = 0xBE27;

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
    /// Shared bridges.
    Bridges,
    /// Their uplinks.
    Uplinks,
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
}

/// What need no longer be remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forget {
    /// Uplinks that are as they were found, or gone.
    pub uplinks: Vec<LinkName>,
    /// Networks of which nothing is left.
    pub networks: Vec<String>,
}

impl Forget {
    /// Whether there is nothing to forget.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.uplinks.is_empty() && self.networks.is_empty()
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

/// Plans one network.
struct Planner<'a> {
    input: Input<'a>,
    links: &'a Links,
    network: &'a Network<'a>,
    changes: Vec<Change>,
    /// Why no tenant of it can be in place.
    down: Option<String>,
    /// Tenants that cannot be made, by id, and why.
    failed: BTreeMap<u32, String>,
    /// Tenants that are not in place yet, by id.
    pending: BTreeSet<u32>,
    /// Tenants that cannot be begun yet, by id, and what for.
    waits: BTreeMap<u32, String>,
    /// VLAN links on the uplink by id: they get that VLAN's frames before any bridge does.
    thieves: BTreeMap<u16, &'a crate::observe::links::Link>,
}

impl<'a> Planner<'a> {
    fn new(input: Input<'a>, network: &'a Network<'a>) -> Self {
        Self {
            input,
            links: &input.facts.links,
            network,
            changes: Vec::new(),
            down: None,
            failed: BTreeMap::new(),
            pending: BTreeSet::new(),
            waits: BTreeMap::new(),
            thieves: input
                .facts
                .links
                .stacked_on(&network.uplink.name)
                .filter_map(|link| Some((link.vlan?, link)))
                .collect(),
        }
    }

    fn plan(&mut self) {
        use berth_api::infra_node::NetworkScenario as Scenario;
        if let Some(why) = self.uplink_in_use() {
            let uplink = &self.network.uplink.name;
            let what = format!("take {uplink} for network {}", self.network.name);
            self.push(Stage::Uplinks, what, "in use", "free", Vec::new());
            self.block(why);
            return;
        }
        match self.network.scenario {
            Scenario::VlanAwareBridge => self.shared_bridge(),
            Scenario::BridgePerTenant => {
                self.raise_uplink();
                self.tenants();
            }
            Scenario::Vxlan => self.tenants(),
            Scenario::SriovVf => self.raise_uplink(),
        }
        if self.down.is_none() {
            self.down = uplink::out_of_order(self.network.uplink);
        }
    }

    /// One bridge, its uplink, and a VLAN on it for every tenant.
    fn shared_bridge(&mut self) {
        let Some(bridge) = &self.network.bridge else { return };
        if !self.link_change(bridge) {
            return;
        }
        let uplink = self.network.uplink;
        if uplink.master.as_ref() != Some(&bridge.name) && !self.join(&bridge.name) {
            return;
        }
        self.vlans(&bridge.name);
    }

    /// The shared bridge itself. `false` if it cannot be.
    fn link_change(&mut self, wanted: &WantedLink) -> bool {
        let network = self.network.name;
        let Some(link) = self.links.named(&wanted.name) else {
            let what = format!("make bridge {} for network {network}", wanted.name);
            let ops = vec![LinkOp::Make(wanted.clone())];
            self.push(Stage::Bridges, what, "absent", &wanted.describe(), ops);
            return true;
        };
        if let Some(why) = diff::not_ours(link, wanted) {
            let what = format!("make bridge {} for network {network}", wanted.name);
            self.push(Stage::Bridges, what, "another's", &wanted.describe(), Vec::new());
            self.block(why);
            return false;
        }
        let differences = diff::differences(wanted, link);
        if let Some(words) = diff::words(&differences) {
            let ops = diff::mend(wanted, link);
            self.push(
                Stage::Bridges,
                format!("set {}: {words}", wanted.name),
                "otherwise",
                &words,
                ops,
            );
        }
        true
    }

    /// Makes the uplink a port of the bridge. `false` if it may not be.
    fn join(&mut self, bridge: &LinkName) -> bool {
        let uplink = self.network.uplink;
        let what = format!("make {} a port of {bridge}", uplink.name);
        let mut ops = Vec::new();
        if uplink.up == Some(false) {
            ops.push(LinkOp::Up(uplink.name.clone()));
        }
        // Two ways out of one bridge would be a loop.
        for other in self.other_uplinks(bridge) {
            ops.push(LinkOp::Leave { port: other, bridge: bridge.clone() });
        }
        ops.push(LinkOp::Join { port: uplink.name.clone(), bridge: bridge.clone() });
        let was =
            uplink.master.as_ref().map_or_else(|| "no port".to_owned(), |m| format!("port of {m}"));
        let carries = uplink::carries(self.links, uplink);
        self.push(Stage::Uplinks, what, &was, &format!("port of {bridge}"), ops);
        let Some(carries) = carries else { return true };
        let trial = self.made().and_then(|made| made.trial.as_ref());
        let why = if !self.network.allow_management {
            format!(
                "{carries}. As a port of a bridge {0} answers for no address of its own. Take another uplink or \
                 scenario BridgePerTenant, or say uplink.allowManagement: true, and it is tried and taken back if the \
                 gateway is lost",
                uplink.name
            )
        } else if let Some((_, why)) =
            trial.filter(|(settings, _)| *settings == self.network.settings)
        {
            format!("{why}. `berth-agent apply` tries it again")
        } else {
            if let Some(change) = self.changes.last_mut() {
                change.disruption = Disruption::High;
                change.effect = format!("on trial, as {carries}: undone if the gateway is lost");
                if let Action::Links(work) = &mut change.action {
                    work.trial = true;
                }
            }
            return true;
        };
        // The bridge is of no use then.
        self.changes.clear();
        self.push(
            Stage::Uplinks,
            format!("make {} a port of {bridge}", uplink.name),
            &was,
            "port",
            Vec::new(),
        );
        self.block(why);
        false
    }

    /// Why the uplink is not free: another bridge of ours has it, with VMs that would lose their network.
    fn uplink_in_use(&self) -> Option<String> {
        let uplink = self.network.uplink;
        let wanted = self.network.bridge.as_ref().map(|bridge| &bridge.name);
        let master = uplink.master.as_ref().filter(|master| Some(*master) != wanted)?;
        let ports: Vec<&str> = self
            .links
            .ports(master)
            .filter(|port| port.name != uplink.name)
            .map(|port| port.name.as_str())
            .collect();
        (!ports.is_empty()).then(|| {
            format!("{} is the uplink of {master}, {}", uplink.name, removal::in_use(&ports))
        })
    }

    /// An uplink that is never enslaved must be up for its VLAN links to be.
    fn raise_uplink(&mut self) {
        let uplink = &self.network.uplink;
        if uplink.up == Some(false) {
            let ops = vec![LinkOp::Up(uplink.name.clone())];
            let what = format!("set {} up", uplink.name);
            self.push(Stage::Uplinks, what, "down", "up", ops);
        }
    }

    /// Ports of our bridge that were its uplink, and no longer are.
    fn other_uplinks(&self, bridge: &LinkName) -> Vec<LinkName> {
        let known = self.made().and_then(|made| made.uplink.as_ref());
        let was_uplink = |port: &&crate::observe::links::Link| {
            known.map_or_else(|| port.is_uplink(), |known| *known == port.name)
        };
        let others = self.links.ports(bridge).filter(|port| port.name != self.network.uplink.name);
        others.filter(was_uplink).map(|port| port.name.clone()).collect()
    }

    /// What Berth remembers of this network.
    fn made(&self) -> Option<&'a crate::ledger::MadeNetwork> {
        self.input.facts.ledger.networks.get(self.network.name)
    }

    /// What is in place and not remembered so: by a process that was killed before it could, or from before the
    /// wish was what it is now.
    fn adopted(&self) -> Option<MadeNetwork> {
        let not_yet =
            |change: &Change| change.links().is_some_and(|work| work.stage < Stage::Tenants);
        if self.down.is_some() || self.changes.iter().any(not_yet) {
            return None;
        }
        let mut now = self.made().cloned().unwrap_or_default();
        if now.settings != self.network.settings {
            now = MadeNetwork { settings: self.network.settings.clone(), ..MadeNetwork::default() };
        }
        if self.network.bridge.is_some() {
            now.uplink = Some(self.network.uplink.name.clone());
        }
        for tenant in &self.network.tenants {
            let not = self.pending.contains(&tenant.id)
                || self.failed.contains_key(&tenant.id)
                || self.waits.contains_key(&tenant.id);
            if !not {
                now.tenants.insert(tenant.id, tenant.name.to_owned());
            }
        }
        (self.made() != Some(&now)).then_some(now)
    }

    /// Whether the network was made as it is asked for now: what is otherwise is then drift.
    fn was_made(&self) -> bool {
        self.made().is_some_and(|made| made.settings == self.network.settings)
    }

    /// Whether this tenant was in place already.
    fn had(&self, id: u32, tenant: &str) -> bool {
        let known = self.made().and_then(|made| made.tenants.get(&id));
        self.was_made() && known.is_some_and(|known| known == tenant)
    }

    fn push(&mut self, stage: Stage, what: String, was: &str, will_be: &str, ops: Vec<LinkOp>) {
        let drift = self.was_made() && stage != Stage::Tenants;
        let work = LinkWork {
            network: self.network.name.to_owned(),
            stage,
            ops,
            settings: Some(self.network.settings.clone()),
            made: BTreeMap::new(),
            gone: BTreeSet::new(),
            trial: false,
        };
        self.changes.push(change(what, was, will_be, Why::Asked, work));
        if drift {
            self.is_drift();
        }
    }

    /// Says that the last change undoes what somebody else did; with `enforce: false` that is not done.
    fn is_drift(&mut self) {
        let left = self.input.spec.enforce == Some(false);
        if let Some(change) = self.changes.last_mut() {
            change.drift = true;
            if left {
                change.blocked.get_or_insert_with(|| {
                    "somebody changed it after Berth had set it, and spec.enforce is false"
                        .to_owned()
                });
            }
        }
    }

    /// Says why the last change cannot be made, and that no tenant of the network can be in place without.
    fn block(&mut self, why: String) {
        self.down = Some(why.clone());
        if let Some(change) = self.changes.last_mut() {
            change.blocked = Some(why);
        }
    }
}

fn change(what: String, was: &str, will_be: &str, why: Why, work: LinkWork) -> Change {
    Change {
        what,
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
