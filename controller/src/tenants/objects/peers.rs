//! Peers and ports in NetworkPolicies: the same namespace, DNS, and the internet except the infra cluster's own
//! addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use berth_api::{ConditionReason, InfraConfigSpec};
use serde_json::{Value, json};

use crate::tenants::cluster::{ClusterFacts, UnknownFact};
use crate::tenants::fault::Fault;

/// Default address of NodeLocal DNSCache on every Node. Link-local addresses are not routed, so only processes on the
/// pod's own host can answer at this address.
const NODE_LOCAL_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 20, 10));
/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// Returns the peer that matches all pods in the namespace of the policy.
pub(super) fn same_namespace_peer() -> Value {
    json!({"podSelector": {}})
}

/// Returns the peer that matches one address.
pub(super) fn single_address_peer(address: IpAddr) -> Value {
    let length = if address.is_ipv4() { 32 } else { 128 };
    json!({"ipBlock": {"cidr": format!("{address}/{length}")}})
}

/// Returns the `ports` of a rule that permits these TCP ports.
pub(super) fn tcp_ports(ports: &BTreeSet<u16>) -> Value {
    ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect()
}

fn udp_and_tcp_ports(ports: &[u16]) -> Vec<Value> {
    let both = |port: &u16| ["TCP", "UDP"].map(|one| json!({"protocol": one, "port": port}));
    ports.iter().flat_map(both).collect()
}

/// Returns the egress rules for cluster DNS. The pods behind its Services are matched by selectors, because network
/// plugins translate the address of a Service before they apply NetworkPolicies. NodeLocal DNSCache is matched by its
/// addresses.
///
/// # Errors
/// Returns an error if the pods of cluster DNS are unknown.
pub(super) fn dns_rules(
    config: &InfraConfigSpec,
    cluster: &ClusterFacts,
) -> Result<Vec<Value>, UnknownFact> {
    let pods = |namespace: Value, pods: Value, ports: Value| {
        json!({
            "to": [{"namespaceSelector": {"matchLabels": namespace}, "podSelector": {"matchLabels": pods}}],
            "ports": ports,
        })
    };
    let (mut rules, mut addresses) = (Vec::new(), vec![single_address_peer(NODE_LOCAL_DNS)]);
    match &config.cluster_dns {
        Some(dns) if dns.namespace_labels.is_empty() || dns.pod_labels.is_empty() => {
            return Err(UnknownFact::ClusterDnsWithoutLabels);
        }
        Some(dns) => {
            let ports = if dns.ports.is_empty() { vec![DNS_PORT] } else { dns.ports.clone() };
            let (namespace, labels) = (json!(dns.namespace_labels), json!(dns.pod_labels));
            rules.push(pods(namespace, labels, udp_and_tcp_ports(&ports).into()));
        }
        None => {
            let dns = cluster.dns.as_ref().map_err(Clone::clone)?;
            for backend in &dns.backends {
                let ports = backend
                    .ports
                    .iter()
                    .map(|(protocol, port)| json!({"protocol": protocol, "port": port}));
                rules.push(pods(json!(dns.namespace), json!(backend.selector), ports.collect()));
            }
            addresses.extend(dns.addresses.iter().copied().map(single_address_peer));
        }
    }
    rules.push(json!({"to": addresses, "ports": udp_and_tcp_ports(&[DNS_PORT])}));
    Ok(rules)
}

/// Returns the egress rules for the name servers that VMs use. Adds a fault for each name server that is not an IP
/// address.
pub(super) fn name_server_rules(servers: &[String], faults: &mut Vec<Fault>) -> Vec<Value> {
    let mut rules = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        let Ok(address) = server.parse() else {
            let message = format!(
                "InfraConfig default: spec.dnsConfig.nameservers[{index}]: `{server}` is not an IP address"
            );
            faults.push(Fault::new(ConditionReason::InvalidPolicy, message));
            continue;
        };
        rules.push(
            json!({"to": [single_address_peer(address)], "ports": udp_and_tcp_ports(&[DNS_PORT])}),
        );
    }
    rules
}

/// Returns the peers that match all public IPv4 and IPv6 addresses, except the addresses of the infra cluster.
///
/// # Errors
/// Returns an error if the addresses of the API server are unknown, because the peers would then include the API
/// server.
pub(super) fn internet_peers(
    config: &InfraConfigSpec,
    cluster: &ClusterFacts,
) -> Result<Vec<Value>, UnknownFact> {
    cluster.api_server.as_ref().map_err(Clone::clone)?;
    let (v4, v6) = cluster.excluded_networks(config);
    let exceptions = |all: Vec<String>| (!all.iter().any(|net| net.ends_with("/0"))).then_some(all);
    let v4 = exceptions(v4.iter().map(ToString::to_string).collect());
    let v6 = exceptions(v6.iter().map(ToString::to_string).collect());
    let block = |(all, except): (&str, Option<Vec<String>>)| {
        Some(json!({"ipBlock": {"cidr": all, "except": except?}}))
    };
    Ok([("0.0.0.0/0", v4), ("::/0", v6)].into_iter().filter_map(block).collect())
}
