//! Plans one host network: its shared bridge, its uplink, and its record in the rollback ledger.

use std::collections::{BTreeMap, BTreeSet};

use super::action::{LinkAction, Stage};
use super::desired_link::DesiredLink;
use super::desired_network::DesiredNetwork;
use super::difference::DifferenceList;
use super::id::LinkChangeId;
use super::link_change::{NOT_ENFORCED_REASON, new_link_change};
use super::op::LinkOp;
use super::refusal::DisruptionRefused;
use super::scenario::{Scenario, SharedBridge};
use super::{diff, removal, uplink, users};
use crate::plan::change::{Action, Change, ChangeReason, Disruption};
use crate::plan::input::Input;
use berth_host_facts::ledger::NetworkRecord;
use berth_host_facts::links::{Link, Links};

/// Planner of one network.
pub(super) struct Planner<'a> {
    pub(super) input: Input<'a>,
    pub(super) links: &'a Links,
    pub(super) network: &'a DesiredNetwork<'a>,
    pub(super) changes: Vec<Change>,
    /// Reason why no tenant of the network is connected.
    pub(super) network_failure: Option<String>,
    /// Tenants whose links cannot be created, by VLAN ID or VNI, with the reason.
    pub(super) failed_tenants: BTreeMap<u32, String>,
    /// Tenants that are in place only after the planned changes are applied, by VLAN ID or VNI.
    pub(super) pending_tenants: BTreeSet<u32>,
    /// Tenants whose changes must wait, for example for the removal of another link, by VLAN ID or VNI, with the
    /// reason.
    pub(super) waiting_tenants: BTreeMap<u32, String>,
    /// VLAN links that are stacked on the uplink, by VLAN ID. The kernel delivers a frame to such a link before it
    /// delivers the frame to a bridge.
    pub(super) competing_links: BTreeMap<u16, &'a Link>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(input: Input<'a>, network: &'a DesiredNetwork<'a>) -> Self {
        Self {
            input,
            links: &input.facts.links,
            network,
            changes: Vec::new(),
            network_failure: None,
            failed_tenants: BTreeMap::new(),
            pending_tenants: BTreeSet::new(),
            waiting_tenants: BTreeMap::new(),
            competing_links: input
                .facts
                .links
                .links_stacked_on(&network.uplink.name)
                .filter_map(|link| Some((link.vlan?, link)))
                .collect(),
        }
    }

    pub(super) fn plan(&mut self) {
        if let Some(reason) = self.uplink_in_use_reason() {
            let uplink = &self.network.uplink.name;
            let network = self.network.name.to_owned();
            let id = LinkChangeId::DetachUplink { uplink: uplink.clone(), network };
            self.add_change(Stage::Uplinks, id, "in use", "free", Vec::new());
            self.block_last_change(reason);
            return;
        }
        match &self.network.scenario {
            Scenario::VlanAwareBridge(bridge) => self.plan_shared_bridge(bridge),
            Scenario::BridgePerTenant(_) => {
                self.set_uplink_up();
                self.plan_tenants();
            }
            Scenario::Vxlan { .. } => self.plan_tenants(),
            Scenario::SriovVf => self.set_uplink_up(),
        }
        if self.network_failure.is_none() {
            self.network_failure = uplink::carrier_fault(self.network.uplink);
        }
    }

    /// Plans the shared bridge, its uplink, and a VLAN on the uplink for every tenant.
    fn plan_shared_bridge(&mut self, shared: &SharedBridge) {
        let bridge = &shared.link;
        if !self.plan_bridge_link(bridge) {
            return;
        }
        let uplink = self.network.uplink;
        let handover = self.find_handover(&bridge.name);
        if let Some(handover) = &handover
            && let Some(refusal) =
                self.disruption_refusal(&handover.disconnected_links, &handover.operation)
        {
            self.add_change(
                Stage::Handovers,
                handover.id.clone(),
                &handover.previous_uplink_names,
                uplink.name.as_str(),
                Vec::new(),
            );
            self.block_last_change(refusal.to_string());
            return;
        }
        let joined = uplink.master.as_ref() == Some(&bridge.name);
        if !joined && !self.plan_join(shared, handover.is_some()) {
            return;
        }
        let taken_over = handover.map(|handover| self.plan_handover(handover)).unwrap_or_default();
        self.plan_vlans(&bridge.name, &taken_over);
    }

    /// Plans the link of the shared bridge. Returns `false` if a link with the bridge's name exists and cannot be
    /// used.
    fn plan_bridge_link(&mut self, desired: &DesiredLink) -> bool {
        let create_id = || LinkChangeId::CreateBridge {
            bridge: desired.name.clone(),
            network: self.network.name.to_owned(),
        };
        let Some(link) = self.links.find_by_name(&desired.name) else {
            let ops = vec![LinkOp::Create(desired.clone())];
            self.add_change(Stage::Bridges, create_id(), "absent", &desired.describe(), ops);
            return true;
        };
        if let Some(error) = diff::unusable_link(link, desired) {
            self.add_change(
                Stage::Bridges,
                create_id(),
                "link of another program",
                &desired.describe(),
                Vec::new(),
            );
            self.block_last_change(error.to_string());
            return false;
        }
        let differences = diff::find_differences(desired, link);
        if !differences.is_empty() {
            let ops = diff::repair_ops(desired, link);
            let words = DifferenceList(&differences).to_string();
            let id = LinkChangeId::SetLink { link: desired.name.clone(), differences };
            self.add_change(Stage::Bridges, id, "different", &words, ops);
        }
        true
    }

    /// Plans the step that makes the uplink a port of the bridge. Returns `false` if the uplink must not become a
    /// port. If the bridge has another uplink (`handed_over`), a handover is planned next. Until the handover the
    /// new port carries no VLAN, so no loop is possible, and no traffic is lost if the new uplink cannot become a
    /// port.
    fn plan_join(&mut self, shared: &SharedBridge, handed_over: bool) -> bool {
        let bridge = &shared.link.name;
        let uplink = self.network.uplink;
        let id = LinkChangeId::JoinBridge { port: uplink.name.clone(), bridge: bridge.clone() };
        let mut ops = Vec::new();
        if uplink.is_up == Some(false) {
            ops.push(LinkOp::Up(uplink.name.clone()));
        }
        ops.push(LinkOp::Join { port: uplink.name.clone(), bridge: bridge.clone() });
        let was =
            uplink.master.as_ref().map_or_else(|| "no port".to_owned(), |m| format!("port of {m}"));
        let host_traffic = uplink::describe_host_traffic(self.links, uplink);
        self.add_change(Stage::Uplinks, id.clone(), &was, &format!("port of {bridge}"), ops);
        if let Some(action) = self.last_action() {
            action.is_interim = handed_over;
            action.uplink = (!handed_over).then(|| uplink.name.clone());
        }
        // The change is blocked, because it corrects drift and `spec.enforce` is false.
        if let Some(reason) = self.changes.last().and_then(|change| change.blocked.clone()) {
            self.network_failure = Some(reason);
            return false;
        }
        let Some(host_traffic) = host_traffic else { return true };
        let trial = self.ledger_record().and_then(|record| record.failed_trial.as_ref());
        let reason = if !shared.allow_management {
            format!(
                "{host_traffic}. As a port of a bridge {0} does not answer for its IP addresses. Use another uplink or \
                 scenario BridgePerTenant, or set uplink.allowManagement: true: the change is then applied as a trial, and is rolled back if the \
                 gateway does not answer",
                uplink.name
            )
        } else if let Some((_, message)) =
            trial.filter(|(settings, _)| *settings == self.network.settings)
        {
            format!("{message}. Run `berth-agent apply` to retry")
        } else {
            if let Some(change) = self.changes.last_mut() {
                change.disruption = Disruption::High;
                change.effect = format!(
                    "applied as a trial, because {host_traffic}: the change is rolled back if the gateway or the API server does not answer"
                );
            }
            if let Some(action) = self.last_action() {
                action.on_trial = true;
            }
            return true;
        };
        // The bridge is useless without an uplink, so the planned changes of the bridge are dropped.
        self.changes.clear();
        self.add_change(Stage::Uplinks, id, &was, "port", Vec::new());
        self.block_last_change(reason);
        false
    }

    /// Returns the reason to block a change that would disconnect `attached_links`; `None` if no link is attached,
    /// or if the spec has `allowDisruption: true`. `operation` is a text that describes the change.
    pub(super) fn disruption_refusal(
        &self,
        attached_links: &BTreeSet<String>,
        operation: &str,
    ) -> Option<DisruptionRefused> {
        if attached_links.is_empty() || self.network.allow_disruption {
            return None;
        }
        let (attached_links, operation) = (attached_links.clone(), operation.to_owned());
        Some(DisruptionRefused { attached_links, operation, network: self.network.name.to_owned() })
    }

    /// Records in the last change that the change disconnects `attached_links`.
    pub(super) fn record_disruption(&mut self, attached_links: &BTreeSet<String>, operation: &str) {
        if attached_links.is_empty() {
            return;
        }
        if let Some(change) = self.changes.last_mut() {
            change.disruption = Disruption::High;
            change.effect = format!(
                "{} will lose the network while {operation}",
                removal::format_links(attached_links)
            );
        }
        if let Some(action) = self.last_action() {
            action.may_disrupt = true;
        }
    }

    /// Returns the reason why the uplink cannot be used: it is a port of another bridge, and the VMs of that bridge
    /// would lose their network. `None` if the uplink can be used.
    fn uplink_in_use_reason(&self) -> Option<String> {
        let uplink = self.network.uplink;
        let desired = self.network.scenario.shared_bridge().map(|bridge| &bridge.link.name);
        let master = uplink.master.as_ref().filter(|master| Some(*master) != desired)?;
        let master = self.links.find_by_name(master)?;
        let mut users = users::attached_links(self.links, master);
        users.remove(uplink.name.as_str());
        (!users.is_empty()).then(|| {
            format!(
                "{} is the uplink of {}, {}",
                uplink.name,
                master.name,
                removal::in_use_message(&users)
            )
        })
    }

    /// Sets up the uplink of a scenario without a shared bridge: VLAN links and virtual functions carry frames only
    /// while the uplink is up.
    fn set_uplink_up(&mut self) {
        let uplink = &self.network.uplink;
        if uplink.is_up == Some(false) {
            let ops = vec![LinkOp::Up(uplink.name.clone())];
            let id = LinkChangeId::SetUp(uplink.name.clone());
            self.add_change(Stage::Uplinks, id, "down", "up", ops);
        }
    }

    /// Returns the record of this network in the rollback ledger.
    pub(super) fn ledger_record(&self) -> Option<&'a NetworkRecord> {
        self.input.facts.ledger.networks.get(self.network.name)
    }

    /// Returns the record to add to the rollback ledger for a network that is in place but not recorded: the agent
    /// was killed before it could record the network, or the new spec describes links that were already in place.
    pub(super) fn record_to_adopt(&self) -> Option<NetworkRecord> {
        let is_uncommitted = |change: &Change| {
            change.link_action().is_some_and(|action| action.stage < Stage::Tenants)
        };
        if self.network_failure.is_some() || self.changes.iter().any(is_uncommitted) {
            return None;
        }
        let mut record = self.ledger_record().cloned().unwrap_or_default();
        if record.settings != self.network.settings {
            record = NetworkRecord {
                settings: self.network.settings.clone(),
                ..NetworkRecord::default()
            };
        }
        if self.network.scenario.shared_bridge().is_some() {
            record.uplink = Some(self.network.uplink.name.clone());
            record.joining_uplinks.clear();
        }
        for tenant in &self.network.tenants {
            let not_ready = self.pending_tenants.contains(&tenant.segment_number())
                || self.failed_tenants.contains_key(&tenant.segment_number())
                || self.waiting_tenants.contains_key(&tenant.segment_number());
            if !not_ready {
                record.tenants.insert(tenant.segment_number(), tenant.name.to_owned());
            }
        }
        (self.ledger_record() != Some(&record)).then_some(record)
    }

    /// Returns true if the rollback ledger records the network with the current settings of the spec, so that any
    /// difference is drift.
    pub(super) fn has_recorded_settings(&self) -> bool {
        self.ledger_record().is_some_and(|record| record.settings == self.network.settings)
    }

    /// Returns true if the rollback ledger records this tenant with this id, for the current settings of the network.
    pub(super) fn is_recorded_tenant(&self, id: u32, tenant: &str) -> bool {
        let known = self.ledger_record().and_then(|record| record.tenants.get(&id));
        self.has_recorded_settings() && known.is_some_and(|known| known == tenant)
    }

    pub(super) fn add_change(
        &mut self,
        stage: Stage,
        id: LinkChangeId,
        was: &str,
        will_be: &str,
        ops: Vec<LinkOp>,
    ) {
        // A new uplink changes the settings of the network, so a handover is never drift.
        let drift =
            self.has_recorded_settings() && stage != Stage::Tenants && stage != Stage::Handovers;
        let mut action = LinkAction::new(self.network.name, stage, ops);
        action.settings = Some(self.network.settings.clone());
        self.changes.push(new_link_change(id, was, will_be, ChangeReason::Spec, action));
        if drift {
            self.mark_as_drift();
        }
    }

    /// Adds a change of tenants that is blocked for this reason.
    pub(super) fn add_blocked_change(
        &mut self,
        id: LinkChangeId,
        was: &str,
        will_be: &str,
        reason: String,
    ) {
        self.add_change(Stage::Tenants, id, was, will_be, Vec::new());
        if let Some(change) = self.changes.last_mut() {
            change.blocked = Some(reason);
        }
    }

    /// Returns the [`LinkAction`] of the last change.
    pub(super) fn last_action(&mut self) -> Option<&mut LinkAction> {
        match &mut self.changes.last_mut()?.action {
            Action::Links(action) => Some(action),
            _ => None,
        }
    }

    /// Marks the last change as a correction of drift. With `spec.enforce: false` this also blocks the change.
    pub(super) fn mark_as_drift(&mut self) {
        let enforcement_off = self.input.spec.enforce == Some(false);
        if let Some(change) = self.changes.last_mut() {
            change.drift = true;
            if enforcement_off {
                change.blocked.get_or_insert_with(|| NOT_ENFORCED_REASON.to_owned());
            }
        }
    }

    /// Blocks the last change, and records the reason in `network_failure`.
    fn block_last_change(&mut self, reason: String) {
        self.network_failure = Some(reason.clone());
        if let Some(change) = self.changes.last_mut() {
            change.blocked = Some(reason);
        }
    }
}
