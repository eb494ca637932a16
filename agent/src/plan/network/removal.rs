//! Plans the removal of orphaned links: links that Berth created and that the spec no longer has. A link is removed
//! after the last VM has been detached from it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::action::{LinkAction, Stage};
use super::desired::DesiredNetworks;
use super::id::LinkChangeId;
use super::link_change::new_link_change;
use super::names::{LINK_GROUP, link_owner};
use super::op::LinkOp;
use super::users::disconnected_links;
use crate::plan::change::{Action, Change, ChangeReason};
use crate::plan::input::Input;
use berth_host_facts::ledger::NetworkRecord;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Maximum number of links that a message lists by name. Further links are only counted.
const MAX_LISTED_LINKS: usize = 4;

/// Records in the rollback ledger that are no longer needed, so that they can be deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaleRecords {
    /// Uplinks whose original state is restored, or that no longer exist.
    pub uplinks: Vec<LinkName>,
    /// Networks without any remaining link.
    pub networks: Vec<String>,
    /// True if the record of the nftables table is stale, because the table no longer exists.
    pub is_filter_stale: bool,
}

impl StaleRecords {
    /// Returns true if no record is stale.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.uplinks.is_empty() && self.networks.is_empty() && !self.is_filter_stale
    }
}

pub(super) fn plan_removals(
    input: Input,
    desired: &DesiredNetworks,
) -> (Vec<Change>, StaleRecords) {
    let links = &input.facts.links;
    let desired_links: BTreeSet<&LinkName> = desired
        .networks
        .iter()
        .flat_map(|network| network.links().map(|link| &link.name))
        .collect();
    let mut groups: BTreeMap<(&str, Option<&str>), Vec<&Link>> = BTreeMap::new();
    for link in links.all.iter().filter(|link| !desired_links.contains(&link.name)) {
        if let Some(owner_key) =
            link_owner(link).filter(|(network, _)| !desired.is_frozen(input, network))
        {
            groups.entry(owner_key).or_default().push(link);
        }
    }
    let records = &input.facts.ledger.networks;
    let mut changes: Vec<Change> = groups
        .iter()
        .map(|((network, tenant), group)| {
            let desired_network = desired.networks.iter().find(|desired| desired.name == *network);
            let mut change = plan_removal(links, network, *tenant, group, records.get(*network));
            if let (Action::Links(action), Some(desired_network)) =
                (&mut change.action, desired_network)
            {
                // If the spec assigns another VLAN or VNI to a recorded tenant, only the record of the previous
                // number is removed.
                action.removed_tenants.retain(|id| {
                    desired_network.tenants.iter().all(|tenant| tenant.segment_number() != *id)
                });
            }
            change
        })
        .collect();
    let unfinished = links.all.iter().filter(|link| {
        link.group == Some(LINK_GROUP)
            && link.alias.is_none()
            && !desired_links.contains(&link.name)
    });
    for link in unfinished.filter(|link| links.ports_of(&link.name).next().is_none()) {
        let id = LinkChangeId::RemoveIncompleteLink(link.name.clone());
        changes.push(single_step_change(
            id,
            ["present", "absent"],
            LinkOp::Remove(link.name.clone()),
        ));
    }
    let mut stale_records = StaleRecords::default();
    let leftover: BTreeSet<&str> = groups.keys().map(|(network, _)| *network).collect();
    for name in records.keys() {
        let is_desired = desired.networks.iter().any(|network| network.name == name);
        if !is_desired && !leftover.contains(name.as_str()) && !desired.is_frozen(input, name) {
            stale_records.networks.push(name.clone());
        }
    }
    for name in &input.facts.ledger.uplinks_set_up {
        let used = desired.networks.iter().any(|network| network.uplink.name == *name);
        let referenced = records.iter().any(|(network, record)| {
            record.uplink.as_ref() == Some(name)
                && (desired.is_frozen(input, network) || leftover.contains(network.as_str()))
        });
        if used
            || referenced
            || !desired.frozen_networks.is_empty()
            || !input.unparsed.networks.is_empty()
        {
            continue;
        }
        let used_by_berth = |link: &Link| {
            links.links_stacked_on(&link.name).any(Link::is_created_by_berth)
                || link.master.is_some()
        };
        match links.find_by_name(name) {
            // Before the uplink can be set down, the links of Berth that are stacked on it must be removed, and the
            // bridge of which it is a port.
            Some(link) if used_by_berth(link) => {}
            Some(link) if link.is_up == Some(true) => {
                changes.push(set_down_change(links, link));
            }
            _ => stale_records.uplinks.push(name.clone()),
        }
    }
    (changes, stale_records)
}

/// Returns the change that removes the links of one owner: first the ports of its bridge, then the bridge.
fn plan_removal(
    links: &Links,
    network: &str,
    tenant: Option<&str>,
    group: &[&Link],
    record: Option<&NetworkRecord>,
) -> Change {
    let mut ordered: Vec<&Link> = group.to_vec();
    ordered.sort_by_key(|link| link.kind == LinkKind::Bridge);
    let id = LinkChangeId::RemoveLinks {
        links: ordered.iter().map(|link| link.name.clone()).collect(),
        network: network.to_owned(),
        tenant: tenant.map(str::to_owned),
    };
    let (mut ops, mut undo) = (Vec::new(), Vec::new());
    for link in &ordered {
        for port in links.ports_of(&link.name).filter(|port| is_uplink(record, port)) {
            let (port_name, bridge) = (port.name.clone(), link.name.clone());
            ops.push(LinkOp::Leave { port: port_name.clone(), bridge: bridge.clone() });
            undo.push(LinkOp::Join { port: port_name.clone(), bridge });
            if let Some(vlans) = port.vlans.as_ref().filter(|vlans| !vlans.all.is_empty()) {
                undo.push(LinkOp::AddVlans { port: port_name, vlans: vlans.all.clone() });
            }
        }
        ops.push(LinkOp::Remove(link.name.clone()));
    }
    let users: BTreeSet<String> =
        ops.iter().flat_map(|op| disconnected_links(op, links, &ops)).collect();
    let removed_tenants = record.iter().flat_map(|record| {
        record
            .tenants
            .iter()
            .filter(|(_, name)| tenant.is_none_or(|tenant| *name == tenant))
            .map(|(id, _)| *id)
    });
    let mut action = LinkAction::new(network, Stage::Removals, ops);
    action.removed_tenants = removed_tenants.collect();
    action.rollback_ops = undo;
    let mut change = new_link_change(id, "present", "absent", ChangeReason::Restore, action);
    if !users.is_empty() {
        change.blocked = Some(in_use_message(&users));
    }
    change
}

/// Returns the change that sets an uplink down. Berth had set it up, and it was down originally.
fn set_down_change(links: &Links, link: &Link) -> Change {
    let id = LinkChangeId::SetDown(link.name.clone());
    let mut change = single_step_change(id, ["up", "down"], LinkOp::Down(link.name.clone()));
    let others: Vec<&str> = links
        .links_stacked_on(&link.name)
        .filter(|other| !other.is_created_by_berth())
        .map(|other| other.name.as_str())
        .chain(link.users_in_other_namespaces.iter().map(String::as_str))
        .collect();
    if !others.is_empty() || !link.addresses.is_empty() {
        change.blocked = Some(format!(
            "other links use {} now: {}",
            link.name,
            [others.join(", "), link.addresses.join(", ")].join(" ")
        ));
    }
    change
}

/// Returns a change with one step that belongs to no host network.
fn single_step_change(id: LinkChangeId, [was, will_be]: [&str; 2], op: LinkOp) -> Change {
    let action = LinkAction::new("", Stage::Removals, vec![op]);
    new_link_change(id, was, will_be, ChangeReason::Restore, action)
}

/// Returns the reason why a link is not removed while other links use it.
pub(super) fn in_use_message(users: &BTreeSet<String>) -> String {
    format!(
        "still in use by {}; waiting until the last of these links is removed",
        format_links(users)
    )
}

/// Returns the names of the first [`MAX_LISTED_LINKS`] links, and the number of further links.
pub(super) fn format_links(users: &BTreeSet<String>) -> String {
    let named: Vec<&str> = users.iter().take(MAX_LISTED_LINKS).map(String::as_str).collect();
    match users.len().saturating_sub(MAX_LISTED_LINKS) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Returns true if this port of a bridge of Berth is an uplink. If the ledger records no uplink of the network, a
/// physical link or a bond counts as an uplink, because a VM has no such port.
pub(super) fn is_uplink(record: Option<&NetworkRecord>, port: &Link) -> bool {
    let known =
        record.filter(|record| record.uplink.is_some() || !record.joining_uplinks.is_empty());
    known.map_or_else(
        || port.is_uplink(),
        |record| {
            record.uplink.as_ref() == Some(&port.name)
                || record.joining_uplinks.contains(&port.name)
        },
    )
}
