//! Effect of a changed number of huge pages on the pools in the report of a host.

use berth_api::InfraNodeStatus;
use berth_api::infra_node::{HugepagesSpec, Zone};
use k8s_openapi::api::core::v1::Node;

use super::allocatable::add_hugepages;
use super::change_effect::{ChangeEffect, Effect};

/// Changes the pools. Pages in use stay. The kernel is assumed to find memory for all pages.
pub(super) fn change_pools(
    status: &mut InfraNodeStatus,
    node: &mut Node,
    live: &[HugepagesSpec],
    desired: &[HugepagesSpec],
) -> Effect {
    // Such a kubelet counts the pages when it starts, and would not start with other numbers.
    let kubelet = status.capabilities.kubelet.as_ref();
    let policy = kubelet.and_then(|kubelet| kubelet.memory_manager_policy.as_deref());
    let needs_drain = policy == Some("Static");
    let mut notes = Vec::new();
    for spec in desired {
        let pages = pages_by_zone(&status.zones, spec);
        if pages.is_empty() {
            notes.push(format!("the host has no pages of {}", spec.size));
        }
        for (id, count) in pages {
            let zone = status.zones.iter_mut().find(|zone| zone.id == id);
            match zone.map(|zone| change_pool(zone, spec, count, needs_drain)) {
                Some(Ok(bytes)) => add_hugepages(node, spec.size, bytes),
                Some(Err(note)) => notes.push(note.to_string()),
                None => notes.push(format!("the host has no zone {id}")),
            }
        }
    }
    let is_same_pool =
        |old: &HugepagesSpec, new: &HugepagesSpec| old.size == new.size && old.zone == new.zone;
    if live.iter().any(|old| !desired.iter().any(|new| is_same_pool(old, new))) {
        notes.push("the agent restores the original number of pages that are no longer listed; the simulation keeps them".to_owned());
    }
    let effect = if needs_drain { ChangeEffect::AfterDrain } else { ChangeEffect::Immediate };
    (effect, notes.join("; "))
}

/// Reason why a pool stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum PoolError {
    #[error("zone {0} has no pages of this size")]
    NoPool(u32),
    #[error("the pages exceed the memory of zone {0}")]
    TooMany(u32),
}

/// Changes one pool. Returns the bytes that it gains.
fn change_pool(
    zone: &mut Zone,
    spec: &HugepagesSpec,
    count: u64,
    is_drained: bool,
) -> Result<i128, PoolError> {
    let bytes = |pages: u64| i128::from(pages).saturating_mul(i128::from(spec.size.bytes()));
    let id = zone.id;
    let others = zone.hugepages.iter().filter(|pool| pool.size != spec.size);
    let others = others.fold(0_i128, |sum, pool| {
        sum.saturating_add(i128::from(pool.total).saturating_mul(i128::from(pool.size.bytes())))
    });
    let memory = zone.memory.map(|memory| i128::from(memory.0));
    let pool = zone.hugepages.iter_mut().find(|pool| pool.size == spec.size);
    let pool = pool.ok_or(PoolError::NoPool(id))?;
    let used =
        if is_drained { 0 } else { pool.total.saturating_sub(pool.free.unwrap_or_default()) };
    let total = count.max(used);
    if memory.is_some_and(|memory| others.saturating_add(bytes(total)) > memory) {
        return Err(PoolError::TooMany(id));
    }
    let gained = bytes(total).saturating_sub(bytes(pool.total));
    pool.total = total;
    pool.free = Some(total.saturating_sub(used));
    Ok(gained)
}

/// Returns the number of pages of each zone: all pages in the zone of the spec, otherwise an even share for each zone with
/// CPUs and pages of this size. The remainder goes to the first zones.
fn pages_by_zone(zones: &[Zone], spec: &HugepagesSpec) -> Vec<(u32, u64)> {
    if let Some(zone) = spec.zone {
        return vec![(zone, spec.count)];
    }
    let has_cpus = |zone: &&Zone| zone.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    let has_pool = |zone: &&Zone| zone.hugepages.iter().any(|pool| pool.size == spec.size);
    let ids = zones.iter().filter(has_cpus).filter(has_pool).map(|zone| zone.id);
    let ids: Vec<u32> = ids.collect();
    let zones = ids.len() as u64;
    let share = |at: u64| {
        let rest = u64::from(spec.count.checked_rem(zones).is_some_and(|rest| at < rest));
        spec.count.checked_div(zones).unwrap_or_default().saturating_add(rest)
    };
    (0..).zip(ids).map(|(at, id)| (id, share(at))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(policy: &str, desired: &serde_json::Value) -> (InfraNodeStatus, Effect) {
        let pool = |total: u64, free: u64| json!([{"size": "2Mi", "total": total, "free": free}]);
        let mut status: InfraNodeStatus = serde_json::from_value(json!({
            "capabilities": {"kubelet": {"memoryManagerPolicy": policy}},
            "zones": [
                {"id": 0, "cpus": "0-3", "memory": "1Gi", "hugepages": pool(10, 4)},
                {"id": 1, "cpus": "4-7", "memory": "1Gi", "hugepages": pool(10, 10)},
            ],
        }))
        .unwrap();
        let desired: Vec<HugepagesSpec> = serde_json::from_value(desired.clone()).unwrap();
        let live: Vec<HugepagesSpec> =
            serde_json::from_value(json!([{"size": "1Gi", "count": 1}])).unwrap();
        let effect = change_pools(&mut status, &mut Node::default(), &live, &desired);
        (status, effect)
    }

    #[test]
    fn pages_are_shared_by_the_zones_and_those_in_use_stay() {
        let totals = |status: &InfraNodeStatus| {
            let pools = status.zones.iter().map(|zone| &zone.hugepages[0]);
            pools.map(|pool| (pool.total, pool.free)).collect::<Vec<_>>()
        };
        let few = json!([{"size": "2Mi", "count": 3}]);
        let (status, (effect, note)) = changed("None", &few);
        assert_eq!(totals(&status), [(6, Some(0)), (1, Some(1))]);
        assert_eq!(effect, ChangeEffect::Immediate);
        assert!(note.contains("no longer listed"), "{note}");
        let (status, (effect, _)) = changed("Static", &few);
        assert_eq!(totals(&status), [(2, Some(2)), (1, Some(1))]);
        assert_eq!(effect, ChangeEffect::AfterDrain);
        for (desired, words) in [
            (json!([{"size": "2Mi", "count": 513, "zone": 1}]), "memory of zone 1"),
            (json!([{"size": "2Mi", "count": 1, "zone": 7}]), "no zone 7"),
            (json!([{"size": "1Gi", "count": 1}]), "no pages of 1Gi"),
            (json!([{"size": "1Gi", "count": 1, "zone": 0}]), "zone 0 has no pages"),
        ] {
            let (status, (_, note)) = changed("None", &desired);
            assert!(note.contains(words), "{note}");
            assert_eq!(totals(&status), [(10, Some(4)), (10, Some(10))], "{desired}");
        }
    }
}
