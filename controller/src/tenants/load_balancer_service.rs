//! Services of type LoadBalancer in tenants' namespaces, which the tenants' cloud controller managers create.

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ServiceSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

/// The part of a Service of type LoadBalancer on which NetworkPolicies depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerService {
    pub name: String,
    /// Labels that select the pods; empty if the Service has no selector, because another controller writes its
    /// endpoints.
    pub selector: BTreeMap<String, String>,
    /// Protocols of the pods' ports, each with the port as a number or a name.
    pub ports: Vec<(String, IntOrString)>,
    /// Ranges of the clients' addresses, if pods receive packets with these addresses and the Service restricts them;
    /// otherwise `None`.
    pub sources: Option<Vec<IpNet>>,
}

impl LoadBalancerService {
    /// Returns the Service with this name and `spec`; `None` if it has another type, or forwards no traffic.
    #[must_use]
    pub fn new(name: &str, spec: &Value) -> Option<Self> {
        let spec: ServiceSpec = serde_json::from_value(spec.clone()).ok()?;
        if spec.type_.as_deref() != Some("LoadBalancer") {
            return None;
        }
        let mut ports: Vec<(String, IntOrString)> = Vec::new();
        for port in spec.ports.into_iter().flatten() {
            let target = port.target_port.unwrap_or(IntOrString::Int(port.port));
            let one = (port.protocol.unwrap_or_else(|| "TCP".to_owned()), target);
            if !ports.contains(&one) {
                ports.push(one);
            }
        }
        // With the policy `Cluster`, the source address of a packet is that of the Node that received it, not that of
        // the client.
        let sees_clients = spec.external_traffic_policy.as_deref() == Some("Local");
        let ranges = spec.load_balancer_source_ranges.unwrap_or_default();
        let sources: Option<Vec<IpNet>> = (sees_clients && !ranges.is_empty())
            .then(|| ranges.iter().filter_map(|range| range.trim().parse().ok()).collect());
        let is_used = !ports.is_empty() && sources.as_ref().is_none_or(|all| !all.is_empty());
        is_used.then(|| Self {
            name: name.to_owned(),
            selector: spec.selector.unwrap_or_default(),
            ports,
            sources,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn target_ports_are_those_of_the_pods() {
        let spec = json!({
            "type": "LoadBalancer", "selector": {"cluster.x-k8s.io/role": "worker"},
            "ports": [
                {"port": 80, "targetPort": 30_080}, {"port": 443, "targetPort": "https"}, {"port": 53, "protocol": "UDP"},
                {"port": 81, "targetPort": 30_080, "protocol": "TCP"},
            ],
        });
        let service = LoadBalancerService::new("web", &spec).unwrap();
        let port = |protocol: &str, port| (protocol.to_owned(), port);
        assert_eq!(
            service.ports,
            [
                port("TCP", IntOrString::Int(30_080)),
                port("TCP", IntOrString::String("https".to_owned())),
                port("UDP", IntOrString::Int(53)),
            ]
        );
        assert_eq!(service.sources, None);
    }

    #[test]
    fn clients_are_restricted_only_if_pods_see_them() {
        let sources = |policy: &str, ranges: Value| {
            let spec = json!({
                "type": "LoadBalancer", "ports": [{"port": 80}],
                "externalTrafficPolicy": policy, "loadBalancerSourceRanges": ranges,
            });
            LoadBalancerService::new("web", &spec).map(|service| service.sources)
        };
        assert_eq!(sources("Cluster", json!(["10.0.0.0/8"])), Some(None));
        let network = "10.0.0.0/8".parse().unwrap();
        assert_eq!(sources("Local", json!(["10.0.0.0/8", "x"])), Some(Some(vec![network])));
        assert_eq!(sources("Local", json!([])), Some(None));
        // If no range can be parsed, no client is permitted.
        assert_eq!(sources("Local", json!(["everywhere"])), None);
    }

    #[test]
    fn other_services_are_ignored() {
        for spec in [
            json!({"type": "NodePort", "ports": [{"port": 80}]}),
            json!({"type": "LoadBalancer"}),
            json!({"type": "LoadBalancer", "ports": "all"}),
            json!({}),
            Value::Null,
        ] {
            assert_eq!(LoadBalancerService::new("web", &spec), None, "{spec}");
        }
    }
}
