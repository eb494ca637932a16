//! Tests of the rendered NetworkPolicies. `controller/tests/policies.rs` tests which connections the policies permit.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::tenants::cluster::{DnsBackend, DnsFacts, UnknownFact};

fn cluster_facts() -> ClusterFacts {
    let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    ClusterFacts {
        dns: Ok(DnsFacts {
            namespace: labels("kubernetes.io/metadata.name", "kube-system"),
            backends: vec![DnsBackend {
                selector: labels("k8s-app", "kube-dns"),
                ports: vec![("UDP".to_owned(), IntOrString::String("dns".to_owned()))],
            }],
            addresses: BTreeSet::from(["10.96.0.10".parse().unwrap()]),
        }),
        api_server: Ok(BTreeSet::from(["203.0.113.5".parse().unwrap()])),
        node_addresses: BTreeSet::new(),
        networks: BTreeSet::new(),
        node_local_dns: BTreeSet::new(),
    }
}

fn render_isolation(isolation: &str, config: Value, cluster: &ClusterFacts) -> RenderedPolicies {
    let requested: NetworkPolicies =
        serde_json::from_value(json!({"isolation": isolation})).unwrap();
    let config: InfraConfigSpec = serde_json::from_value(config).unwrap();
    let api_server = Some("192.0.2.7".parse().unwrap());
    render_policies(PolicyInput {
        tenant: "abc",
        requested: Some(&requested),
        config: &config,
        cluster,
        api_server,
        exposure: None,
        load_balancers: &[],
    })
}

fn isolation_spec<'a>(all: &'a RenderedPolicies, name: &str) -> &'a Value {
    &all.isolation.iter().find(|one| one.name() == name).unwrap().body["spec"]
}

/// Returns the ingress and egress rules of all policies that isolate the tenant.
fn all_rules(all: &RenderedPolicies) -> Vec<&Value> {
    let rules_of = |one: &'static str| {
        all.isolation.iter().filter_map(move |policy| policy.body["spec"][one].as_array())
    };
    rules_of("ingress").chain(rules_of("egress")).flatten().collect()
}

#[test]
fn in_cluster_isolation_restricts_both_directions() {
    let servers = json!({"dnsConfig": {"nameservers": ["2001:db8::53"]}});
    let all = render_isolation("InCluster", servers, &cluster_facts());
    assert_eq!((all.faults.len(), all.lacks_facts), (0, false));
    let ports = json!([{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]);
    assert_eq!(
        *isolation_spec(&all, "cluster-isolation"),
        json!({
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {}}]}],
            "egress": [
                {"to": [{"podSelector": {}}]},
                {
                    "to": [{
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                    }],
                    "ports": [{"protocol": "UDP", "port": "dns"}],
                },
                {
                    "to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}, {"ipBlock": {"cidr": "10.96.0.10/32"}}],
                    "ports": ports,
                },
                {"to": [{"ipBlock": {"cidr": "2001:db8::53/128"}}], "ports": ports},
                {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]},
            ],
        })
    );
    let names: Vec<&str> = all.isolation.iter().map(DesiredObject::name).collect();
    assert_eq!(
        names,
        ["cluster-isolation", "berth-allow-cdi", "berth-allow-virt-api", "allow-kubevirt-importer"]
    );
}

#[test]
fn unknown_facts_allow_nothing_and_cause_faults() {
    let mut without_facts = cluster_facts();
    without_facts.dns = Err(UnknownFact::NotListed("services"));
    without_facts.api_server = Err(UnknownFact::NotListed("endpoints"));
    for isolation in ["InCluster", "Egress"] {
        let servers = json!({"dnsConfig": {"nameservers": ["ten.dot.one"]}});
        let all = render_isolation(isolation, servers, &without_facts);
        assert!(all.lacks_facts);
        let faults: Vec<(ConditionReason, &str)> =
            all.faults.iter().map(|fault| (fault.reason, fault.message.as_str())).collect();
        assert_eq!(
            faults[..2],
            [
                (
                    ConditionReason::ClusterFactsUnknown,
                    "addresses of the infra API server: endpoints are not listed yet"
                ),
                (ConditionReason::ClusterFactsUnknown, "cluster DNS: services are not listed yet"),
            ]
        );
        assert!(faults[2].1.contains("nameservers[0]: `ten.dot.one`"), "{faults:?}");
        let text = json!(all_rules(&all)).to_string();
        assert!(
            !text.contains("0.0.0.0/0") && !text.contains("\"port\":53"),
            "{isolation}: {text}"
        );
    }
    // If isolation is off, the unknown facts are not needed.
    let off = render_isolation("Off", json!({}), &without_facts);
    assert!(off.isolation.is_empty() && off.faults.is_empty() && !off.lacks_facts);
}

/// No rule, peer or selector is empty: an empty rule or peer permits all traffic, and an empty selector selects all
/// pods in the cluster.
#[test]
fn no_rule_is_empty() {
    let config = json!({
        "imageSources": [{"cidr": "10.20.0.7/32"}],
        "images": {"http": {"operatingSystems": {"u": {"1": "http://i.r.svc/u.img", "2": "https://[2001:db8::9]:8443/u"}}}},
    });
    for isolation in ["InCluster", "Egress"] {
        let all = render_isolation(isolation, config.clone(), &cluster_facts());
        for rule in all_rules(&all) {
            let peers = rule["to"].as_array().or_else(|| rule["from"].as_array());
            let peers = peers.unwrap_or_else(|| panic!("{isolation}: {rule}"));
            assert!(!peers.is_empty(), "{isolation}: {rule}");
            for peer in peers {
                assert!(!peer.as_object().unwrap().is_empty(), "{isolation}: {rule}");
                assert_ne!(peer.get("namespaceSelector"), Some(&json!({})), "{isolation}: {rule}");
            }
            assert_ne!(rule.get("ports"), Some(&json!([])), "{isolation}: {rule}");
        }
    }
}

#[test]
fn importers_reach_configured_image_sources() {
    let config = json!({
        "imageSources": [{"cidr": "10.20.0.7/24", "ports": [5000]}, {"cidr": "10.30.0.1/32"}],
        "images": {"http": {"operatingSystems": {"ubuntu": {
            "22.04": "https://images.example:8443/u.img", "24.04": "http://10.0.0.9:8080/u.img", "26.04": "http://i.store.svc/u"}}},
            "catalog": [{"image": "http://10.0.0.10/rocky.img"}, {"image": "docker://registry/rhel:9"}, {"image": "a/b"}]},
    });
    let all = render_isolation("InCluster", config, &cluster_facts());
    let egress = isolation_spec(&all, "allow-kubevirt-importer")["egress"].as_array().unwrap();
    let tcp = |ports: &[u16]| -> Value {
        ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect()
    };
    for (cidr, ports) in [
        ("10.0.0.9/32", vec![8080]),
        ("10.0.0.10/32", vec![80]),
        ("10.20.0.0/24", vec![5000]),
        ("10.30.0.1/32", vec![80, 443]),
    ] {
        let rule = json!({"to": [{"ipBlock": {"cidr": cidr}}], "ports": tcp(&ports)});
        assert!(egress.contains(&rule), "{rule}: {egress:#?}");
    }
    let namespace = json!({"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "store"}}}]});
    assert!(egress.contains(&namespace), "{egress:#?}");
    let internet = egress.iter().find(|rule| rule.to_string().contains("0.0.0.0/0")).unwrap();
    assert_eq!(internet["ports"], tcp(&[80, 443, 8443]));
}

#[test]
fn configured_cluster_dns_is_used() {
    let config = json!({"clusterDNS": {
        "namespaceLabels": {"kubernetes.io/metadata.name": "openshift-dns"},
        "podLabels": {"dns.operator.openshift.io/daemonset-dns": "default"}, "ports": [5353],
    }});
    let mut without_facts = cluster_facts();
    without_facts.dns = Err(UnknownFact::NotListed("services"));
    let all = render_isolation("Egress", config, &without_facts);
    assert!(all.faults.is_empty() && !all.lacks_facts);
    let text = isolation_spec(&all, "cluster-isolation").to_string();
    assert!(text.contains("openshift-dns") && text.contains("5353"), "{text}");
    // API servers without CEL validation or without defaults accept empty labels. Berth ignores such labels.
    let empty = json!({"clusterDNS": {"namespaceLabels": {}, "podLabels": {}}});
    assert!(render_isolation("Egress", empty, &cluster_facts()).lacks_facts);
}

#[test]
fn custom_policies_are_labelled_and_replace_no_policy_of_berth() {
    let policy = |name: &str| CustomNetworkPolicy { name: name.to_owned(), ..Default::default() };
    let requested = NetworkPolicies {
        isolation: Some(Isolation::Off),
        custom: vec![policy("both"), policy("own"), policy("cluster-isolation")],
    };
    let config = InfraConfigSpec {
        custom_network_policies: vec![policy("both"), policy("common")],
        ..InfraConfigSpec::default()
    };
    let all = render_policies(PolicyInput {
        tenant: "abc",
        requested: Some(&requested),
        config: &config,
        cluster: &cluster_facts(),
        api_server: None,
        exposure: None,
        load_balancers: &[],
    });
    let label = |one: &DesiredObject| {
        one.body["metadata"]["labels"][CUSTOM_POLICY_LABEL].as_str().unwrap().to_owned()
    };
    let policy_sources: Vec<(&str, String)> =
        all.custom.iter().map(|one| (one.name(), label(one))).collect();
    let expected = [("both", "infra-config"), ("common", "infra-config"), ("own", "tenant")];
    assert_eq!(policy_sources, expected.map(|(name, mark)| (name, mark.to_owned())));
    assert_eq!(all.faults.len(), 2);
    assert!(
        all.faults[0].message.starts_with("spec.networkPolicies.custom[both]"),
        "{:?}",
        all.faults
    );
}

#[test]
fn exposed_ports_are_open_only_if_ingress_is_isolated() {
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 443, "targetPort": 30_443}]});
    let service = LoadBalancerService::new("web", &spec).unwrap();
    let exposure: Exposure = serde_json::from_value(json!({
        "loadBalancers": {"addresses": ["192.0.2.0/28"]}, "machineAccess": {},
        "cloudControllerManager": {"image": "ccm:1"},
    }))
    .unwrap();
    let config = InfraConfigSpec::default();
    let render = |isolation: &str, exposure: Option<&Exposure>| {
        let custom = json!([{"name": "berth-allow-lb-web", "spec": {"podSelector": {}}}]);
        let requested: NetworkPolicies =
            serde_json::from_value(json!({"isolation": isolation, "custom": custom})).unwrap();
        let all = render_policies(PolicyInput {
            tenant: "abc",
            requested: Some(&requested),
            config: &config,
            cluster: &cluster_facts(),
            api_server: None,
            exposure,
            load_balancers: std::slice::from_ref(&service),
        });
        let names = |list: &[DesiredObject]| {
            list.iter().map(|one| one.name().to_owned()).collect::<Vec<_>>()
        };
        let has_manager =
            names(&all.isolation).contains(&CLOUD_CONTROLLER_MANAGER_POLICY.to_owned());
        (names(&all.exposure), names(&all.custom).len(), has_manager)
    };
    let open = ["berth-allow-lb-web", "berth-allow-machine-access"].map(str::to_owned).to_vec();
    // A custom policy with the name of one of Berth's policies does not replace it.
    assert_eq!(render("InCluster", Some(&exposure)), (open, 0, true));
    assert_eq!(render("Egress", Some(&exposure)), (Vec::new(), 1, true));
    assert_eq!(render("Off", Some(&exposure)), (Vec::new(), 1, false));
    assert_eq!(render("InCluster", None), (Vec::new(), 1, false));
}
