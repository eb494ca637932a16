//! Usage of a requested tenant: decides whether its machines and volumes fit a reduced grant.

use berth_api::{Quantity, TenantGrant};
use serde_json::Value;

use super::objects::{MACHINE_COUNT, STORAGE_SIZE};

/// Returns true if a ResourceQuota limits machines and volumes to those of the grant, and no more exist. A limit counts only if
/// the status has it too: API servers apply the limits in the status, which the controller of ResourceQuotas writes later.
#[must_use]
pub fn fits_limits(grant: &TenantGrant, resource_quota: &Value) -> bool {
    let read = |path: &str, key: &str| -> Option<Quantity> {
        let value = resource_quota.pointer(path)?.get(key)?;
        serde_json::from_value(value.clone()).ok()
    };
    let resources = &grant.resources;
    let storage = resources.storage.as_ref().map(|storage| storage.size).unwrap_or_default();
    let limits = [
        (MACHINE_COUNT, Quantity::from_units(resources.machines.count.into())),
        (STORAGE_SIZE, Quantity::from_units(storage.0)),
    ];
    limits.into_iter().all(|(key, limit)| {
        read("/spec/hard", key) == Some(limit)
            && read("/status/hard", key) == Some(limit)
            && read("/status/used", key).is_some_and(|used| used <= limit)
    })
}

/// Returns true if the machines, of which these are the instance types, are those of the grant. A machine without an instance
/// type has no size that the quota counts.
#[must_use]
pub fn fits_flavors(grant: &TenantGrant, instancetypes: &[Option<String>]) -> bool {
    let machines = &grant.resources.machines;
    let is_granted =
        |one: &Option<String>| one.as_ref().is_some_and(|one| machines.flavors.contains(one));
    u32::try_from(instancetypes.len()).is_ok_and(|number| number <= machines.count)
        && instancetypes.iter().all(is_granted)
}

#[cfg(test)]
mod tests {
    use berth_api::{Bytes, RequestedMachines, RequestedStorage, TenantResources};
    use serde_json::json;

    use super::*;

    fn grant() -> TenantGrant {
        let storage = RequestedStorage { size: Bytes(10 << 30), classes: vec!["fast".to_owned()] };
        let machines = RequestedMachines { count: 2, flavors: vec!["standard-2".to_owned()] };
        let resources =
            TenantResources { machines, storage: Some(storage), ..TenantResources::default() };
        TenantGrant { resources, ..TenantGrant::default() }
    }

    fn limits(machines: &str, storage: &str) -> Value {
        json!({"count/virtualmachines.kubevirt.io": machines, "requests.storage": storage})
    }

    #[test]
    fn limits_count_when_api_servers_apply_them() {
        let quota = |spec: Value, hard: Value, used: Value| {
            let quota = json!({"spec": {"hard": spec}, "status": {"hard": hard, "used": used}});
            fits_limits(&grant(), &quota)
        };
        let new = || limits("2", "10Gi");
        assert!(quota(new(), limits("2", "10240Mi"), limits("2", "10Gi")));
        assert!(quota(new(), new(), limits("0", "0")));
        // More machines or volumes exist.
        assert!(!quota(new(), new(), limits("3", "0")));
        assert!(!quota(new(), new(), limits("0", "11Gi")));
        // API servers apply the earlier limits, or the usage is unknown.
        assert!(!quota(new(), limits("9", "10Gi"), limits("0", "0")));
        assert!(!quota(limits("9", "10Gi"), new(), limits("0", "0")));
        assert!(!quota(new(), new(), json!({"requests.storage": "0"})));
        assert!(!quota(new(), new(), json!(null)));
        assert!(!fits_limits(&grant(), &json!({})));
    }

    #[test]
    fn machines_of_other_sizes_do_not_fit() {
        let fits = |names: &[Option<&str>]| {
            let names: Vec<Option<String>> =
                names.iter().map(|name| name.map(str::to_owned)).collect();
            fits_flavors(&grant(), &names)
        };
        let granted = Some("standard-2");
        assert!(fits(&[]) && fits(&[granted, granted]));
        assert!(!fits(&[granted, granted, granted]));
        assert!(!fits(&[granted, Some("standard-8")]));
        assert!(!fits(&[None]));
    }
}
