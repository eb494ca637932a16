//! MTU of a tenant's network: computes the MTU that all its hosts can carry, and checks whether the MTU of the machines
//! fits. A mismatch is only reported; machines are not changed.

use std::sync::Arc;

use berth_api::mtu::MIN_IPV6_MTU;
use berth_api::{ConditionReason, GrantedPrefix, TenantCluster, TenantNetwork};

use super::addresses::family::Family;
use super::addresses::pools::NetworkPools;
use super::fault::{Fault, join_names_limited};
use super::hosts::TenantHostState;
use super::network::HostNetwork;

/// Returns the MTU in the status of a TenantCluster.
fn recorded_mtu(tenant: &TenantCluster) -> Option<u32> {
    tenant.status.as_ref()?.mtu
}

/// Returns the host network of a tenant. If its MTU is unknown, uses the last known MTU, which the machines use.
#[must_use]
pub fn with_last_known_mtu(network: HostNetwork, tenant: &TenantCluster) -> HostNetwork {
    HostNetwork { mtu: network.mtu.or_else(|| recorded_mtu(tenant)), ..network }
}

/// Returns the MTU for the status of a TenantCluster. If the network of the tenant is unknown, returns the last known
/// MTU.
#[must_use]
pub fn status_mtu(
    tenant: &TenantCluster,
    network: &Result<Option<HostNetwork>, Fault>,
) -> Option<u32> {
    match network {
        Ok(network) => network.as_ref()?.mtu,
        Err(_) => recorded_mtu(tenant),
    }
}

/// Returns a fault if the MTU of the machines does not fit the hosts that carry the tenant's network. `prefixes` are
/// the prefixes that the network has from the pools in InfraConfig. Invalid pools are reported elsewhere.
#[must_use]
pub fn find_fault(
    tenant: &TenantCluster,
    prefixes: &[GrantedPrefix],
    hosts: &[Arc<TenantHostState>],
) -> Option<Fault> {
    let spec = tenant.spec.network.as_ref()?;
    let pools = NetworkPools::new(spec, prefixes).ok().flatten()?;
    let carriers = hosts.iter().filter(|host| host.carries(tenant));
    let carried: Vec<(&str, u32)> = carriers
        .filter_map(|host| Some((host.name.as_str(), host.carried_mtu(&spec.name)?)))
        .collect();
    let smallest = carried.iter().map(|(_, mtu)| *mtu).min()?;
    let narrow_hosts = |needed: u32| {
        let mut narrow: Vec<String> = carried
            .iter()
            .filter(|(_, mtu)| *mtu < needed)
            .map(|(host, mtu)| format!("{host} ({mtu})"))
            .collect();
        narrow.sort();
        join_names_limited(&narrow)
    };
    let message = if let Some((family, mtu)) = pools.requested_mtu() {
        if u32::from(mtu) <= smallest {
            return None;
        }
        format!(
            "{}: {mtu} is larger than the MTU of network {} on hosts {}: larger packets are lost; remove the field, \
             set at most {smallest}, or increase the MTU of switches, uplinks and spec.networks[{}].mtu of these hosts",
            mtu_field(spec, family),
            spec.name,
            narrow_hosts(mtu.into()),
            spec.name
        )
    } else if spec.ipv6.is_some() && smallest < MIN_IPV6_MTU {
        format!(
            "{}: IPv6 requires an MTU of at least {MIN_IPV6_MTU}, but the MTU of network {} is smaller on hosts {}; \
             increase the MTU of switches, uplinks and spec.networks[{}].mtu of these hosts",
            Family::V6.field(),
            spec.name,
            narrow_hosts(MIN_IPV6_MTU),
            spec.name
        )
    } else {
        return None;
    };
    Some(Fault::new(ConditionReason::MtuMismatch, message))
}

/// Returns the field that specifies the MTU of the machines: `mtu` of the TenantCluster or, if it is not set, `mtu` of
/// the pool in InfraConfig from which the network has its prefix.
fn mtu_field(spec: &TenantNetwork, family: Family) -> String {
    let pool = match family {
        Family::V4 => spec.ipv4.as_ref(),
        Family::V6 => spec.ipv6.as_ref(),
    };
    match pool.filter(|pool| pool.mtu.is_none()).and_then(|pool| pool.from_pool.as_ref()) {
        Some(name) => format!("InfraConfig default: spec.addressPools[{name}].mtu"),
        None => format!("{}.mtu", family.field()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_api::TenantClusterStatus;
    use berth_api::infra_node::NetworkScenario;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn host(name: &str, configured: Option<u32>, reported: Option<u32>) -> Arc<TenantHostState> {
        let mtus =
            |mtu: Option<u32>| mtu.map(|mtu| ("trunk".to_owned(), mtu)).into_iter().collect();
        let spec = json!({"name": "trunk", "scenario": "VlanAwareBridge"});
        Arc::new(TenantHostState {
            name: name.to_owned(),
            labels: Some(BTreeMap::new()),
            networks: vec![serde_json::from_value(spec).unwrap()],
            mtus: mtus(configured),
            reported_mtus: mtus(reported),
            ..TenantHostState::default()
        })
    }

    fn tenant(pools: Value) -> TenantCluster {
        let mut network = json!({"name": "trunk"});
        network.as_object_mut().unwrap().extend(pools.as_object().unwrap().clone());
        TenantCluster::new("a", serde_json::from_value(json!({"network": network})).unwrap())
    }

    fn message(pools: Value, hosts: &[Arc<TenantHostState>]) -> Option<String> {
        let fault = find_fault(&tenant(pools), &[], hosts)?;
        assert_eq!(fault.reason, ConditionReason::MtuMismatch);
        Some(fault.message)
    }

    #[test]
    fn a_larger_mtu_than_that_of_hosts_is_reported_with_the_hosts() {
        let pool = |mtu: u32| json!({"ipv4": {"cidr": "10.0.0.0/24", "mtu": mtu}});
        let hosts = [
            host("b", Some(9000), Some(1500)),
            host("a", Some(4000), None),
            host("c", Some(9000), Some(9000)),
            host("d", None, None),
        ];
        assert_eq!(message(pool(1500), &hosts), None);
        let found = message(pool(9000), &hosts).unwrap();
        let expected =
            "9000 is larger than the MTU of network trunk on hosts a (4000), b (1500): larger";
        assert!(
            found.starts_with("spec.network.ipv4.mtu: ") && found.contains(expected),
            "{found}"
        );
        assert!(found.contains("set at most 1500"), "{found}");
        assert_eq!(message(pool(9000), &hosts[3..]), None, "the MTU is unknown");
        let many: Vec<_> = (0..99).map(|n| host(&format!("h{n:02}"), Some(1500), None)).collect();
        let found = message(pool(9000), &many).unwrap();
        assert!(found.contains("h03 (1500) and 95 more"), "{found}");
    }

    #[test]
    fn the_smaller_mtu_of_both_families_is_compared() {
        let pools = |v4: u32, v6: u32| {
            json!({
                "ipv4": {"cidr": "10.0.0.0/24", "mtu": v4},
                "ipv6": {"cidr": "fd00::/64", "mtu": v6},
            })
        };
        let hosts = [host("a", Some(1500), None)];
        assert_eq!(message(pools(9000, 1500), &hosts), None);
        let found = message(pools(9000, 1501), &hosts).unwrap();
        assert!(found.starts_with("spec.network.ipv6.mtu: 1501"), "{found}");
    }

    #[test]
    fn the_mtu_of_a_pool_of_the_config_is_named_there() {
        let prefix = json!({"pool": "corp", "cidr": "10.1.2.0/24", "mtu": 9000});
        let prefixes: Vec<GrantedPrefix> = vec![serde_json::from_value(prefix).unwrap()];
        let hosts = [host("a", Some(1500), None)];
        for (pool, field) in [
            (json!({"fromPool": "corp"}), "InfraConfig default: spec.addressPools[corp].mtu: 9000"),
            (json!({"fromPool": "corp", "mtu": 4000}), "spec.network.ipv4.mtu: 4000"),
        ] {
            let fault = find_fault(&tenant(json!({"ipv4": pool})), &prefixes, &hosts).unwrap();
            assert!(fault.message.starts_with(field), "{fault}");
        }
    }

    #[test]
    fn a_network_without_room_for_ipv6_is_reported() {
        let hosts = [host("a", Some(1279), None)];
        assert_eq!(message(json!({"ipv4": {"cidr": "10.0.0.0/24"}}), &hosts), None);
        let found = message(json!({"ipv6": {"cidr": "fd00::/64"}}), &hosts).unwrap();
        assert!(found.starts_with("spec.network.ipv6: IPv6 requires"), "{found}");
        assert_eq!(message(json!({}), &hosts), None);
        assert_eq!(message(json!({"ipv4": {"cidr": "10.0.0.0/32", "mtu": 9000}}), &hosts), None);
    }

    #[test]
    fn the_last_known_mtu_stays() {
        let mut tenant = tenant(json!({}));
        tenant.status = Some(TenantClusterStatus { mtu: Some(1400), ..Default::default() });
        let mut network = HostNetwork::for_tests(NetworkScenario::VlanAwareBridge);
        let status = |network: &HostNetwork| {
            let network = with_last_known_mtu(network.clone(), &tenant);
            status_mtu(&tenant, &Ok(Some(network)))
        };
        assert_eq!(status(&network), Some(1500));
        network.mtu = None;
        assert_eq!(status(&network), Some(1400));
        let fault = Fault::new(ConditionReason::NoHosts, String::new());
        assert_eq!(status_mtu(&tenant, &Err(fault)), Some(1400));
        assert_eq!(status_mtu(&tenant, &Ok(None)), None);
    }

    proptest! {
        #[test]
        fn a_fault_names_exactly_the_hosts_with_a_smaller_mtu(
            mtu in 576_u16..,
            hosts in prop::collection::vec((any::<Option<u16>>(), any::<Option<u16>>()), 0..5),
        ) {
            let pool = json!({"ipv4": {"cidr": "10.0.0.0/24", "mtu": mtu}});
            let hosts: Vec<Arc<TenantHostState>> = hosts
                .into_iter()
                .zip('a'..)
                .map(|((configured, reported), name)| {
                    host(&name.to_string(), configured.map(u32::from), reported.map(u32::from))
                })
                .collect();
            let is_narrow = |host: &Arc<TenantHostState>| {
                host.carried_mtu("trunk").is_some_and(|carried| carried < u32::from(mtu))
            };
            let found = message(pool, &hosts);
            prop_assert_eq!(found.is_some(), hosts.iter().any(is_narrow));
            if let Some(found) = found {
                for host in hosts.iter().filter(|host| is_narrow(host)).take(4) {
                    let shown = format!("{} (", host.name);
                    prop_assert!(found.contains(&shown), "{}", found);
                }
            }
        }
    }
}
