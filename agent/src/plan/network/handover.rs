//! Moves a shared bridge from one uplink to another. During the handover, both uplinks are ports of the bridge, but
//! each VLAN is on only one uplink at a time: a VLAN on two uplinks of one bridge would be a loop.

use std::collections::BTreeSet;

use berth_api::{LinkName, VlanSet};

use super::action::Stage;
use super::id::LinkChangeId;
use super::op::LinkOp;
use super::planner::Planner;
use super::removal;
use super::users::disconnected_links;
use berth_host_facts::links::Link;

/// A handover of a shared bridge to another uplink.
pub(super) struct Handover {
    pub(super) id: LinkChangeId,
    pub(super) previous_uplink_names: String,
    ops: Vec<LinkOp>,
    rollback_ops: Vec<LinkOp>,
    /// All VLANs that the previous uplinks carry before the handover, and that the new uplink carries after it.
    vlans: VlanSet,
    /// Names of the links that are disconnected during the handover.
    pub(super) disconnected_links: BTreeSet<String>,
    /// Text for messages that describes the handover, such as `eth1 replaces eth0 as the uplink of br0`.
    pub(super) operation: String,
}

impl Planner<'_> {
    /// Returns the handover of the bridge from its current uplinks to the uplink of the spec; `None` if no other
    /// uplink is a port of the bridge.
    pub(super) fn find_handover(&self, bridge: &LinkName) -> Option<Handover> {
        let to = &self.network.uplink.name;
        let ports = self.links.ports_of(bridge).filter(|port| port.name != *to);
        let previous_uplinks: Vec<&Link> =
            ports.filter(|port| removal::is_uplink(self.ledger_record(), port)).collect();
        if previous_uplinks.is_empty() {
            return None;
        }
        let carried = |port: &Link| port.vlans.as_ref().map(|vlans| vlans.all.clone());
        let carried = |port: &Link| carried(port).unwrap_or_default();
        let vlans: VlanSet = previous_uplinks
            .iter()
            .flat_map(|port| carried(port).iter().collect::<Vec<_>>())
            .collect();
        let remove = |port: &LinkName, vlans: &VlanSet| {
            (!vlans.is_empty()).then(|| LinkOp::RemoveVlans {
                port: port.clone(),
                vlans: vlans.clone(),
                bridge_self: false,
            })
        };
        let add = |port: &LinkName, vlans: &VlanSet| {
            (!vlans.is_empty())
                .then(|| LinkOp::AddVlans { port: port.clone(), vlans: vlans.clone() })
        };
        let leave =
            |port: &&Link| LinkOp::Leave { port: port.name.clone(), bridge: bridge.clone() };
        let mut ops: Vec<LinkOp> =
            previous_uplinks.iter().filter_map(|port| remove(&port.name, &carried(port))).collect();
        ops.extend(add(to, &vlans));
        ops.extend(previous_uplinks.iter().map(leave));
        let mut undo: Vec<LinkOp> = remove(to, &vlans).into_iter().collect();
        undo.extend(previous_uplinks.iter().filter_map(|port| add(&port.name, &carried(port))));
        let disconnected_links =
            ops.iter().flat_map(|op| disconnected_links(op, self.links, &ops)).collect();
        let names: Vec<&str> = previous_uplinks.iter().map(|port| port.name.as_str()).collect();
        let from = names.join(", ");
        Some(Handover {
            id: LinkChangeId::MoveUplink {
                uplink: to.clone(),
                bridge: bridge.clone(),
                previous_uplinks: previous_uplinks.iter().map(|port| port.name.clone()).collect(),
            },
            operation: format!("{to} replaces {from} as the uplink of {bridge}"),
            previous_uplink_names: from,
            ops,
            rollback_ops: undo,
            vlans,
            disconnected_links,
        })
    }

    /// Plans the handover, and returns the VLANs that the new uplink carries after the handover.
    pub(super) fn plan_handover(&mut self, handover: Handover) -> VlanSet {
        let uplink = &self.network.uplink.name;
        let ops = handover.ops;
        self.add_change(
            Stage::Handovers,
            handover.id,
            &handover.previous_uplink_names,
            uplink.as_str(),
            ops,
        );
        self.record_disruption(&handover.disconnected_links, &handover.operation);
        // If the rollback ledger and the spec assign a VLAN to different tenants, the VLAN is recorded for the
        // tenant of the ledger.
        let mut owners =
            self.ledger_record().map(|record| record.tenants.clone()).unwrap_or_default();
        for tenant in &self.network.tenants {
            owners.entry(tenant.segment_number()).or_insert_with(|| tenant.name.to_owned());
        }
        owners.retain(|id, _| handover.vlans.iter().any(|vlan| u32::from(u16::from(vlan)) == *id));
        if let Some(action) = self.last_action() {
            action.rollback_ops = handover.rollback_ops;
            action.uplink = Some(uplink.clone());
            action.added_tenants = owners;
        }
        handover.vlans
    }
}
