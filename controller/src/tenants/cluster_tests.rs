//! Tests of the facts of the infra cluster, which are derived from objects as they exist in real clusters.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn list_result<K: DeserializeOwned>(objects: Value) -> ListResult<K> {
    let objects: Vec<K> = serde_json::from_value(objects).unwrap();
    Ok(objects.into_iter().map(Arc::new).collect())
}

fn list_failed(kind: &str, reason: &str) -> UnknownFact {
    UnknownFact::ListFailed { kind: kind.to_owned(), reason: reason.to_owned() }
}

/// Returns the objects of a cluster that kubeadm has installed.
fn typical_objects() -> FactSources {
    FactSources {
        dns: list_result(json!([{"metadata": {"name": "kube-dns"}, "spec": {
        "selector": {"k8s-app": "kube-dns"}, "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::a"],
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": "dns-tcp"},
            {"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": 9153},
        ]}}])),
        kube_system: list_result(
            json!([{"metadata": {"name": "kube-system", "labels": {NAMESPACE_NAME_LABEL: "kube-system"}}}]),
        ),
        api_service: list_result(
            json!([{"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1"}}]),
        ),
        api_endpoints: list_result(
            json!([{"addressType": "IPv4", "metadata": {"name": "kubernetes"},
            "endpoints": [{"addresses": ["203.0.113.5"]}, {"addresses": ["203.0.113.6"]}]}]),
        ),
        service_networks: list_result(
            json!([{"spec": {"cidrs": ["10.96.0.0/12", "2001:db8:96::/108"]}}]),
        ),
        node_local_dns: list_result(json!([])),
    }
}

fn node(addresses: &[&str], pods: &[&str]) -> Arc<Node> {
    let list: Vec<Value> =
        addresses.iter().map(|one| json!({"type": "InternalIP", "address": one})).collect();
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"podCIDR": pods.first(), "podCIDRs": pods},
            "status": {"addresses": list},
        }))
        .unwrap(),
    )
}

fn to_strings<N: ToString>(networks: &[N]) -> Vec<String> {
    networks.iter().map(ToString::to_string).collect()
}

#[test]
fn facts_of_a_typical_cluster_are_derived() {
    let nodes =
        [node(&["10.0.0.5", "198.51.100.9", "node-a"], &["10.244.0.0/24", "2001:db8:1::/64"])];
    let facts = ClusterFacts::derive(&typical_objects(), &nodes);
    let dns = facts.dns.as_ref().unwrap();
    assert_eq!(dns.namespace[NAMESPACE_NAME_LABEL], "kube-system");
    assert_eq!(to_strings(&dns.addresses.iter().collect::<Vec<_>>()), ["10.96.0.10", "fd00:96::a"]);
    let ports = &dns.backends[0].ports;
    assert_eq!(ports[0], ("UDP".to_owned(), IntOrString::Int(53)));
    assert_eq!(ports[1], ("TCP".to_owned(), IntOrString::String("dns-tcp".to_owned())));
    assert_eq!(ports.len(), 2, "the metrics port is not a DNS port");
    assert_eq!(
        to_strings(&facts.api_server.as_ref().unwrap().iter().collect::<Vec<_>>()),
        ["10.96.0.1", "203.0.113.5", "203.0.113.6"]
    );
    let (v4, v6) = facts.excluded_networks(&InfraConfigSpec::default());
    assert_eq!(
        to_strings(&v4),
        [
            "10.0.0.0/8",
            "100.64.0.0/10",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.168.0.0/16",
            "198.51.100.9/32",
            "203.0.113.5/32",
            "203.0.113.6/32"
        ]
    );
    assert_eq!(to_strings(&v6), ["2001:db8:1::/64", "2001:db8:96::/108", "fc00::/7", "fe80::/10"]);
    let config: InfraConfigSpec =
        serde_json::from_value(json!({"clusterNetworks": ["203.0.113.7/24"]})).unwrap();
    assert!(to_strings(&facts.excluded_networks(&config).0).contains(&"203.0.113.0/24".to_owned()));
}

#[test]
fn unknown_facts_have_a_reason() {
    let without = |change: fn(&mut FactSources)| {
        let mut objects = typical_objects();
        change(&mut objects);
        let facts = ClusterFacts::derive(&objects, &[]);
        facts
            .dns
            .err()
            .or_else(|| facts.api_server.err())
            .map_or_else(String::new, |why| why.to_string())
    };
    for (error, words) in [
        (
            without(|all| all.dns = Ok(Vec::new())),
            "no Service of namespace kube-system has label k8s-app=kube-dns",
        ),
        // A Service without a selector selects no pods, but an empty selector `{}` in a policy would select all pods.
        (
            without(|all| all.dns = list_result(json!([{"spec": {"ports": [{"port": 53}]}}]))),
            "spec.clusterDNS",
        ),
        (
            without(|all| all.dns = Err(list_failed("services", "refused"))),
            "services cannot be listed",
        ),
        (
            without(|all| {
                all.kube_system = list_result(json!([{"metadata": {"name": "kube-system"}}]))
            }),
            "kubectl label namespace kube-system kubernetes.io/metadata.name=kube-system",
        ),
        (without(|all| all.api_endpoints = Ok(Vec::new())), "default/kubernetes has no addresses"),
        (
            without(|all| all.api_endpoints = Err(list_failed("endpointslices", "forbidden"))),
            "forbidden",
        ),
        // ServiceCIDRs are optional, because older API servers do not serve this kind.
        (
            without(|all| all.service_networks = Err(list_failed("servicecidrs", "no such kind"))),
            "",
        ),
    ] {
        assert!(error.contains(words) && error.is_empty() == words.is_empty(), "{words}: {error}");
    }
}

#[test]
fn networks_of_many_public_addresses_are_widened_and_never_omitted() {
    // Every third address of a /16 is used, so that no two addresses are neighbours.
    let address = |at: u32| IpAddr::from(std::net::Ipv4Addr::from(0xc633_0000 + at * 3));
    let many = |count: u32| {
        let mut facts = ClusterFacts::derive(&typical_objects(), &[]);
        facts.node_addresses = (0..count).map(address).collect();
        facts
    };
    for count in [10, 100, 5000, 20_000] {
        let facts = many(count);
        let (v4, v6) = facts.excluded_networks(&InfraConfigSpec::default());
        assert!(
            v4.len() <= MAX_EXCEPT_ENTRIES && v6.len() <= MAX_EXCEPT_ENTRIES,
            "{count}: {}",
            v4.len()
        );
        for node in &facts.node_addresses {
            let IpAddr::V4(node) = node else { continue };
            assert!(v4.iter().any(|net| net.contains(node)), "{node}");
        }
        // If there are few addresses, each one is excluded as a network of one address.
        assert!(count > 100 || v4.iter().filter(|net| net.prefix_len() == 32).count() >= 10);
        // Private ranges are not widened.
        assert!(v4.contains(&"192.168.0.0/16".parse().unwrap()));
    }
    // Neighbouring addresses are merged into one network, and no other address is excluded.
    let mut facts = many(0);
    facts.node_addresses =
        (0..4096_u32).map(|at| IpAddr::from(std::net::Ipv4Addr::from(0xc633_0000 + at))).collect();
    let (v4, _) = facts.excluded_networks(&InfraConfigSpec::default());
    assert!(to_strings(&v4).contains(&"198.51.0.0/20".to_owned()), "{v4:?}");
}
