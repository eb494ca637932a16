//! Release of PrefixClaims: puts a claim that no tenant needs into quarantine, and deletes it after the quarantine.

use berth_api::{InfraConfigSpec, PrefixClaim, TenantCluster};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::request::PrefixRequest;
use crate::managed_by::is_created_by_berth;
use crate::tenants::addresses::family::Family;
use crate::tenants::addresses::resolved::PoolSource;
use crate::tenants::claim_gc::{ClaimAction, claim_action};
use crate::tenants::claims::quarantine_duration;

/// Returns the end of a claim's quarantine; `None` if the claim is not in quarantine.
#[must_use]
pub fn quarantine_end(claim: &PrefixClaim, config: &InfraConfigSpec) -> Option<Timestamp> {
    let released = claim.status.as_ref()?.released_at.as_ref()?.0;
    Some(released.checked_add(quarantine_duration(config)).unwrap_or(Timestamp::MAX))
}

/// Returns the next action on a claim, and the time at which it is due. `tenant` is the tenant with the UID in the
/// claim, or `None` if the tenant does not exist. `has_addresses` is true if machines of the tenant have addresses in
/// the prefix. `quarantine_end` is the end of the quarantine of a released claim.
#[must_use]
pub fn next_action(
    claim: &PrefixClaim,
    tenant: Option<&TenantCluster>,
    has_addresses: bool,
    quarantine_end: Option<Timestamp>,
) -> Option<(ClaimAction, Timestamp)> {
    // A claim without Berth's label was created by an administrator, and is never changed or deleted.
    if !is_created_by_berth(claim.labels()) {
        return None;
    }
    let is_needed = match tenant {
        None => false,
        Some(tenant) => is_needed_by(claim, tenant)? || has_addresses,
    };
    claim_action(is_needed, quarantine_end)
}

/// Returns true if a tenant needs the prefix of a claim. Returns `None` if a prefix that the tenant requests from a
/// pool is not in its status yet, because this claim may be the one for that prefix.
fn is_needed_by(claim: &PrefixClaim, tenant: &TenantCluster) -> Option<bool> {
    // A tenant with claims has `spec.network`. If this field is absent, the API server returned a spec that this
    // release cannot parse.
    tenant.spec.network.as_ref()?;
    let prefix = claim.spec.prefix;
    let mut is_needed =
        tenant.status.iter().flat_map(|one| &one.prefixes).any(|one| one.cidr == prefix);
    for family in [Family::V4, Family::V6] {
        let Some(request) = PrefixRequest::of_tenant(tenant, family).ok()? else { continue };
        match request.source {
            PoolSource::Cidr(cidr) => is_needed |= cidr.trunc() == prefix,
            PoolSource::FromPool(_) => _ = request.recorded?,
        }
    }
    Some(is_needed)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::choose::test_helpers::claim;
    use super::*;

    fn tenant(ipv4: &Value, prefixes: &[&str]) -> TenantCluster {
        let prefixes: Vec<Value> =
            prefixes.iter().map(|cidr| json!({"pool": "corp", "cidr": cidr})).collect();
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "uid": "u-a"},
            "spec": {"network": {"name": "trunk", "ipv4": ipv4}}, "status": {"prefixes": prefixes},
        }))
        .unwrap()
    }

    #[test]
    fn claims_end_after_their_use() {
        let held = claim("10.1.0.0/24", Some("corp"), "a", None);
        let released = claim("10.1.0.0/24", Some("corp"), "a", Some(100));
        let from_pool = || json!({"fromPool": "corp"});
        let release = Some((ClaimAction::Release, Timestamp::MIN));
        let reclaim = Some((ClaimAction::Reclaim, Timestamp::MIN));
        let delete = Some((ClaimAction::Delete, Timestamp::from_second(3700).unwrap()));
        let quarantine = |claim: &PrefixClaim| quarantine_end(claim, &InfraConfigSpec::default());
        for (tenant, has_addresses, expected) in [
            (Some(tenant(&from_pool(), &["10.1.0.0/24"])), false, [None, reclaim]),
            // The tenant's status contains no prefix yet.
            (Some(tenant(&from_pool(), &[])), false, [None, None]),
            (Some(tenant(&json!({}), &[])), false, [None, None]),
            (Some(tenant(&json!({"cidr": "10.1.0.7/24"}), &[])), false, [None, reclaim]),
            // The tenant's status contains another prefix, but machines still have addresses of the claimed prefix.
            (Some(tenant(&from_pool(), &["10.1.9.0/24"])), true, [None, reclaim]),
            (Some(tenant(&from_pool(), &["10.1.9.0/24"])), false, [release, delete]),
            (Some(tenant(&json!({"cidr": "10.2.0.0/24"}), &[])), false, [release, delete]),
            (None, true, [release, delete]),
        ] {
            let actual = [&held, &released]
                .map(|claim| next_action(claim, tenant.as_ref(), has_addresses, quarantine(claim)));
            assert_eq!(actual, expected, "{tenant:?}");
        }
        let mut reserved = held;
        reserved.metadata.labels = None;
        assert_eq!(next_action(&reserved, None, false, None), None);
        let mut unreadable = tenant(&from_pool(), &[]);
        unreadable.spec.network = None;
        assert_eq!(next_action(&released, Some(&unreadable), false, quarantine(&released)), None);
    }
}
