//! Limits of a TenantQuota: amounts, and permitted values.

use berth_api::{
    Bytes, ConditionReason, PrefixPool, QuotaAmounts, QuotaLimits, RequestedPrefix, TenantResources,
};

use crate::tenants::fault::Fault;

/// Largest size of volumes. The API server stores a larger quantity as another number, so that the ResourceQuota would be applied
/// again in each reconcile.
const MAX_STORAGE: u64 = i64::MAX.unsigned_abs();

/// An amount that would exceed its limit.
struct Excess {
    name: &'static str,
    requested: String,
    used: String,
    limit: String,
}

/// Returns a fault that names each limit that a request would exceed. `others` are the amounts of all other grants, `granted`
/// those that the request already has: an amount that does not grow is permitted, so that a reduced limit takes nothing from
/// a tenant.
///
/// # Errors
/// Returns the fault with the reason QuotaExceeded.
pub fn check_amounts(
    limits: &QuotaLimits,
    others: QuotaAmounts,
    granted: QuotaAmounts,
    requested: QuotaAmounts,
) -> Result<(), Fault> {
    let all: Vec<String> = excesses(limits, others, granted, requested)
        .into_iter()
        .map(|Excess { name, requested, used, limit }| {
            format!("{name}: {requested} requested, others have {used} of {limit}")
        })
        .collect();
    if all.is_empty() {
        return Ok(());
    }
    Err(Fault::new(ConditionReason::QuotaExceeded, all.join("; ")))
}

/// Returns the names of the limits that the sum of all grants exceeds, with sum and limit. This happens after a limit was
/// reduced.
#[must_use]
pub fn exceeded_limits(limits: &QuotaLimits, used: QuotaAmounts) -> Vec<String> {
    excesses(limits, QuotaAmounts::default(), QuotaAmounts::default(), used)
        .into_iter()
        .map(|one| format!("{}: {} of {}", one.name, one.requested, one.limit))
        .collect()
}

fn excesses(
    limits: &QuotaLimits,
    others: QuotaAmounts,
    granted: QuotaAmounts,
    requested: QuotaAmounts,
) -> Vec<Excess> {
    let number = |name, limit: Option<u32>, [others, granted, requested]: [u64; 3]| {
        exceeds(limit.map(u64::from), others, granted, requested).map(|limit| Excess {
            name,
            requested: requested.to_string(),
            used: others.to_string(),
            limit: limit.to_string(),
        })
    };
    let bytes = |name, limit: Option<Bytes>, [others, granted, requested]: [Bytes; 3]| {
        exceeds(limit.map(|limit| limit.0), others.0, granted.0, requested.0).map(|limit| Excess {
            name,
            requested: requested.to_string(),
            used: others.to_string(),
            limit: Bytes(limit).to_string(),
        })
    };
    let all = [others, granted, requested];
    [
        number("tenants", Some(limits.tenants), all.map(|one| one.tenants.into())),
        number("machines", Some(limits.machines), all.map(|one| one.machines.into())),
        number("cpus", limits.cpus, all.map(|one| one.cpus)),
        bytes("memory", limits.memory, all.map(|one| one.memory)),
        bytes("hugepages", limits.hugepages, all.map(|one| one.hugepages)),
        bytes("storage", limits.storage, all.map(|one| one.storage)),
        number("networks", limits.networks, all.map(|one| one.networks.into())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the limit if the request would exceed it.
fn exceeds(limit: Option<u64>, others: u64, granted: u64, requested: u64) -> Option<u64> {
    limit.filter(|limit| requested > granted && others.saturating_add(requested) > *limit)
}

/// Checks that a quota permits the values in a request: flavors, storage classes, host network and pools. `pools` are those of
/// the InfraConfig.
///
/// # Errors
/// Returns a fault with the reason NotPermitted, which names field and value.
pub fn check_values(
    limits: &QuotaLimits,
    pools: &[PrefixPool],
    resources: &TenantResources,
) -> Result<(), Fault> {
    let refuse = |field: &str, value: &str, list: &str| {
        let message = format!("{field}: {value} is not in limits.{list} of the TenantQuota");
        Err(Fault::new(ConditionReason::NotPermitted, message))
    };
    if resources.machines.flavors.is_empty() {
        let message = "machines.flavors: is empty: name at least one instance type".to_owned();
        return Err(Fault::new(ConditionReason::InvalidSpec, message));
    }
    let mut flavors = resources.machines.flavors.iter();
    if let Some(flavor) = flavors.find(|one| !limits.flavors.contains(*one)) {
        return refuse("machines.flavors", flavor, "flavors");
    }
    if let Some(storage) = resources.storage.as_ref().filter(|one| one.size.0 > MAX_STORAGE) {
        let message =
            format!("storage.size: {} is more than a ResourceQuota can limit", storage.size);
        return Err(Fault::new(ConditionReason::InvalidSpec, message));
    }
    let mut classes = resources.storage.iter().flat_map(|storage| &storage.classes);
    if let Some(class) = classes.find(|one| !limits.storage_classes.contains(*one)) {
        return refuse("storage.classes", class, "storageClasses");
    }
    let Some(network) = &resources.network else { return Ok(()) };
    if !limits.host_networks.contains(&network.name) {
        return refuse("network.name", &network.name, "hostNetworks");
    }
    for (field, requested) in [("network.ipv4", &network.ipv4), ("network.ipv6", &network.ipv6)] {
        if let Some(requested) = requested {
            check_prefix(limits, pools, field, requested)?;
        }
    }
    Ok(())
}

fn check_prefix(
    limits: &QuotaLimits,
    pools: &[PrefixPool],
    field: &str,
    requested: &RequestedPrefix,
) -> Result<(), Fault> {
    let refuse = |message: String| Err(Fault::new(ConditionReason::NotPermitted, message));
    let name = &requested.pool;
    let Some(permitted) = limits.pools.iter().find(|one| one.name == *name) else {
        return refuse(format!("{field}.pool: {name} is not in limits.pools of the TenantQuota"));
    };
    let Some(pool) = pools.iter().find(|one| one.name == *name) else {
        return refuse(format!("{field}.pool: {name} is not in addressPools of the InfraConfig"));
    };
    let length = pool.prefix_length;
    if let Some(other) = requested.prefix_length.filter(|other| *other != length) {
        return refuse(format!(
            "{field}.prefixLength: {other} is requested, but pool {name} has prefixes of length {length}"
        ));
    }
    if let Some(minimum) = permitted.min_prefix_length.filter(|minimum| length < *minimum) {
        return refuse(format!(
            "{field}.pool: the prefixes of pool {name} have length {length}, and the TenantQuota requires at least {minimum}"
        ));
    }
    Ok(())
}
