//! Truncation of texts and lists of the status to the limits of their schema. Otherwise one message that is too long
//! (of a file name, or of another program) would make the API server reject the whole status of a host.

use super::allocations::AllocatedContainer;
use super::status::InfraNodeStatus;
use super::zones::Zone;
use crate::{Condition, VlanRanges};

/// Maximum number of characters of a message (`maxLength`).
const MESSAGE: usize = 1024;
/// Maximum number of characters of a path below `status`, or of the description of a change.
const NAME: usize = 256;
/// Maximum number of characters of the message of a condition, by the API conventions.
const CONDITION: usize = 32_768;
/// Maximum number of entries of lists (`maxItems`).
const UPLINKS: usize = 128;
const MAX_ENTRIES: usize = 64;
const FIELDS: usize = 16;
const THREADS: usize = 8;
const CACHES: usize = 128;
const PAGE_SIZES: usize = 8;
const DEVICES: usize = 256;
const CONTAINERS: usize = 64;
const BLOCKS: usize = 16;
/// Maximum number of characters of the name of a container, and of a resource with its domain.
const CONTAINER: usize = 63;
const RESOURCE: usize = 317;

impl InfraNodeStatus {
    /// Truncates texts and lists to the limits of their schema. A truncated text ends in `…`.
    pub fn truncate_to_schema(&mut self) {
        for unknown in &mut self.unknown {
            truncate_chars(&mut unknown.path, NAME);
            unknown.message.iter_mut().for_each(|message| truncate_chars(message, MESSAGE));
        }
        self.changes.truncate(MAX_ENTRIES);
        for change in &mut self.changes {
            truncate_chars(&mut change.what, NAME);
            change.message.iter_mut().for_each(|message| truncate_chars(message, MESSAGE));
            change
                .removes
                .iter_mut()
                .flat_map(|one| &mut one.vlans)
                .for_each(VlanRanges::merge_if_too_long);
        }
        for network in &mut self.networks {
            network.not_ready.truncate(MAX_ENTRIES);
            for tenant in &mut network.not_ready {
                tenant.message.iter_mut().for_each(|message| truncate_chars(message, MESSAGE));
            }
        }
        for Condition { message, .. } in &mut self.conditions {
            truncate_chars(message, CONDITION);
        }
        let capabilities = &mut self.capabilities;
        capabilities.uplinks.truncate(UPLINKS);
        capabilities.links.truncate(MAX_ENTRIES);
        let start = capabilities.kubelet.iter_mut().filter_map(|one| one.started_with.as_mut());
        start.for_each(|start| start.pending_restart.truncate(FIELDS));
        // An incomplete list of threads would be wrong.
        let most = |zone: &&mut Zone| zone.threads.len() > THREADS;
        self.zones.iter_mut().filter(most).for_each(|zone| zone.threads.clear());
        for zone in &mut self.zones {
            if zone.caches.len() > CACHES {
                zone.caches.clear();
            }
            zone.reserved_hugepages.truncate(PAGE_SIZES);
        }
        // Placement treats absent devices as unknown. It would take a part of the list for the whole list.
        if self.devices.len() > DEVICES {
            self.devices.clear();
        }
        self.devices.retain(|one| one.resource.chars().count() <= RESOURCE);
        for allocation in &mut self.allocations {
            let all = &allocation.containers;
            if all.len() > CONTAINERS || !all.iter().all(is_within_limits) {
                allocation.containers.clear();
            }
        }
    }
}

fn is_within_limits(container: &AllocatedContainer) -> bool {
    container.name.chars().count() <= CONTAINER
        && container.memory.len() <= BLOCKS
        && container.memory.iter().all(|block| block.zones.len() <= MAX_ENTRIES)
        && container.devices.len() <= MAX_ENTRIES
}

/// Truncates a text to `most` characters. The API server counts characters, not bytes.
fn truncate_chars(text: &mut String, most: usize) {
    if text.chars().count() <= most {
        return;
    }
    let end = text.char_indices().nth(most.saturating_sub(1)).map_or(text.len(), |(at, _)| at);
    text.truncate(end);
    text.push('…');
}
