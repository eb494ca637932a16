//! Amounts that a quota counts for a request.

use std::collections::BTreeMap;

use berth_api::{Bytes, ConditionReason, QuotaAmounts, TenantResources};

use super::flavor::FlavorSize;
use crate::tenants::fault::Fault;

/// Sizes of the instance types that requests name, or the reasons why they are unknown.
pub type FlavorSizes = BTreeMap<String, Result<FlavorSize, Fault>>;

/// Returns the amounts that a quota counts for a request. A tenant may create all its machines with any of its instance
/// types, so each machine counts with the most CPUs and the most memory of them.
///
/// # Errors
/// Returns a fault if the size of an instance type is unknown.
pub fn demand(resources: &TenantResources, sizes: &FlavorSizes) -> Result<QuotaAmounts, Fault> {
    let mut largest = FlavorSize::default();
    for flavor in &resources.machines.flavors {
        let size = match sizes.get(flavor) {
            Some(Ok(size)) => size,
            Some(Err(fault)) => return Err(fault.clone()),
            None => {
                let message = format!("machines.flavors: instance type {flavor} is unknown");
                return Err(Fault::new(ConditionReason::FlavorUnknown, message));
            }
        };
        largest = FlavorSize {
            cpus: largest.cpus.max(size.cpus),
            memory: largest.memory.max(size.memory),
            hugepages: largest.hugepages.max(size.hugepages),
        };
    }
    let count = resources.machines.count;
    let times = |amount: u64| amount.saturating_mul(u64::from(count));
    Ok(QuotaAmounts {
        tenants: 1,
        machines: count,
        cpus: times(largest.cpus),
        memory: Bytes(times(largest.memory)),
        hugepages: Bytes(times(largest.hugepages)),
        storage: resources.storage.as_ref().map(|storage| storage.size).unwrap_or_default(),
        networks: u32::from(resources.network.is_some()),
    })
}
