//! Effective MTU of a host network: the size in bytes of the largest packet that every link between a VM and the
//! uplink can carry.

use super::desired_network::DesiredNetwork;
use super::names::link_owner;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::links::{Link, Links};

/// Returns the effective MTU of a network that is planned: the smallest of the desired MTU and the MTUs of its
/// existing links, because links that do not exist yet are created with the desired MTU. The MTU of the uplink is
/// not compared: a desired MTU above it is a fault of the spec.
pub(super) fn for_planned_network(links: &Links, network: &DesiredNetwork) -> u32 {
    let existing = network.links().filter_map(|desired| links.find_by_name(&desired.name));
    let own = existing.filter(|link| link.is_created_by_berth());
    own.filter_map(|link| link.mtu).fold(network.mtu, u32::min)
}

/// Returns the effective MTU of a network whose links are not changed, because its spec has a fault: the smallest
/// MTU of its links and of the uplink that the rollback ledger records; `None` if the network has no links.
pub(super) fn for_frozen_network(links: &Links, ledger: &Ledger, network: &str) -> Option<u32> {
    let is_own = |link: &&Link| link_owner(link).is_some_and(|(owner, _)| owner == network);
    let own = links.all.iter().filter(is_own).filter_map(|link| link.mtu).min()?;
    let uplink = ledger.networks.get(network).and_then(|record| record.uplink.as_ref());
    let uplink = uplink.and_then(|name| links.find_by_name(name)?.mtu);
    Some(uplink.map_or(own, |uplink| uplink.min(own)))
}
