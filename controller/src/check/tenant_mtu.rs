//! Check of the MTU of one tenant's network and machines (`--tenant`), with the largest MTU of the tenant's own pod
//! network.

use berth_api::{PodEncapsulation, PodNetwork};
use serde_json::Value;

use super::definition::Check;
use super::input::Input;
use super::read::Unread;
use super::tenant::found;
use super::values::{items, text};
use berth_runtime::check::Outcome;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "tenant.mtu",
    title: "MTU of the tenant's machines",
    explanation: "The MTU of the machines (spec.network.ipv4.mtu and ipv6.mtu, or that of their pool in \
        status.prefixes, by default that of the network) must be at most the MTU of the tenant's network \
        (status.mtu) and of its NetworkAttachmentDefinition: WARN otherwise. The message has the largest MTU of the \
        tenant's own pod network for each kind of tunnel; the tenant's network plugin is not examined. WARN too if \
        the MTU in spec.network.podNetwork is larger than the MTU of the machines minus the overhead of its tunnels. \
        SKIP for a tenant without a network, or if no host reports an MTU.",
    run: check_mtu,
}];

/// Tunnels between the nodes of a tenant cluster: name, and a tunnel with its overhead.
const TUNNELS: [(&str, PodEncapsulation); 5] = [
    ("VXLAN or Geneve", PodEncapsulation::Vxlan),
    ("Geneve of OVN-Kubernetes", PodEncapsulation::GeneveOvnKubernetes),
    ("Geneve of OpenShift or Kube-OVN", PodEncapsulation::GeneveOpenShift),
    ("WireGuard of Calico", PodEncapsulation::WireGuardCalico),
    ("WireGuard of Cilium", PodEncapsulation::WireGuardCilium),
];

fn check_mtu(input: &Input) -> Result<Outcome, Unread> {
    let tenant = input.tenant()?;
    let evidence = format!("TenantCluster {}", tenant.name);
    let object = found(&tenant.object, &evidence)?.unwrap_or(&Value::Null);
    if !object.pointer("/spec/network").is_some_and(Value::is_object) {
        return Ok(Outcome::skip("the tenant has no network"));
    }
    let number = |field: &str| object.pointer(field).and_then(Value::as_u64);
    let Some(network) = number("/status/mtu") else {
        return Ok(Outcome::skip("no host reports the MTU of the tenant's network"));
    };
    let pools = ["ipv4", "ipv6"].map(|pool| pool_mtu(object, pool));
    let requested = pools.iter().flatten().map(|(_, mtu)| *mtu).min();
    let machines = requested.unwrap_or(network);
    let definition =
        tenant.definition.as_ref().and_then(|(_, read)| definition_mtu(read.as_ref().ok()?));
    let limit = definition.map_or(network, |definition| definition.min(network));
    let pods = declared_pods(object);
    let largest = pods.as_ref().map(|pods| largest_pod_mtu(object, pods, machines.min(limit)));
    let too_large =
        pods.as_ref().zip(largest).filter(|(pods, largest)| u64::from(pods.mtu) > *largest);
    let outcome = if machines > limit {
        Outcome::warn(format!(
            "machines have the MTU {machines}, and the network carries {limit} bytes: larger packets are lost; MTU of \
             the pod network: at most {}",
            pod_network_mtus(limit)
        ))
        .remedy(format!(
            "remove spec.network.ipv4.mtu and ipv6.mtu, and mtu of InfraConfig's spec.addressPools, or set them to at \
             most {limit}; or increase the MTU of switches, uplinks and spec.networks[].mtu: kubectl edit tenantcluster {}",
            tenant.name
        ))
    } else if let Some((pods, largest)) = too_large {
        Outcome::warn(format!(
            "pods have the MTU {}, and at most {largest} fits into the packets of machines with the MTU {machines}: \
             larger packets of pods are lost; MTU of the pod network: at most {}",
            pods.mtu,
            pod_network_mtus(machines)
        ))
        .remedy(format!(
            "set the MTU of the tenant's network plugin, and spec.network.podNetwork.mtu, to at most {largest}; or \
             increase the MTU of the machines: kubectl edit tenantcluster {}",
            tenant.name
        ))
    } else {
        Outcome::pass(format!(
            "{machines}; MTU of the pod network: at most {}",
            pod_network_mtus(machines)
        ))
    };
    let mut outcome = outcome.with_evidence(format!("{evidence} status.mtu"), network);
    for (field, mtu) in pools.into_iter().flatten() {
        outcome = outcome.with_evidence(format!("{evidence} {field}"), mtu);
    }
    if let (Some((name, _)), Some(mtu)) = (&tenant.definition, definition) {
        outcome = outcome.with_evidence(format!("NetworkAttachmentDefinition {name}"), mtu);
    }
    if let Some(pods) = &pods {
        outcome =
            outcome.with_evidence(format!("{evidence} spec.network.podNetwork.mtu"), pods.mtu);
    }
    Ok(outcome)
}

/// Returns the pod network that the TenantCluster declares; `None` also if its value is malformed.
fn declared_pods(object: &Value) -> Option<PodNetwork> {
    serde_json::from_value(object.pointer("/spec/network/podNetwork")?.clone()).ok()
}

/// Returns the largest MTU of the declared pod network on machines with the MTU `machines`.
fn largest_pod_mtu(object: &Value, pods: &PodNetwork, machines: u64) -> u64 {
    let [has_ipv4, has_ipv6] = ["ipv4", "ipv6"].map(|family| {
        object.pointer(&format!("/spec/network/{family}")).is_some_and(Value::is_object)
    });
    let machines = u32::try_from(machines).unwrap_or(u32::MAX);
    pods.max_mtu(machines, has_ipv4, has_ipv6).into()
}

/// Returns the MTU of the machines for `pool` (`ipv4` or `ipv6`), with the name of the field that specifies it: the
/// spec of the TenantCluster or, without an MTU there, its `status.prefixes`. `None` if neither specifies an MTU.
fn pool_mtu(object: &Value, pool: &str) -> Option<(String, u64)> {
    let network = object.pointer(&format!("/spec/network/{pool}"))?;
    if let Some(mtu) = network.get("mtu").and_then(Value::as_u64) {
        return Some((format!("spec.network.{pool}.mtu"), mtu));
    }
    let name = network.get("fromPool")?.as_str()?;
    let mut prefixes = items(object, "/status/prefixes");
    let prefix = prefixes.find(|prefix| {
        let is_ipv6 = text(prefix, "/cidr").contains(':');
        text(prefix, "/pool") == name && is_ipv6 == (pool == "ipv6")
    })?;
    Some((format!("status.prefixes[{name}].mtu"), prefix.get("mtu")?.as_u64()?))
}

/// Returns the MTU in the CNI configuration of a NetworkAttachmentDefinition.
fn definition_mtu(definition: &Value) -> Option<u64> {
    let config: Value = serde_json::from_str(text(definition, "/spec/config")).ok()?;
    config.get("mtu")?.as_u64()
}

/// Returns, for each kind of tunnel, the largest MTU of the pod network of a tenant cluster whose nodes have the MTU
/// `machines`.
fn pod_network_mtus(machines: u64) -> String {
    let one = |(tunnel, encapsulation): &(&str, PodEncapsulation)| {
        let [v4, v6] = [false, true]
            .map(|is_ipv6| machines.saturating_sub(encapsulation.overhead(is_ipv6).into()));
        format!("{v4} with {tunnel} over IPv4 ({v6} over IPv6)")
    };
    TUNNELS.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use berth_runtime::check::Status;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::check::tenant_input::{KubeconfigState, TenantInput};
    use crate::check::test_helpers::run_check;

    /// Returns the outcome for a TenantCluster with this `spec.network` and this status, whose
    /// NetworkAttachmentDefinition has the CNI configuration `config`.
    fn outcome(network: Value, status: Value, config: &str) -> Outcome {
        let definition = Ok(json!({"spec": {"config": config}}));
        let tenant = TenantInput {
            name: "bank".to_owned(),
            object: Ok(json!({"spec": {"network": network}, "status": status})),
            namespace: Ok(json!({})),
            definition: Some(("cluster-bank/tenant-bank".to_owned(), definition)),
            machine_deployments: Ok(Vec::new()),
            kubeconfig: KubeconfigState::NotReferenced,
            api_server: None,
        };
        run_check("tenant.mtu", &Input { tenant: Some(tenant), ..Input::default() })
    }

    #[test]
    fn machines_have_at_most_the_mtu_of_the_network() {
        let pools = |mtu: u32| json!({"ipv4": {"mtu": mtu}, "ipv6": {"mtu": 9000}});
        let status = || json!({"mtu": 1500});
        let default = outcome(json!({}), status(), r#"{"mtu": 1500}"#);
        assert_eq!(default.status, Status::Pass);
        assert!(
            default.message.contains("at most 1450 with VXLAN or Geneve over IPv4"),
            "{default:?}"
        );
        assert!(default.message.contains("1420 over IPv6"), "{default:?}");
        assert_eq!(outcome(pools(1400), status(), "").status, Status::Pass);
        let large = outcome(pools(4000), status(), r#"{"mtu": 1500}"#);
        assert_eq!(large.status, Status::Warn);
        assert!(large.message.contains("MTU 4000, and the network carries 1500"), "{large:?}");
        let pods =
            "MTU of the pod network: at most 1450 with VXLAN or Geneve over IPv4 (1430 over IPv6)";
        assert!(large.message.contains(pods), "the limit of the network counts: {large:?}");
        assert_eq!(outcome(json!({}), status(), r#"{"mtu": 1400}"#).status, Status::Warn);
        assert_eq!(outcome(json!({}), json!({}), "").status, Status::Skip);
        assert_eq!(outcome(Value::Null, status(), "").status, Status::Skip);
        for malformed in ["{", "7", r#"{"mtu": "x"}"#, r#"{"mtu": -1}"#] {
            assert_eq!(outcome(json!({"ipv4": 7}), status(), malformed).status, Status::Pass);
        }
    }

    #[test]
    fn the_mtu_of_a_prefix_counts() {
        let check = |prefix: Value, ipv4: Value| {
            outcome(json!({"ipv4": ipv4}), json!({"mtu": 1500, "prefixes": [prefix]}), "").status
        };
        let prefix = |pool: &str, cidr: &str| json!({"pool": pool, "cidr": cidr, "mtu": 9000});
        let corp = || json!({"fromPool": "corp"});
        assert_eq!(check(prefix("corp", "10.1.0.0/24"), corp()), Status::Warn);
        assert_eq!(check(prefix("corp", "fd00::/64"), corp()), Status::Pass);
        assert_eq!(check(prefix("other", "10.1.0.0/24"), corp()), Status::Pass);
        let own = json!({"fromPool": "corp", "mtu": 1400});
        assert_eq!(check(prefix("corp", "10.1.0.0/24"), own), Status::Pass);
        for malformed in [json!(7), json!({"pool": "corp"}), json!({"pool": 1, "cidr": 2})] {
            assert_eq!(check(malformed, corp()), Status::Pass);
        }
    }

    #[test]
    fn the_declared_mtu_of_pods_is_compared() {
        let check = |pods: Value, pool: Value| {
            let mut network = json!({"podNetwork": pods});
            network.as_object_mut().unwrap().extend(pool.as_object().unwrap().clone());
            outcome(network, json!({"mtu": 1500}), "")
        };
        let vxlan = |mtu: u32| json!({"mtu": mtu, "encapsulation": ["Vxlan"]});
        assert_eq!(check(vxlan(1450), json!({})).status, Status::Pass);
        let large = check(vxlan(1451), json!({}));
        assert_eq!(large.status, Status::Warn);
        assert!(large.message.contains("MTU 1451, and at most 1450 fits"), "{large:?}");
        assert!(large.remedy.as_ref().unwrap().contains("to at most 1450"), "{large:?}");
        let native = json!({"mtu": 1500, "encapsulation": []});
        assert_eq!(check(native.clone(), json!({})).status, Status::Pass);
        assert_eq!(check(native, json!({"ipv4": {"mtu": 1400}})).status, Status::Warn);
        assert_eq!(check(vxlan(1450), json!({"ipv6": {}})).status, Status::Warn);
        assert_eq!(check(vxlan(1450), json!({"ipv4": {}, "ipv6": {}})).status, Status::Pass);
        for malformed in
            [json!(7), json!({"mtu": 9000}), json!({"mtu": 9000, "encapsulation": ["x"]})]
        {
            assert_eq!(check(malformed, json!({})).status, Status::Pass);
        }
    }

    #[test]
    fn the_documentation_has_the_same_overheads() {
        let document = include_str!("../../../docs/networks.md");
        for (tunnel, encapsulation) in TUNNELS {
            let [v4, v6] = [false, true].map(|is_ipv6| encapsulation.overhead(is_ipv6));
            let row = format!("| {v4} | {v6} | {} | {} |", 1500 - v4, 9000 - v4);
            assert!(document.contains(&row), "{tunnel}: {row}");
        }
    }

    proptest! {
        #[test]
        fn any_number_is_compared(machines: u64, network: u64) {
            let found = outcome(json!({"ipv4": {"mtu": machines}}), json!({"mtu": network}), "");
            prop_assert_eq!(found.status == Status::Pass, machines <= network);
        }
    }
}
