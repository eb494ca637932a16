//! Delays the creation of machines while the addresses of their network may overlap the addresses of another tenant.

use berth_api::{Condition, ConditionReason, InfraConfigSpec, TenantCluster};
use kube::ResourceExt as _;

use crate::tenants::fault::Fault;
use crate::tenants::prefixes::pool::is_routed;
use crate::tenants::status::ADDRESSES_READY;

/// Facts of a tenant's status on which the result of [`unmet_prefix`] depends: the generation of the spec that the
/// controller has checked, and true if the prefix of another tenant overlaps the network.
pub(super) type PrefixFacts = (Option<i64>, bool);

/// Returns the reason why the addresses of a tenant's network must not be used now; `None` if machines may be created.
pub(super) fn unmet_prefix(tenant: &TenantCluster, config: &InfraConfigSpec) -> Option<Fault> {
    let network = tenant.spec.network.as_ref()?;
    if network.ipv4.is_none() && network.ipv6.is_none() {
        return None;
    }
    let (checked, has_conflict) = prefix_facts(tenant);
    if has_conflict {
        let message = addresses_condition(tenant).map(|one| one.message.clone());
        return Some(Fault::new(ConditionReason::PrefixInUse, message.unwrap_or_default()));
    }
    let is_unchecked = checked.is_none() || checked != tenant.metadata.generation;
    (is_unchecked && config.address_pools.iter().any(is_routed)).then(|| {
        let message = format!(
            "TenantCluster {} has no condition {ADDRESSES_READY} for its current spec yet",
            tenant.name_any()
        );
        Fault::new(ConditionReason::WaitingForTenant, message)
    })
}

/// Returns the facts of a tenant.
pub(super) fn prefix_facts(tenant: &TenantCluster) -> PrefixFacts {
    let condition = addresses_condition(tenant);
    let has_conflict =
        condition.is_some_and(|one| one.reason.parse() == Ok(ConditionReason::PrefixInUse));
    (condition.and_then(|one| one.observed_generation), has_conflict)
}

fn addresses_condition(tenant: &TenantCluster) -> Option<&Condition> {
    let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|one| one.type_ == ADDRESSES_READY)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn machines_wait_until_the_prefix_is_checked() {
        let reason = |reason: Option<&str>, generation: i64, pools: Value| {
            let condition = reason.map(|reason| {
                json!({"type": "AddressesReady", "status": "False", "reason": reason, "message": "why",
                    "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation})
            });
            let conditions: Vec<Value> = condition.into_iter().collect();
            let tenant = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "generation": 2},
                "spec": {"network": {"name": "trunk", "ipv4": {"cidr": "10.0.0.0/24"}}}, "status": {"conditions": conditions},
            });
            let tenant: TenantCluster = serde_json::from_value(tenant).unwrap();
            let config: InfraConfigSpec =
                serde_json::from_value(json!({"addressPools": pools})).unwrap();
            unmet_prefix(&tenant, &config).map(|fault| fault.reason)
        };
        let routed =
            || json!([{"name": "a", "cidr": "10.0.0.0/8", "prefixLength": 24, "routed": true}]);
        let (waiting, in_use) = (ConditionReason::WaitingForTenant, ConditionReason::PrefixInUse);
        for (condition, generation, pools, expected) in [
            (None, 2, json!([]), None),
            (None, 2, routed(), Some(waiting)),
            (Some("AddressesReady"), 1, json!([]), None),
            (Some("AddressesReady"), 1, routed(), Some(waiting)),
            (Some("AddressesReady"), 2, routed(), None),
            (Some("AddressesExhausted"), 2, routed(), None),
            (Some("PrefixInUse"), 2, json!([]), Some(in_use)),
        ] {
            assert_eq!(
                reason(condition, generation, pools),
                expected,
                "{condition:?} {generation}"
            );
        }
    }
}
