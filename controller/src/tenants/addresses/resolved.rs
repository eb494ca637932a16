//! Addresses and configuration of one address family of a tenant's network. Their source is either `cidr` in the
//! TenantCluster, or the prefix that the network has from a pool in InfraConfig (`fromPool`). All other modules use
//! this type, so they do not depend on the source.

use std::net::IpAddr;

use berth_api::{AddressPool, AddressRange, GrantedPrefix, NetworkRoute};
use ipnet::IpNet;

use super::family::Family;

/// Source of the addresses of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSource<'a> {
    /// `cidr` in the TenantCluster.
    Cidr(IpNet),
    /// A prefix from the pool with this name in InfraConfig.
    FromPool(&'a str),
}

/// Reason why the addresses of a network are unknown. The text completes a sentence that begins with the name of the
/// field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnresolvedPool {
    /// The TenantCluster specifies both sources.
    #[error("has both cidr {cidr} and fromPool `{pool}`: remove one of them")]
    TwoSources {
        /// `cidr` in the TenantCluster.
        cidr: IpNet,
        /// Name of the pool in `fromPool`.
        pool: String,
    },
    /// The TenantCluster specifies no source.
    #[error(
        "has neither cidr nor fromPool: set cidr, or the name of a pool in InfraConfig's spec.addressPools"
    )]
    NoSource,
    /// The network has no prefix from the pool with this name yet.
    #[error("the network has no prefix of pool `{0}` yet")]
    Pending(String),
}

/// Addresses and configuration of one address family of a tenant's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPool {
    /// Network that contains the addresses.
    pub cidr: IpNet,
    /// Addresses that are allocated to machines; empty if all addresses of the network are.
    pub ranges: Vec<AddressRange>,
    /// Addresses in `ranges` that are not allocated.
    pub exclude: Vec<AddressRange>,
    /// Default gateway of the machines.
    pub gateway: Option<IpAddr>,
    /// Routes of the machines in addition to the default route.
    pub routes: Vec<NetworkRoute>,
    /// Name servers of the machines.
    pub nameservers: Vec<IpAddr>,
    /// Search domains of the machines.
    pub search_domains: Vec<String>,
    /// MTU of the machines' interfaces.
    pub mtu: Option<u16>,
}

impl<'a> PoolSource<'a> {
    /// Returns the source of the addresses.
    ///
    /// # Errors
    /// Returns the reason if the TenantCluster specifies no source, or both sources.
    pub fn new(spec: &'a AddressPool) -> Result<Self, UnresolvedPool> {
        match (spec.cidr, &spec.from_pool) {
            (Some(cidr), None) => Ok(Self::Cidr(cidr)),
            (None, Some(pool)) => Ok(Self::FromPool(pool)),
            (Some(cidr), Some(pool)) => {
                Err(UnresolvedPool::TwoSources { cidr, pool: pool.clone() })
            }
            (None, None) => Err(UnresolvedPool::NoSource),
        }
    }
}

impl ResolvedPool {
    /// Returns the addresses and the configuration of one family. `prefixes` are the prefixes that the network has from
    /// pools in InfraConfig. Fields of the TenantCluster take precedence over the configuration of such a prefix.
    ///
    /// # Errors
    /// Returns the reason if the addresses are unknown.
    pub fn new(
        family: Family,
        spec: &AddressPool,
        prefixes: &[GrantedPrefix],
    ) -> Result<Self, UnresolvedPool> {
        let (cidr, defaults) = match PoolSource::new(spec)? {
            PoolSource::Cidr(cidr) => (cidr, None),
            PoolSource::FromPool(name) => {
                let prefix = find_prefix(family, name, prefixes);
                let prefix = prefix.ok_or_else(|| UnresolvedPool::Pending(name.to_owned()))?;
                (prefix.cidr, Some(prefix))
            }
        };
        let mut pool = Self {
            cidr,
            ranges: spec.ranges.clone(),
            exclude: spec.exclude.clone(),
            gateway: spec.gateway,
            routes: spec.routes.clone(),
            nameservers: spec.nameservers.clone(),
            search_domains: spec.search_domains.clone(),
            mtu: spec.mtu,
        };
        if let Some(defaults) = defaults {
            pool.gateway = pool.gateway.or(defaults.gateway);
            if pool.nameservers.is_empty() {
                pool.nameservers.clone_from(&defaults.nameservers);
            }
            if pool.search_domains.is_empty() {
                pool.search_domains.clone_from(&defaults.search_domains);
            }
            pool.mtu = pool.mtu.or(defaults.mtu);
        }
        Ok(pool)
    }
}

/// Returns the prefix of a family that is from the pool with this name.
#[must_use]
pub fn find_prefix<'a>(
    family: Family,
    pool: &str,
    prefixes: &'a [GrantedPrefix],
) -> Option<&'a GrantedPrefix> {
    prefixes.iter().find(|prefix| prefix.pool == pool && Family::of(prefix.cidr.addr()) == family)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn resolve(spec: Value, prefixes: Value) -> Result<ResolvedPool, UnresolvedPool> {
        let spec: AddressPool = serde_json::from_value(spec).unwrap();
        let prefixes: Vec<GrantedPrefix> = serde_json::from_value(prefixes).unwrap();
        ResolvedPool::new(Family::V4, &spec, &prefixes)
    }

    #[test]
    fn the_spec_takes_precedence_over_the_pool() {
        let prefixes = json!([
            {"pool": "corp", "cidr": "fd00::/64"},
            {"pool": "corp", "cidr": "10.1.0.0/24", "gateway": "10.1.0.1", "nameservers": ["10.0.0.53"],
             "searchDomains": ["corp.example"], "mtu": 1400},
        ]);
        let from_pool = resolve(json!({"fromPool": "corp"}), prefixes.clone()).unwrap();
        let explicit = json!({"cidr": "10.1.0.0/24", "gateway": "10.1.0.1", "nameservers": ["10.0.0.53"],
            "searchDomains": ["corp.example"], "mtu": 1400});
        assert_eq!(resolve(explicit, json!([])).unwrap(), from_pool);
        let overridden = json!({"fromPool": "corp", "gateway": "10.1.0.2", "nameservers": ["10.1.0.3"],
            "searchDomains": ["a.example"], "mtu": 1300, "ranges": ["10.1.0.9"]});
        let pool = resolve(overridden, prefixes).unwrap();
        assert_eq!((pool.gateway, pool.mtu), (Some("10.1.0.2".parse().unwrap()), Some(1300)));
        assert_eq!(
            (pool.nameservers.len(), pool.search_domains),
            (1, vec!["a.example".to_owned()])
        );
        assert_eq!(pool.ranges.len(), 1);
    }

    #[test]
    fn pools_without_addresses_have_a_reason() {
        let other = json!([{"pool": "other", "cidr": "10.1.0.0/24"}]);
        for (spec, words) in [
            (json!({}), "has neither cidr nor fromPool"),
            (
                json!({"cidr": "10.0.0.0/8", "fromPool": "corp"}),
                "has both cidr 10.0.0.0/8 and fromPool `corp`",
            ),
            (json!({"fromPool": "corp"}), "no prefix of pool `corp` yet"),
        ] {
            let error = resolve(spec, other.clone()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
