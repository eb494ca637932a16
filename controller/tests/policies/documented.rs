//! Compares the NetworkPolicy evaluator of these tests with the examples of the Kubernetes documentation.

use serde_json::{Value, json};

use super::evaluator::{Cluster, Endpoint, Labels, Pod, Port, labels};

fn policy(spec: Value) -> Value {
    json!({"metadata": {"namespace": "default", "name": "p"}, "spec": spec})
}

fn cluster(policies: Vec<Value>) -> Cluster {
    let namespaces: [(&str, Labels); 4] = [
        ("default", labels(&[])),
        ("mine", labels(&[("project", "myproject")])),
        ("frontend", labels(&[("namespace", "frontend")])),
        ("backend", labels(&[("namespace", "backend")])),
    ];
    let namespaces = namespaces.map(|(name, labels)| (name.to_owned(), labels)).into();
    Cluster { namespaces, policies, blocks_apply_to_pods: false }
}

fn pod(namespace: &str, pairs: &[(&str, &str)]) -> Endpoint {
    Endpoint::Pod(Pod {
        namespace: namespace.to_owned(),
        labels: labels(pairs),
        addresses: vec!["10.244.1.9".parse().unwrap(), "fd00:244::9".parse().unwrap()],
        ports: vec![("web".to_owned(), "TCP".to_owned(), 8080)],
        node: vec!["192.0.2.10".parse().unwrap()],
    })
}

fn external_endpoint(address: &str) -> Endpoint {
    Endpoint::Address(address.parse().unwrap())
}

fn allows_tcp(cluster: &Cluster, from: &Endpoint, to: &Endpoint, number: u16) -> bool {
    cluster.allows(from, to, Port { protocol: "TCP", number }, false)
}

/// The first example of the documentation page: `test-network-policy`.
#[test]
fn complete_example_policy_is_evaluated() {
    let cluster = cluster(vec![policy(json!({
        "podSelector": {"matchLabels": {"role": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{
            "from": [
                {"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}},
                {"namespaceSelector": {"matchLabels": {"project": "myproject"}}},
                {"podSelector": {"matchLabels": {"role": "frontend"}}},
            ],
            "ports": [{"protocol": "TCP", "port": 6379}],
        }],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}], "ports": [{"protocol": "TCP", "port": 5978}]}],
    }))]);
    let db = pod("default", &[("role", "db")]);
    for (from, is_allowed) in [
        (pod("default", &[("role", "frontend")]), true),
        (pod("default", &[("role", "other")]), false),
        (pod("mine", &[]), true),
        (pod("frontend", &[("role", "frontend")]), false),
        (external_endpoint("172.17.0.5"), true),
        (external_endpoint("172.17.2.5"), true),
        (external_endpoint("172.17.1.5"), false),
        (external_endpoint("172.18.0.5"), false),
        // The address of the node on which the pod runs.
        (external_endpoint("192.0.2.10"), true),
        (external_endpoint("192.0.2.11"), false),
    ] {
        assert_eq!(allows_tcp(&cluster, &from, &db, 6379), is_allowed, "{from:?}");
    }
    assert!(!allows_tcp(&cluster, &pod("mine", &[]), &db, 6380));
    assert!(!cluster.allows(&pod("mine", &[]), &db, Port { protocol: "UDP", number: 6379 }, false));
    assert!(allows_tcp(&cluster, &db, &external_endpoint("10.0.0.7"), 5978));
    assert!(!allows_tcp(&cluster, &db, &external_endpoint("10.0.0.7"), 5979));
    assert!(!allows_tcp(&cluster, &db, &external_endpoint("10.0.1.7"), 5978));
    // Pods that the policy does not select are not isolated.
    assert!(allows_tcp(&cluster, &external_endpoint("172.18.0.5"), &pod("default", &[]), 1));
    assert!(allows_tcp(
        &cluster,
        &pod("mine", &[("role", "db")]),
        &external_endpoint("10.0.1.7"),
        1
    ));
}

#[test]
fn default_policies_are_evaluated() {
    let (one, other) = (pod("default", &[]), pod("mine", &[]));
    let (out, into) = (
        |spec: Value| allows_tcp(&cluster(vec![policy(spec)]), &one, &other, 80),
        |spec: Value| allows_tcp(&cluster(vec![policy(spec)]), &other, &one, 80),
    );
    for (spec, goes_out, comes_in) in [
        // Examples "Default deny all ingress" and "Allow all ingress".
        (json!({"podSelector": {}, "policyTypes": ["Ingress"]}), true, false),
        (json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}), true, true),
        // Examples "Default deny all egress" and "Allow all egress".
        (json!({"podSelector": {}, "policyTypes": ["Egress"]}), false, true),
        (json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}), true, true),
        (json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), false, false),
        // Without policyTypes, the policy applies to ingress, and to egress if it has egress rules.
        (json!({"podSelector": {}}), true, false),
        (json!({"podSelector": {}, "egress": [{}]}), true, false),
        (json!({"podSelector": {}, "egress": [{"to": [{"podSelector": {}}]}]}), false, false),
    ] {
        assert_eq!((out(spec.clone()), into(spec.clone())), (goes_out, comes_in), "{spec}");
    }
}

/// "Behavior of to and from selectors": one entry with both fields, and two entries with one field each.
#[test]
fn both_fields_of_a_peer_must_match() {
    let alice = json!({"matchLabels": {"namespace": "frontend"}});
    let client = json!({"matchLabels": {"role": "client"}});
    let both = json!([{"namespaceSelector": alice, "podSelector": client}]);
    let either = json!([{"namespaceSelector": alice}, {"podSelector": client}]);
    let from = |peers: &Value, pod: &Endpoint| {
        let cluster =
            cluster(vec![policy(json!({"podSelector": {}, "ingress": [{"from": peers}]}))]);
        allows_tcp(&cluster, pod, &self::pod("default", &[]), 80)
    };
    for (pod, with_both, with_either) in [
        (pod("frontend", &[("role", "client")]), true, true),
        (pod("frontend", &[]), false, true),
        (pod("default", &[("role", "client")]), false, true),
        (pod("backend", &[("role", "client")]), false, false),
    ] {
        assert_eq!((from(&both, &pod), from(&either, &pod)), (with_both, with_either), "{pod:?}");
    }
    let some = json!([{"namespaceSelector": {"matchExpressions": [
        {"key": "namespace", "operator": "In", "values": ["frontend", "backend"]}]}}]);
    let others = json!([{"namespaceSelector": {"matchExpressions": [
        {"key": "namespace", "operator": "DoesNotExist"}]}}]);
    let not = json!([{"namespaceSelector": {"matchExpressions": [
        {"key": "namespace", "operator": "NotIn", "values": ["frontend"]}]}}]);
    for (namespace, listed, absent, is_not) in [
        ("frontend", true, false, false),
        ("backend", true, false, true),
        ("mine", false, true, true),
    ] {
        let pod = pod(namespace, &[]);
        let found = (from(&some, &pod), from(&others, &pod), from(&not, &pod));
        assert_eq!(found, (listed, absent, is_not), "{namespace}");
    }
}

/// Examples "Targeting a range of ports" and ports by name.
#[test]
fn port_ranges_and_named_ports_are_matched() {
    let range = cluster(vec![policy(json!({
        "podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
            "ports": [{"protocol": "TCP", "port": 32000, "endPort": 32768}]}],
    }))]);
    for (number, is_allowed) in [(31999, false), (32000, true), (32768, true), (32769, false)] {
        assert_eq!(
            allows_tcp(&range, &pod("default", &[]), &external_endpoint("10.0.0.3"), number),
            is_allowed
        );
    }
    let named = cluster(vec![policy(json!({
        "podSelector": {}, "ingress": [{"ports": [{"port": "web"}, {"protocol": "UDP"}]}],
    }))]);
    let (from, to) = (external_endpoint("198.51.100.1"), pod("default", &[]));
    assert!(allows_tcp(&named, &from, &to, 8080) && !allows_tcp(&named, &from, &to, 8081));
    assert!(named.allows(&from, &to, Port { protocol: "UDP", number: 1 }, false));
}

/// "Network policies do not conflict; they are additive." The policies of the source and of the destination must allow
/// a connection.
#[test]
fn policies_are_additive_and_both_ends_must_allow() {
    let to_mine = json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"namespaceSelector": {"matchLabels": {"project": "myproject"}}}]}]});
    let nothing = json!({"podSelector": {}, "policyTypes": ["Egress"]});
    let mut both = cluster(vec![policy(nothing.clone()), policy(to_mine.clone())]);
    let (from, to) = (pod("default", &[]), pod("mine", &[]));
    assert!(allows_tcp(&both, &from, &to, 80));
    assert!(!allows_tcp(&cluster(vec![policy(nothing)]), &from, &to, 80));
    let closed = json!({"metadata": {"namespace": "mine"}, "spec": {"podSelector": {}}});
    both.policies.push(closed);
    assert!(!allows_tcp(&both, &from, &to, 80), "the destination denies the connection");
}

#[test]
fn ip_blocks_match_their_address_family() {
    let block = |cidr: &str, except: Value| {
        cluster(vec![policy(json!({"podSelector": {}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": cidr, "except": except}}]}]}))])
    };
    let from = pod("default", &[]);
    let port = Port { protocol: "TCP", number: 80 };
    let v6 = block("::/0", json!(["fc00::/7"]));
    assert!(v6.allows(&from, &external_endpoint("2001:db8::1"), port, true));
    assert!(!v6.allows(&from, &external_endpoint("fd12::1"), port, true));
    assert!(
        !v6.allows(&from, &external_endpoint("192.0.2.99"), port, false),
        "IPv4 is not in ::/0"
    );
    // The documentation does not define whether an `ipBlock` also applies to pods; the network plugin decides.
    let mut pods = block("10.0.0.0/8", json!([]));
    assert!(!allows_tcp(&pods, &from, &pod("mine", &[]), 80));
    pods.blocks_apply_to_pods = true;
    assert!(allows_tcp(&pods, &from, &pod("mine", &[]), 80));
}
