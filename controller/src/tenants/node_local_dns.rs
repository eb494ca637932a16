//! Compares the addresses of NodeLocal DNSCache in the infra cluster and in a tenant's cluster.
//!
//! A machine on the pod network uses the name servers of its launcher pod, which are those of the infra cluster. If the
//! tenant's NodeLocal DNSCache binds the same address inside of the machine, it forwards queries to itself, and no name
//! can be resolved.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use berth_api::{ConditionReason, TenantCluster};
use k8s_openapi::api::core::v1::ConfigMap;

use super::comparison::Comparison;

/// Name of the ConfigMap of NodeLocal DNSCache in the namespace kube-system.
pub const NODE_LOCAL_DNS: &str = "node-local-dns";
/// Type of the condition that is true if the addresses differ. The condition is absent if the infra cluster has no
/// NodeLocal DNSCache.
pub const NODE_LOCAL_DNS_DISTINCT: &str = "NodeLocalDNSDistinct";

/// Default address of NodeLocal DNSCache in the manifests of Kubernetes.
const DEFAULT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 20, 10));
/// Key of the ConfigMap whose value is the configuration.
const COREFILE: &str = "Corefile";
/// Maximum number of addresses that are compared. NodeLocal DNSCache usually has one or two addresses of each family.
const MAX_ADDRESSES: usize = 16;

/// Returns the addresses of the plugin `bind` in a Corefile. Words that are not addresses, such as placeholders, are
/// ignored.
#[must_use]
pub fn bound_addresses<'m>(
    config_maps: impl Iterator<Item = &'m Arc<ConfigMap>>,
) -> BTreeSet<IpAddr> {
    let files = config_maps.filter_map(|map| map.data.as_ref()?.get(COREFILE));
    let lines = files.flat_map(|file| file.lines());
    let binds = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("bind")).then_some(words)
    });
    let words = binds.flatten();
    let mut found = BTreeSet::new();
    for address in words.filter_map(|word| word.parse().ok()) {
        if found.len() < MAX_ADDRESSES {
            found.insert(address);
        }
    }
    found
}

/// Compares the address in the TenantCluster with `infra`, the addresses in the infra cluster. Returns `None` if
/// `infra` is empty, or if the TenantCluster has no address and `infra` does not contain the default address.
#[must_use]
pub fn compare(tenant: &TenantCluster, infra: &BTreeSet<IpAddr>) -> Option<Comparison> {
    let field = "spec.nodeLocalDNSAddress";
    let Some(address) = tenant.spec.node_local_dns_address else {
        return infra.contains(&DEFAULT_ADDRESS).then(|| Comparison {
            status: "Unknown",
            reason: ConditionReason::TenantAddressUnknown,
            message: format!(
                "NodeLocal DNSCache of the infra cluster has the default address {DEFAULT_ADDRESS}: if the tenant's cluster runs \
                 NodeLocal DNSCache, set {field} to its address"
            ),
        });
    };
    let first = infra.first()?;
    Some(if infra.contains(&address) {
        Comparison {
            status: "False",
            reason: ConditionReason::AddressCollision,
            message: format!(
                "{field}: `{address}` is also an address of NodeLocal DNSCache in the infra cluster. Machines that use the name servers of \
                 their launcher pods cannot resolve names, because NodeLocal DNSCache in the tenant's cluster would forward \
                 queries to itself: use another address in the tenant's cluster, or set dnsPolicy: None and dnsConfig in its \
                 MachineDeployments or in InfraConfig"
            ),
        }
    } else {
        Comparison {
            status: "True",
            reason: ConditionReason::AddressesDistinct,
            message: format!("{address} in the tenant's cluster, {first} in the infra cluster"),
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn config_map(corefile: &str) -> Arc<ConfigMap> {
        Arc::new(serde_json::from_value(json!({"data": {"Corefile": corefile}})).unwrap())
    }

    fn addresses(all: &[&str]) -> BTreeSet<IpAddr> {
        all.iter().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_read_from_the_corefile() {
        let file = "cluster.local:53 {\n    cache {\n        success 9984 30\n    }\n    \
                    bind 169.254.20.10 10.96.0.10\n    forward . __PILLAR__CLUSTER__DNS__\n}\n\
                    .:53 {\n\tbind\t__PILLAR__LOCAL__DNS__ fd00::a\n    bindings 192.0.2.1\n}\n";
        let found = bound_addresses([config_map(file)].iter());
        assert_eq!(found, addresses(&["169.254.20.10", "10.96.0.10", "fd00::a"]));
        assert!(bound_addresses([Arc::new(ConfigMap::default())].iter()).is_empty());
    }

    #[test]
    fn a_collision_is_reported() {
        let reason = |address: Option<&str>, infra: &[&str]| {
            let spec = json!({"nodeLocalDNSAddress": address});
            let tenant = TenantCluster::new("abc", serde_json::from_value(spec).unwrap());
            compare(&tenant, &addresses(infra)).map(|one| (one.status, one.reason))
        };
        let default = "169.254.20.10";
        assert_eq!(reason(Some(default), &[]), None);
        assert_eq!(reason(None, &["169.254.1.1"]), None);
        let unknown = Some(("Unknown", ConditionReason::TenantAddressUnknown));
        assert_eq!(reason(None, &[default]), unknown);
        let collision = Some(("False", ConditionReason::AddressCollision));
        assert_eq!(reason(Some("10.96.0.10"), &[default, "10.96.0.10"]), collision);
        let distinct = Some(("True", ConditionReason::AddressesDistinct));
        assert_eq!(reason(Some("169.254.20.11"), &[default]), distinct);
    }

    proptest! {
        #[test]
        fn any_corefile_is_read(file in "(\\PC|\n){0,200}") {
            prop_assert!(bound_addresses([config_map(&file)].iter()).len() <= MAX_ADDRESSES);
        }
    }
}
