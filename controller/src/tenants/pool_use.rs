//! Load balancer addresses that Services still use, although their tenant no longer requests them.
//!
//! While a Service has an address that is in no pool, the controller of MetalLB refuses all changes of its pools,
//! including those of other tenants. Therefore such an address stays in the pool of the Service's tenant, and must not
//! be in another pool.

use std::net::IpAddr;

use berth_api::{AddressRange, TenantCluster};
use serde_json::Value;

/// Current content of an IPAddressPool that Berth created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedPool {
    /// Name of the tenant to which the pool belongs.
    pub tenant: String,
    pub ranges: Vec<AddressRange>,
}

impl AppliedPool {
    /// Parses the pool of a tenant. Entries that are not ranges are ignored.
    #[must_use]
    pub fn new(tenant: &str, spec: &Value) -> Self {
        let entries = spec["addresses"].as_array().into_iter().flatten();
        let ranges = entries.filter_map(|entry| entry.as_str()?.parse().ok()).collect();
        Self { tenant: tenant.to_owned(), ranges }
    }
}

/// Address of a Service of type LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAddress {
    /// Name of the tenant in whose namespace the Service is.
    pub tenant: String,
    /// Name of the Service.
    pub service: String,
    pub address: IpAddr,
}

impl std::fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let namespace = TenantCluster::namespace_of(&self.tenant);
        write!(f, "Service {namespace}/{} ({})", self.service, self.address)
    }
}

/// Current pools and Service addresses of all tenants in the cluster.
#[derive(Clone, Debug, Default)]
pub struct PoolUse {
    pub pools: Vec<AppliedPool>,
    pub addresses: Vec<ServiceAddress>,
}

impl PoolUse {
    /// Returns the ranges of the current pools of a tenant.
    pub fn applied_ranges<'a>(
        &'a self,
        tenant: &'a str,
    ) -> impl Iterator<Item = AddressRange> + 'a {
        let own = self.pools.iter().filter(move |pool| pool.tenant == tenant);
        own.flat_map(|pool| pool.ranges.iter().copied())
    }

    /// Returns true if an address must stay in the current pool of its tenant, although the requested ranges do not
    /// contain it.
    #[must_use]
    pub fn is_kept(&self, used: &ServiceAddress, requested: &[AddressRange]) -> bool {
        let contains =
            |ranges: &[AddressRange]| ranges.iter().any(|one| one.contains(used.address));
        let mut own = self.pools.iter().filter(|pool| pool.tenant == used.tenant);
        !contains(requested) && own.any(|pool| contains(&pool.ranges))
    }

    /// Returns the addresses that must stay in the pool of a tenant, although the tenant no longer requests them.
    #[must_use]
    pub fn kept_addresses(&self, tenant: &str, requested: &[AddressRange]) -> Vec<&ServiceAddress> {
        let own = self.addresses.iter().filter(|used| used.tenant == tenant);
        own.filter(|used| self.is_kept(used, requested)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_used_addresses_of_the_own_pool_are_kept() {
        let spec = json!({"addresses": ["192.0.2.0-192.0.2.15", "2001:db8::/120", 7, "x"]});
        let used = |tenant: &str, service: &str, address: &str| ServiceAddress {
            tenant: tenant.to_owned(),
            service: service.to_owned(),
            address: address.parse().unwrap(),
        };
        let in_use = PoolUse {
            pools: vec![AppliedPool::new("shop", &spec)],
            addresses: vec![
                used("shop", "a", "192.0.2.3"),
                used("shop", "b", "192.0.2.9"),
                used("shop", "b", "2001:db8::9"),
                // An address from a pool that an administrator created.
                used("shop", "c", "203.0.113.1"),
                used("other", "d", "192.0.2.9"),
            ],
        };
        let kept = |requested: &[&str]| {
            let ranges: Vec<AddressRange> =
                requested.iter().map(|one| one.parse().unwrap()).collect();
            let kept = in_use.kept_addresses("shop", &ranges);
            kept.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(kept(&["192.0.2.0/28", "2001:db8::/64"]), "");
        assert_eq!(kept(&["192.0.2.0/29", "2001:db8::/64"]), "Service cluster-shop/b (192.0.2.9)");
        assert_eq!(kept(&[]).split(", ").count(), 3);
        assert!(in_use.kept_addresses("other", &[]).is_empty());
        assert_eq!(AppliedPool::new("shop", &Value::Null).ranges, []);
    }
}
