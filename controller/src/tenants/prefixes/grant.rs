//! Prefixes that a tenant's network has from pools of the InfraConfig, with the configuration of the pool.

use berth_api::{ConditionReason, GrantedPrefix, InfraConfigSpec, TenantCluster};
use ipnet::IpNet;

use super::pool::ValidPrefixPool;
use super::request::PrefixRequest;
use crate::tenants::addresses::family::Family;
use crate::tenants::fault::Fault;
use crate::tenants::status::{PartResult, ReadyPart, join_faults};

/// Prefixes of a tenant's network, and the faults of its [`PrefixRequest`]s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPrefixes {
    /// Prefixes for `status.prefixes` of the tenant.
    pub prefixes: Vec<GrantedPrefix>,
    /// Faults of the tenant's requests for prefixes.
    pub faults: Vec<Fault>,
}

impl TenantPrefixes {
    /// Adds the faults to the condition of the tenant's addresses. They replace its fault `PrefixPending`, because they
    /// contain the reason why a network has no prefix.
    #[must_use]
    pub fn join_faults(&self, addresses: Option<PartResult>) -> Option<PartResult> {
        let mut faults = self.faults.clone();
        let ready = match addresses? {
            Ok(ready) => ready,
            Err(fault) => {
                if faults.is_empty() || fault.reason != ConditionReason::PrefixPending {
                    faults.push(fault);
                }
                ReadyPart::ready(String::new())
            }
        };
        // The condition has the reason of the first fault. `PrefixInUse` is first, because it delays machines.
        faults.sort_by_key(|fault| fault.reason != ConditionReason::PrefixInUse);
        Some(join_faults(&faults, ready))
    }

    /// Adds the prefixes of a family that the tenant's status already contains. The caller uses this function if the
    /// family's request has a fault.
    pub fn keep_recorded(&mut self, tenant: &TenantCluster, family: Family) {
        let prefixes = tenant.status.iter().flat_map(|status| &status.prefixes);
        let of_family = |prefix: &&GrantedPrefix| Family::of(prefix.cidr.addr()) == family;
        self.prefixes.extend(prefixes.filter(of_family).cloned());
    }

    /// Adds a prefix with the current configuration of its pool. If the pool was removed or is invalid, adds the prefix
    /// with the configuration in the tenant's status.
    pub fn add(
        &mut self,
        request: PrefixRequest<'_>,
        pool: &str,
        prefix: IpNet,
        tenant: &TenantCluster,
        config: &InfraConfigSpec,
    ) {
        let keeps = |problem: &str| {
            let message = format!(
                "{}: the network keeps {prefix} of pool `{pool}`, {problem}; restore the pool in InfraConfig's \
                 spec.addressPools, or use another pool and replace the machines",
                request.field()
            );
            Fault::new(ConditionReason::PrefixOutsidePool, message)
        };
        let spec = config.address_pools.iter().find(|one| one.name == pool);
        let valid = match spec.map(ValidPrefixPool::new) {
            None => Err(keeps("which no longer exists")),
            Some(Err(fault)) => Err(fault),
            Some(Ok(valid)) => Ok(valid),
        };
        match valid {
            Ok(valid) => {
                if !valid.cidr.contains(&prefix) {
                    self.faults.push(keeps(&format!("whose cidr is now {}", valid.cidr)));
                }
                self.prefixes.push(valid.grant(prefix));
            }
            Err(fault) => {
                self.faults.push(fault);
                let mut recorded = tenant.status.iter().flat_map(|status| &status.prefixes);
                let recorded = recorded.find(|one| one.pool == pool && one.cidr == prefix);
                self.prefixes.push(recorded.cloned().unwrap_or_else(|| GrantedPrefix {
                    pool: pool.to_owned(),
                    cidr: prefix,
                    gateway: None,
                    nameservers: Vec::new(),
                    search_domains: Vec::new(),
                    mtu: None,
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tenant() -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "uid": "u-1"},
            "spec": {"network": {"name": "trunk", "ipv4": {"fromPool": "corp"}}},
            "status": {"prefixes": [{"pool": "corp", "cidr": "10.1.2.0/24", "nameservers": ["10.0.0.53"]}]},
        }))
        .unwrap()
    }

    fn add(pools: Value) -> TenantPrefixes {
        let (tenant, config) = (tenant(), json!({"addressPools": pools}));
        let config: InfraConfigSpec = serde_json::from_value(config).unwrap();
        let request = PrefixRequest::of_tenant(&tenant, Family::V4).unwrap().unwrap();
        assert_eq!(request.recorded, Some("10.1.2.0/24".parse().unwrap()));
        let mut all = TenantPrefixes::default();
        all.add(request, "corp", request.recorded.unwrap(), &tenant, &config);
        all
    }

    #[test]
    fn the_configuration_is_that_of_the_pool() {
        let pool = json!({"name": "corp", "cidr": "10.1.0.0/16", "prefixLength": 24, "gateway": "FirstAddress", "mtu": 1400});
        let TenantPrefixes { prefixes, faults } = add(json!([pool]));
        assert_eq!(faults, []);
        let expected =
            json!([{"pool": "corp", "cidr": "10.1.2.0/24", "gateway": "10.1.2.1", "mtu": 1400}]);
        assert_eq!(serde_json::to_value(&prefixes).unwrap(), expected);
    }

    #[test]
    fn the_condition_names_why_a_network_has_no_prefix() {
        let fault = |reason| Fault::new(reason, "why".to_owned());
        let reason = |faults: &[ConditionReason], addresses: Option<PartResult>| {
            let faults = faults.iter().copied().map(fault).collect();
            let all = TenantPrefixes { faults, ..TenantPrefixes::default() };
            all.join_faults(addresses)
                .map(|part| part.map_or_else(|fault| fault.reason, |ready| ready.reason))
        };
        use ConditionReason::{
            AddressesExhausted, PoolExhausted, PrefixInUse, PrefixOutsidePool, PrefixPending, Ready,
        };
        let ready = || Some(Ok(ReadyPart::ready(String::new())));
        let pending = || Some(Err(fault(PrefixPending)));
        assert_eq!(reason(&[], None), None);
        assert_eq!(reason(&[], ready()), Some(Ready));
        assert_eq!(reason(&[], Some(Err(fault(AddressesExhausted)))), Some(AddressesExhausted));
        assert_eq!(reason(&[PoolExhausted], pending()), Some(PoolExhausted));
        assert_eq!(reason(&[PrefixOutsidePool, PrefixInUse], ready()), Some(PrefixInUse));
    }

    #[test]
    fn a_changed_pool_takes_nothing_away() {
        let before = tenant().status.unwrap().prefixes;
        for (pools, reason, words) in [
            (
                json!([]),
                ConditionReason::PrefixOutsidePool,
                "keeps 10.1.2.0/24 of pool `corp`, which no longer exists",
            ),
            (
                json!([{"name": "corp", "cidr": "10.1.0.0/16", "prefixLength": 8}]),
                ConditionReason::InvalidAddressPool,
                "addressPools[corp].prefixLength: 8 is not from 16 to 30",
            ),
            (
                json!([{"name": "corp", "cidr": "10.9.0.0/16", "prefixLength": 24, "nameservers": ["10.0.0.53"]}]),
                ConditionReason::PrefixOutsidePool,
                "whose cidr is now 10.9.0.0/16",
            ),
        ] {
            let TenantPrefixes { prefixes, faults } = add(pools);
            assert_eq!((&prefixes, faults[0].reason), (&before, reason));
            assert!(faults[0].message.contains(words), "{faults:?}");
        }
        let mut kept = TenantPrefixes::default();
        kept.keep_recorded(&tenant(), Family::V6);
        assert_eq!(kept.prefixes, []);
        kept.keep_recorded(&tenant(), Family::V4);
        assert_eq!(kept.prefixes, before);
    }
}
