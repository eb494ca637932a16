//! Decides which of two tenants gets the load balancer addresses that both request.
//!
//! If the current pool of a tenant in the cluster already contains the addresses, the tenant retains them, so that a
//! change of another tenant cannot take them away. If neither pool contains them, the older TenantCluster gets them.
//! The addresses must never be in both pools, because MetalLB refuses overlapping pools, and then all changes of all
//! pools.

use std::fmt;

use berth_api::{AddressRange, TenantCluster};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::pool_use::PoolUse;

/// Ranges of addresses that a tenant requests.
#[derive(Clone, Copy, Debug)]
pub struct PoolRequest<'a> {
    pub tenant: &'a TenantCluster,
    pub ranges: &'a [AddressRange],
}

/// Reason why a tenant does not get addresses that another tenant also requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precedence {
    /// The current pool of the other tenant contains the addresses.
    AppliedPool,
    /// Neither current pool contains the addresses, and the other tenant is older.
    OlderTenant,
    /// Each of the two current pools contains some of the addresses.
    BothPools,
}

impl fmt::Display for Precedence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AppliedPool => "whose pool already has these addresses",
            Self::OlderTenant => "which is older",
            Self::BothPools => "and each pool already has some of these addresses",
        })
    }
}

/// Returns the reason why `own` does not get those addresses that `other` also requests; `None` if `own` gets all of
/// them.
#[must_use]
pub fn refusal(own: PoolRequest<'_>, other: PoolRequest<'_>, pool_use: &PoolUse) -> Option<String> {
    let pairs = own.ranges.iter().flat_map(|one| other.ranges.iter().map(move |it| (one, it)));
    let mut refusals = pairs.filter_map(|(range, theirs)| {
        let shared = range.intersection(*theirs)?;
        let why = precedence_of_other(own.tenant, other.tenant, shared, pool_use)?;
        let name = other.tenant.name_any();
        Some(format!("`{range}` overlaps `{theirs}` of TenantCluster {name}, {why}"))
    });
    refusals.next()
}

fn precedence_of_other(
    own: &TenantCluster,
    other: &TenantCluster,
    shared: AddressRange,
    pool_use: &PoolUse,
) -> Option<Precedence> {
    let (own_name, other_name) = (own.name_any(), other.name_any());
    let has_some = |name: &str| pool_use.applied_ranges(name).any(|one| one.overlaps(shared));
    let is_older = age_key(own) < age_key(other);
    match (has_some(&own_name), has_some(&other_name)) {
        (true, false) => None,
        (false, true) => Some(Precedence::AppliedPool),
        (false, false) => (!is_older).then_some(Precedence::OlderTenant),
        (true, true) => {
            let mut applied = pool_use.applied_ranges(&own_name);
            let has_all = applied.any(|one| one.intersection(shared) == Some(shared));
            (!is_older || !has_all).then_some(Precedence::BothPools)
        }
    }
}

/// Returns a sort key by which older tenants come first.
pub(super) fn age_key(tenant: &TenantCluster) -> (Option<Timestamp>, String) {
    let created = tenant.metadata.creation_timestamp.as_ref().map(|created| created.0);
    (created, tenant.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::tenants::pool_use::AppliedPool;

    fn tenant(name: &str, created: i64) -> TenantCluster {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": name}, "spec": {},
        });
        let mut tenant: TenantCluster = serde_json::from_value(object).unwrap();
        tenant.metadata.creation_timestamp = Some(Time(Timestamp::from_second(created).unwrap()));
        tenant
    }

    /// Returns why `b`, which is older, and why `a` do not get the addresses 192.0.2.8-192.0.2.15, which both tenants
    /// request.
    fn reasons(pools: &[(&str, &str)]) -> [Option<&'static str>; 2] {
        let (older, younger) = (tenant("b", 1000), tenant("a", 2000));
        let ranges = ["192.0.2.0/28", "192.0.2.8-192.0.2.23"]
            .map(|text| text.parse::<AddressRange>().unwrap());
        let [of_older, of_younger] = ranges.each_ref().map(std::slice::from_ref);
        let of_older = PoolRequest { tenant: &older, ranges: of_older };
        let of_younger = PoolRequest { tenant: &younger, ranges: of_younger };
        let pools = pools
            .iter()
            .map(|(tenant, range)| AppliedPool::new(tenant, &json!({"addresses": [range]})))
            .collect();
        let pool_use = PoolUse { pools, addresses: Vec::new() };
        let known = ["already has these", "which is older", "already has some"];
        [refusal(of_older, of_younger, &pool_use), refusal(of_younger, of_older, &pool_use)].map(
            |refusal| {
                refusal.map(|text| known.into_iter().find(|known| text.contains(known)).unwrap())
            },
        )
    }

    #[test]
    fn the_pool_in_the_cluster_decides_and_then_the_age() {
        let (applied, older, both) = ("already has these", "which is older", "already has some");
        for (pools, expected) in [
            (vec![], [None, Some(older)]),
            (vec![("b", "192.0.2.0/28")], [None, Some(applied)]),
            // The pool of the younger tenant contains the addresses, to which the older tenant extends its request.
            (vec![("a", "192.0.2.8-192.0.2.23")], [Some(applied), None]),
            (vec![("b", "192.0.2.0/29"), ("a", "192.0.2.15")], [Some(applied), None]),
            // Current pools without the addresses that both tenants request do not affect the decision.
            (vec![("b", "192.0.2.0/29"), ("a", "192.0.2.16/29")], [None, Some(older)]),
            // Each pool contains some of the addresses, so the pools would overlap if both were extended.
            (vec![("b", "192.0.2.0-192.0.2.9"), ("a", "192.0.2.10/31")], [Some(both), Some(both)]),
            (vec![("b", "192.0.2.0/28"), ("a", "192.0.2.10/31")], [None, Some(both)]),
        ] {
            assert_eq!(reasons(&pools), expected, "{pools:?}");
        }
    }

    #[test]
    fn tenants_of_the_same_age_are_ordered_by_name() {
        let (one, two) = (tenant("one", 1000), tenant("two", 1000));
        let ranges: [AddressRange; 1] = ["2001:db8::/120".parse().unwrap()];
        let request = |tenant| PoolRequest { tenant, ranges: &ranges };
        let in_use = PoolUse::default();
        assert_eq!(refusal(request(&one), request(&two), &in_use), None);
        assert!(refusal(request(&two), request(&one), &in_use).is_some());
    }
}
