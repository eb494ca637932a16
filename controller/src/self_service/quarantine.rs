//! Networks of deleted tenants: a quota counts them until the quarantine of VLAN and prefixes ends. Otherwise requests that are
//! deleted and created again would occupy all VLANs and prefixes.

use berth_api::{QuotaAmounts, TenantCluster, TenantGrant, TenantQuota};
use kube::ResourceExt as _;

use super::objects::request_uid;

/// Claim of a VLAN, a VNI or a prefix: name and UID of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOwner<'a> {
    pub tenant: &'a str,
    pub uid: &'a str,
}

/// Returns a grant that counts only the network of a deleted tenant, if one of the claims is in quarantine. Without a limit of
/// networks, none counts. `current` is the TenantCluster that has the name now.
#[must_use]
pub fn quarantined_grant<'a>(
    quota: &TenantQuota,
    grant: &TenantGrant,
    current: Option<&TenantCluster>,
    claims: impl IntoIterator<Item = ClaimOwner<'a>>,
) -> Option<TenantGrant> {
    quota.spec.limits.networks.filter(|_| grant.amounts.networks > 0)?;
    // An administrator may have created a TenantCluster with the name of the deleted one.
    let other = current.filter(|tenant| request_uid(tenant) != Some(grant.uid.as_str()));
    let other = other.and_then(|tenant| tenant.uid());
    let mut claims = claims.into_iter();
    let has_claim =
        claims.any(|claim| claim.tenant == grant.tenant && other.as_deref() != Some(claim.uid));
    has_claim.then(|| TenantGrant {
        amounts: QuotaAmounts { networks: grant.amounts.networks, ..QuotaAmounts::default() },
        reduced_amounts: None,
        ..grant.clone()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(networks: Option<u32>) -> TenantQuota {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "q"},
            "spec": {"limits": {"tenants": 9, "machines": 9, "networks": networks}},
        }))
        .unwrap()
    }

    fn tenant(uid: &str, request: Option<&str>) -> TenantCluster {
        let annotations = json!({"berth.dev/tenant-request-uid": request});
        let annotations = if request.is_some() { annotations } else { json!({}) };
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "spec": {},
            "metadata": {"name": "shop", "uid": uid, "annotations": annotations},
        }))
        .unwrap()
    }

    #[test]
    fn only_the_network_counts_during_the_quarantine() {
        let amounts = QuotaAmounts {
            tenants: 1,
            machines: 4,
            cpus: 8,
            networks: 1,
            ..QuotaAmounts::default()
        };
        let grant = TenantGrant {
            uid: "u".to_owned(),
            tenant: "shop".to_owned(),
            amounts,
            reduced_amounts: Some(amounts),
            ..TenantGrant::default()
        };
        let claim = ClaimOwner { tenant: "shop", uid: "t1" };
        let quota_of_one = quota(Some(1));
        let quarantined = quarantined_grant(&quota_of_one, &grant, None, [claim]).unwrap();
        assert_eq!(quarantined.amounts, QuotaAmounts { networks: 1, ..QuotaAmounts::default() });
        assert_eq!((quarantined.tenant.as_str(), quarantined.reduced_amounts), ("shop", None));
        // It stays the same until the claim is deleted.
        let again = quarantined_grant(&quota_of_one, &quarantined, None, [claim]);
        assert_eq!(again, Some(quarantined));
        assert_eq!(quarantined_grant(&quota_of_one, &grant, None, []), None);
        let foreign = ClaimOwner { tenant: "bank", uid: "t1" };
        assert_eq!(quarantined_grant(&quota_of_one, &grant, None, [foreign]), None);
        assert_eq!(quarantined_grant(&quota(None), &grant, None, [claim]), None);
        let without = TenantGrant { amounts: QuotaAmounts::default(), ..grant.clone() };
        assert_eq!(quarantined_grant(&quota_of_one, &without, None, [claim]), None);
        // The claim of another TenantCluster of this name does not count, and that of the request's own one counts.
        let other = tenant("t1", None);
        assert_eq!(quarantined_grant(&quota_of_one, &grant, Some(&other), [claim]), None);
        let earlier = ClaimOwner { tenant: "shop", uid: "t0" };
        assert!(quarantined_grant(&quota_of_one, &grant, Some(&other), [claim, earlier]).is_some());
        let own = tenant("t1", Some("u"));
        assert!(quarantined_grant(&quota_of_one, &grant, Some(&own), [claim]).is_some());
    }
}
