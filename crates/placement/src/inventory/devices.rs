//! Devices of device plugins by zone, from the agent's report, and resources whose zones are unknown.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::resource;
use berth_api::{InfraNodeStatus, Problem};

use berth_kubelet_admission::DevicePool;
use berth_kubelet_admission::pod::Resources;

/// Prefix of the resources of KubeVirt's own device plugins. Their devices, such as `/dev/kvm`, belong to no zone.
pub(super) const KUBEVIRT_PREFIX: &str = "devices.kubevirt.io/";

/// Devices for the prediction of admission, and the names of the resources whose zones are unknown.
pub(super) struct DeviceInventory {
    pub(super) pools: Vec<DevicePool>,
    pub(super) resources_with_unknown_zones: BTreeSet<String>,
}

/// Reads the devices. The zones of a resource of the Node are unknown if the report does not list the resource, or if
/// the Node has another number of devices than the report: a device plugin has registered or lost devices, and either
/// the report or the Node is outdated. Resources that Berth or the bridge marker writes to the Node have no device
/// plugin; they are recognized by their names.
pub(super) fn read_devices(
    object: &str,
    status: &InfraNodeStatus,
    allocatable: &Resources,
    problems: &mut Vec<Problem>,
) -> DeviceInventory {
    let mut by_name: BTreeMap<&str, DevicePool> = BTreeMap::new();
    let mut unknown_zones = BTreeSet::new();
    for (at, reported) in status.devices.iter().enumerate() {
        let name = reported.resource.as_str();
        let exists = |id: u32| status.zones.iter().any(|zone| zone.id == id);
        let pool = by_name
            .entry(name)
            .or_insert_with(|| DevicePool { name: name.to_owned(), ..DevicePool::default() });
        let count = match reported.zone {
            None => &mut pool.count_without_zone,
            Some(zone) if exists(zone) => pool.zones.entry(zone).or_default(),
            Some(zone) => {
                let field = format!("status.devices[{at}].zone");
                let message =
                    "is not a NUMA zone of this host; the zones of this resource are unknown";
                problems.push(Problem::new(object, field, zone, message));
                unknown_zones.insert(name.to_owned());
                continue;
            }
        };
        *count = count.saturating_add(reported.total);
    }
    for (name, offered) in &allocatable.extended {
        let is_kubevirt_device = name.starts_with(KUBEVIRT_PREFIX);
        match by_name.get_mut(name.as_str()) {
            Some(pool) if pool.zones.is_empty() => {
                pool.count_without_zone = u32::try_from(*offered).unwrap_or(u32::MAX);
            }
            Some(pool) => {
                let total =
                    pool.zones.values().fold(pool.count_without_zone, |a, b| a.saturating_add(*b));
                if u64::from(total) != *offered {
                    unknown_zones.insert(name.clone());
                }
            }
            None if is_kubevirt_device => {
                let without_zone = u32::try_from(*offered).unwrap_or(u32::MAX);
                let pool = DevicePool {
                    name: name.clone(),
                    count_without_zone: without_zone,
                    ..DevicePool::default()
                };
                by_name.insert(name, pool);
            }
            None if *offered > 0 && !has_no_device_plugin(name) => {
                unknown_zones.insert(name.clone());
            }
            None => {}
        }
    }
    by_name.retain(|name, _| !unknown_zones.contains(*name));
    DeviceInventory {
        pools: by_name.into_values().collect(),
        resources_with_unknown_zones: unknown_zones,
    }
}

/// Returns true if Berth's agent or the bridge marker writes the resource to the Node: such a resource has no device
/// plugin, and thus no zone.
fn has_no_device_plugin(name: &str) -> bool {
    name.starts_with(resource::BRIDGE_PREFIX) || name == resource::PINNABLE_CPUS
}

/// Returns the number of devices of each resource in the report. If there is no Node, the host is assumed to offer
/// these devices.
pub(super) fn device_counts(status: &InfraNodeStatus) -> impl Iterator<Item = (String, u64)> + '_ {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for devices in &status.devices {
        let sum = sums.entry(&devices.resource).or_default();
        *sum = sum.saturating_add(devices.total.into());
    }
    sums.into_iter().map(|(name, count)| (name.to_owned(), count))
}
