//! Devices of device plugins by resource and zone, with the number of free devices.

use std::collections::BTreeMap;

use berth_api::infra_node::{Allocation, ZoneDevices};

use berth_host_facts::HostFacts;

/// `maxItems` of `devices` in the CRD.
const MAX_ENTRIES: usize = 256;

/// Returns one entry for each resource and zone; no entries if the kubelet's list of devices is unknown.
pub(super) fn devices(facts: &HostFacts, allocations: &[Allocation]) -> Vec<ZoneDevices> {
    let listed =
        facts.pod_allocations.pod_resources.as_ref().and_then(|listed| listed.devices.as_ref());
    let mut used: BTreeMap<(&str, Option<u32>), u32> = BTreeMap::new();
    let containers = allocations.iter().flat_map(|allocation| &allocation.containers);
    for devices in containers.flat_map(|container| &container.devices) {
        let count = used.entry((&devices.resource, devices.zone)).or_default();
        *count = count.saturating_add(devices.count);
    }
    let all = listed.into_iter().flat_map(|devices| &devices.by_zone).take(MAX_ENTRIES);
    let entry = |((resource, zone), total): (&(String, Option<u32>), &u32)| ZoneDevices {
        resource: resource.clone(),
        zone: *zone,
        total: *total,
        free: total
            .saturating_sub(used.get(&(resource.as_str(), *zone)).copied().unwrap_or_default()),
    };
    all.map(entry).collect()
}
