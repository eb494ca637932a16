//! Truncation of texts and lists in the status to the limits of their schema. Without truncation, the API server would
//! reject the whole status of a host because of one long message, for example a message from another program.

use super::allocations::AllocatedContainer;
use super::status::InfraNodeStatus;
use super::trunk::Neighbor;
use super::zones::Zone;
use crate::{Condition, VlanRanges};

/// Maximum number of characters of a message (`maxLength`).
const MAX_MESSAGE_CHARS: usize = 1024;
/// Maximum number of characters of the path of a field in `status`, and of the description of a change.
const MAX_PATH_CHARS: usize = 256;
/// Maximum number of characters of the message of a condition, by the API conventions.
const MAX_CONDITION_CHARS: usize = 32_768;

// The following constants are the maximum numbers of entries of lists (`maxItems`).
const MAX_UPLINKS: usize = 128;
const MAX_LIST_ENTRIES: usize = 64;
const MAX_PENDING_FIELDS: usize = 16;
const MAX_THREAD_SETS: usize = 8;
const MAX_CACHE_SETS: usize = 128;
const MAX_PAGE_SIZES: usize = 8;
const MAX_DEVICES: usize = 256;
const MAX_CONTAINERS: usize = 64;
const MAX_MEMORY_BLOCKS: usize = 16;
const MAX_NEIGHBOR_VLANS: usize = 128;

/// Maximum number of characters of each text that an LLDP neighbour announces.
const MAX_NEIGHBOR_CHARS: usize = 255;
/// Maximum number of characters of the name of a tenant network.
const MAX_NETWORK_NAME_CHARS: usize = 63;
/// Maximum number of characters of `NAMESPACE/NAME` of a machine: 63 + 1 + 253.
const MAX_MACHINE_CHARS: usize = 317;
/// Maximum number of characters of a container's name.
const MAX_CONTAINER_NAME_CHARS: usize = 63;
/// Maximum number of characters of a resource's name with its domain (`DOMAIN/NAME`): 253 + 1 + 63.
const MAX_RESOURCE_NAME_CHARS: usize = 317;

impl InfraNodeStatus {
    /// Truncates texts and lists to the limits of their schema. A truncated text ends in `…`. A list that is too long
    /// is removed if readers would treat a truncated list as complete.
    pub fn truncate_to_schema(&mut self) {
        for unknown in &mut self.unknown {
            truncate_chars(&mut unknown.path, MAX_PATH_CHARS);
            unknown
                .message
                .iter_mut()
                .for_each(|message| truncate_chars(message, MAX_MESSAGE_CHARS));
        }
        self.changes.truncate(MAX_LIST_ENTRIES);
        for change in &mut self.changes {
            truncate_chars(&mut change.what, MAX_PATH_CHARS);
            change
                .message
                .iter_mut()
                .for_each(|message| truncate_chars(message, MAX_MESSAGE_CHARS));
            change
                .removes
                .iter_mut()
                .flat_map(|one| &mut one.vlans)
                .for_each(VlanRanges::merge_if_too_long);
        }
        for network in &mut self.networks {
            network.not_ready.truncate(MAX_LIST_ENTRIES);
            for tenant in &mut network.not_ready {
                tenant
                    .message
                    .iter_mut()
                    .for_each(|message| truncate_chars(message, MAX_MESSAGE_CHARS));
            }
            if let Some(trunk) = &mut network.trunk {
                trunk.vlans.iter_mut().for_each(VlanRanges::merge_if_too_long);
                trunk.unverified.iter_mut().for_each(VlanRanges::merge_if_too_long);
                trunk.from.truncate(MAX_LIST_ENTRIES);
                let message = trunk.message.iter_mut();
                message.for_each(|message| truncate_chars(message, MAX_MESSAGE_CHARS));
            }
        }
        self.neighbors.truncate(MAX_LIST_ENTRIES);
        for neighbor in &mut self.neighbors {
            neighbor.vlans.truncate(MAX_NEIGHBOR_VLANS);
            let Neighbor { chassis, system_name, port, description, vlans, .. } = neighbor;
            [chassis, port]
                .into_iter()
                .chain(system_name)
                .chain(description)
                .chain(vlans.iter_mut().map(|vlan| &mut vlan.name))
                .for_each(|text| truncate_chars(text, MAX_NEIGHBOR_CHARS));
        }
        self.address_conflicts.truncate(MAX_LIST_ENTRIES);
        for conflict in &mut self.address_conflicts {
            truncate_chars(&mut conflict.network, MAX_NETWORK_NAME_CHARS);
            truncate_chars(&mut conflict.machine, MAX_MACHINE_CHARS);
        }
        for Condition { message, .. } in &mut self.conditions {
            truncate_chars(message, MAX_CONDITION_CHARS);
        }
        let capabilities = &mut self.capabilities;
        capabilities.uplinks.truncate(MAX_UPLINKS);
        capabilities.links.truncate(MAX_LIST_ENTRIES);
        let start = capabilities.kubelet.iter_mut().filter_map(|one| one.started_with.as_mut());
        start.for_each(|start| start.pending_restart.truncate(MAX_PENDING_FIELDS));
        // Placement would treat a truncated list of threads as complete.
        let has_too_many_threads = |zone: &&mut Zone| zone.threads.len() > MAX_THREAD_SETS;
        self.zones.iter_mut().filter(has_too_many_threads).for_each(|zone| zone.threads.clear());
        for zone in &mut self.zones {
            if zone.caches.len() > MAX_CACHE_SETS {
                zone.caches.clear();
            }
            zone.reserved_hugepages.truncate(MAX_PAGE_SIZES);
        }
        // Placement treats an empty list of devices as unknown, but would treat a truncated list as complete.
        if self.devices.len() > MAX_DEVICES {
            self.devices.clear();
        }
        self.devices.retain(|one| one.resource.chars().count() <= MAX_RESOURCE_NAME_CHARS);
        for allocation in &mut self.allocations {
            let containers = &allocation.containers;
            if containers.len() > MAX_CONTAINERS || !containers.iter().all(is_within_limits) {
                allocation.containers.clear();
            }
        }
    }
}

fn is_within_limits(container: &AllocatedContainer) -> bool {
    container.name.chars().count() <= MAX_CONTAINER_NAME_CHARS
        && container.memory.len() <= MAX_MEMORY_BLOCKS
        && container.memory.iter().all(|block| block.zones.len() <= MAX_LIST_ENTRIES)
        && container.devices.len() <= MAX_LIST_ENTRIES
}

/// Truncates a text to `max_chars` characters. The API server counts characters, not bytes.
fn truncate_chars(text: &mut String, max_chars: usize) {
    if text.chars().count() <= max_chars {
        return;
    }
    let end = text
        .char_indices()
        .nth(max_chars.saturating_sub(1))
        .map_or(text.len(), |(offset, _)| offset);
    text.truncate(end);
    text.push('…');
}
