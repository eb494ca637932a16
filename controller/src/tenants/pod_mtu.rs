//! Compares the MTU of the tenant's pod network, as the TenantCluster declares it, with the MTU of the tenant's
//! machines. A mismatch is only reported: Berth configures no network plugin in the tenant's cluster.

use berth_api::{
    ConditionReason, GrantedPrefix, PodEncapsulation, PodNetwork, TenantCluster, TenantNetwork,
};

use super::addresses::pools::NetworkPools;
use super::comparison::Comparison;

/// Type of the condition that is true if packets of pods fit into the packets of machines. It is absent without
/// `spec.network.podNetwork`.
pub const POD_MTU_FITS: &str = "PodMTUFits";

/// Field that declares the MTU.
const FIELD: &str = "spec.network.podNetwork.mtu";

/// Compares the MTU of the pod network with that of the machines. `prefixes` are the prefixes that the network has from
/// the pools in InfraConfig, and `network_mtu` is the MTU of the network. Returns `None` if the TenantCluster does not
/// declare the pod network.
#[must_use]
pub fn compare(
    tenant: &TenantCluster,
    prefixes: &[GrantedPrefix],
    network_mtu: Option<u32>,
) -> Option<Comparison> {
    let network = tenant.spec.network.as_ref()?;
    let pods = network.pod_network.as_ref()?;
    let Some(network_mtu) = network_mtu else {
        return Some(Comparison {
            status: "Unknown",
            reason: ConditionReason::MtuUnknown,
            message: format!("no host reports the MTU of network {}", network.name),
        });
    };
    // A larger MTU of machines than that of their network is reported elsewhere; larger packets do not arrive.
    let machines = requested_mtu(network, prefixes).map_or(network_mtu, |mtu| network_mtu.min(mtu));
    let largest = pods.max_mtu(machines, network.ipv4.is_some(), network.ipv6.is_some());
    let limit = format!("MTU of machines {machines}, encapsulation {}", join(pods));
    Some(if u32::from(pods.mtu) <= largest {
        Comparison {
            status: "True",
            reason: ConditionReason::PodMtuFits,
            message: format!("pods have the MTU {}, at most {largest} fit ({limit})", pods.mtu),
        }
    } else {
        Comparison {
            status: "False",
            reason: ConditionReason::PodMtuTooLarge,
            message: format!(
                "{FIELD}: {} is larger than {largest} ({limit}): larger packets of pods are lost; set the MTU of the \
                 tenant's network plugin and this field to at most {largest}, or increase the MTU of the machines",
                pods.mtu
            ),
        }
    })
}

/// Returns the MTU that the pools specify. Machines keep the MTU of a pool that is invalid at present, and its MTU is
/// valid.
fn requested_mtu(network: &TenantNetwork, prefixes: &[GrantedPrefix]) -> Option<u32> {
    if let Ok(pools) = NetworkPools::new(network, prefixes) {
        return pools?.requested_mtu().map(|(_, mtu)| mtu.into());
    }
    let pools = [&network.ipv4, &network.ipv6].into_iter().flatten();
    pools.filter_map(|pool| pool.mtu).min().map(u32::from)
}

fn join(pods: &PodNetwork) -> String {
    if pods.encapsulation.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = pods.encapsulation.iter().map(PodEncapsulation::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn compare_pods(network: Value, mtu: Option<u32>) -> Option<Comparison> {
        let mut all = json!({"name": "trunk"});
        all.as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
        let spec = serde_json::from_value(json!({"network": all})).unwrap();
        compare(&TenantCluster::new("a", spec), &[], mtu)
    }

    #[test]
    fn the_overhead_of_the_tunnels_is_subtracted() {
        use ConditionReason::{MtuUnknown, PodMtuFits, PodMtuTooLarge};
        let pods = |mtu: u32, tunnels: Value| json!({"podNetwork": {"mtu": mtu, "encapsulation": tunnels}});
        let with_pool = |family: &str, pool: Value, mut network: Value| {
            network[family] = pool;
            network
        };
        let v6 = || json!({"cidr": "fd00::/64"});
        let v4 = |mtu: u32| json!({"cidr": "10.0.0.0/24", "mtu": mtu});
        let vxlan = || json!(["Vxlan"]);
        for (network, mtu, expected) in [
            (json!({}), Some(1500), None),
            (pods(1500, json!([])), Some(1500), Some(PodMtuFits)),
            (pods(1501, json!([])), Some(1500), Some(PodMtuTooLarge)),
            (pods(1450, vxlan()), Some(1500), Some(PodMtuFits)),
            (pods(1451, vxlan()), Some(1500), Some(PodMtuTooLarge)),
            (pods(1450, vxlan()), None, Some(MtuUnknown)),
            (with_pool("ipv6", v6(), pods(1450, vxlan())), Some(1500), Some(PodMtuTooLarge)),
            (with_pool("ipv6", v6(), pods(1430, vxlan())), Some(1500), Some(PodMtuFits)),
            (with_pool("ipv4", v4(1400), pods(1400, vxlan())), Some(1500), Some(PodMtuTooLarge)),
            (with_pool("ipv4", v4(1400), pods(1350, vxlan())), Some(1500), Some(PodMtuFits)),
            // Packets of the size that the pool specifies do not arrive.
            (with_pool("ipv4", v4(9000), pods(1500, vxlan())), Some(1500), Some(PodMtuTooLarge)),
        ] {
            let found = compare_pods(network.clone(), mtu);
            assert_eq!(found.as_ref().map(|one| one.reason), expected, "{network} {found:?}");
        }
    }

    #[test]
    fn the_message_has_the_remedy() {
        let network =
            json!({"podNetwork": {"mtu": 1500, "encapsulation": ["Vxlan", "WireGuardCilium"]}});
        let found = compare_pods(network, Some(1500)).unwrap();
        assert_eq!(found.status, "False");
        let words = "spec.network.podNetwork.mtu: 1500 is larger than 1370 (MTU of machines 1500, encapsulation Vxlan, \
                     WireGuardCilium)";
        assert!(found.message.starts_with(words), "{}", found.message);
        assert!(found.message.contains("to at most 1370, or increase"), "{}", found.message);
    }

    proptest! {
        #[test]
        fn any_number_is_compared(pods in 576_u16.., machines: u32) {
            let network = json!({"podNetwork": {"mtu": pods, "encapsulation": ["Geneve"]}});
            let found = compare_pods(network, Some(machines)).unwrap();
            let fits = u64::from(pods) + 50 <= u64::from(machines);
            prop_assert_eq!(found.status == "True", fits, "{}", found.message);
        }
    }
}
