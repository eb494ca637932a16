//! NetworkPolicies that permit traffic to the exposed Services of a tenant. They are rendered only if ingress is
//! isolated: otherwise they would restrict the ingress of the pods that they select.
//!
//! Before NetworkPolicies apply, the Node that receives a packet for a load balancer's address translates its
//! destination to a launcher pod and to the target port of the Service. Unless the Service has `externalTrafficPolicy:
//! Local`, the source address then becomes that of this Node. Therefore the policies permit traffic to target ports,
//! from all sources.

use std::collections::BTreeMap;

use berth_api::MachineAccess;
use serde_json::{Value, json};

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;
use super::peers::tcp_ports;
use crate::tenants::load_balancer_service::LoadBalancerService;

/// Name of the NetworkPolicy for the Services of machines.
pub(super) const MACHINE_ACCESS_POLICY: &str = "berth-allow-machine-access";
/// Prefix of the names of the NetworkPolicies for load balancers.
const LOAD_BALANCER_PREFIX: &str = "berth-allow-lb-";

/// Returns the selector of launcher pods that have all these labels. Other pods, such as importers, are never exposed.
fn launcher_selector(labels: &BTreeMap<String, String>) -> Value {
    let launchers = json!({"key": "kubevirt.io", "operator": "In", "values": ["virt-launcher"]});
    let mut selector = json!({"matchExpressions": [launchers]});
    // An empty map would be a difference in each comparison, because API servers omit empty maps.
    if !labels.is_empty() {
        selector["matchLabels"] = json!(labels);
    }
    selector
}

fn ingress_policy(
    tenant: &str,
    name: &str,
    labels: &BTreeMap<String, String>,
    rule: &Value,
) -> DesiredObject {
    let spec = json!({
        "podSelector": launcher_selector(labels), "policyTypes": ["Ingress"], "ingress": [rule],
    });
    DesiredObject::new(ObjectKind::NetworkPolicy, tenant, name, json!({"spec": spec}))
}

/// Returns a NetworkPolicy for each Service of type LoadBalancer in the tenant's namespace, which permits traffic to
/// the Service's target ports on the machines that the Service selects. If the Service has no selector, the
/// NetworkPolicy permits traffic to these ports on all machines.
pub(super) fn load_balancer_policies(
    tenant: &str,
    services: &[LoadBalancerService],
) -> Vec<DesiredObject> {
    let policy = |service: &LoadBalancerService| {
        let ports = service.ports.iter();
        let ports: Vec<Value> =
            ports.map(|(protocol, port)| json!({"protocol": protocol, "port": port})).collect();
        let mut rule = json!({"ports": ports});
        if let Some(sources) = &service.sources {
            let peers = sources.iter().map(|net| json!({"ipBlock": {"cidr": net.trunc()}}));
            rule["from"] = peers.collect();
        }
        let name = format!("{LOAD_BALANCER_PREFIX}{}", service.name);
        ingress_policy(tenant, &name, &service.selector, &rule)
    };
    services.iter().map(policy).collect()
}

/// Returns the NetworkPolicy that permits traffic to those ports of all machines that the Services of machines forward;
/// `None` if no ports are forwarded.
pub(super) fn machine_access_policy(tenant: &str, access: &MachineAccess) -> Option<DesiredObject> {
    let ports = access.all_ports();
    let rule = json!({"ports": tcp_ports(&ports)});
    let all = BTreeMap::new();
    (!ports.is_empty()).then(|| ingress_policy(tenant, MACHINE_ACCESS_POLICY, &all, &rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: Value) -> LoadBalancerService {
        let mut spec = spec;
        spec["type"] = "LoadBalancer".into();
        LoadBalancerService::new("a1b2", &spec).unwrap()
    }

    #[test]
    fn target_ports_of_selected_machines_are_open() {
        let role = json!({"cluster.x-k8s.io/role": "worker"});
        let spec = json!({"selector": role, "ports": [{"port": 443, "targetPort": 30_443}]});
        let all = load_balancer_policies("shop", &[service(spec)]);
        assert_eq!(all[0].name(), "berth-allow-lb-a1b2");
        assert_eq!(
            all[0].body["spec"],
            json!({
                "podSelector": {
                    "matchLabels": role,
                    "matchExpressions": [
                        {"key": "kubevirt.io", "operator": "In", "values": ["virt-launcher"]},
                    ],
                },
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"protocol": "TCP", "port": 30_443}]}],
            })
        );
    }

    #[test]
    fn clients_are_restricted_if_pods_see_their_addresses() {
        let spec = json!({
            "ports": [{"port": 443}], "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["198.51.100.7/24"],
        });
        let all = load_balancer_policies("shop", &[service(spec)]);
        assert_eq!(
            all[0].body["spec"]["ingress"][0]["from"],
            json!([{"ipBlock": {"cidr": "198.51.100.0/24"}}])
        );
        assert_eq!(all[0].body["spec"]["podSelector"].get("matchLabels"), None);
    }

    #[test]
    fn machine_access_opens_the_listed_ports() {
        let access = |value| serde_json::from_value::<MachineAccess>(value).unwrap();
        let policy = machine_access_policy("shop", &access(json!({"ports": [6443]}))).unwrap();
        assert_eq!(
            policy.body["spec"]["ingress"],
            json!([{"ports": [{"protocol": "TCP", "port": 22}, {"protocol": "TCP", "port": 6443}]}])
        );
        assert_eq!(machine_access_policy("shop", &access(json!({"ssh": false}))), None);
    }
}
