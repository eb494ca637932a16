//! NetworkPolicies of a tenant's namespace: what its machines may reach on the pod network.
//!
//! No rule is ever empty: `{}` in a list of rules allows everything, so what is not known yet is left out. Policies add up;
//! custom ones can only open more.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::names::CUSTOM_POLICY;
use berth_api::{CustomNetworkPolicy, Isolation, NetworkPolicies};
use serde_json::{Value, json};

use super::{Kind, Wanted};
use crate::tenants::fault::Fault;

const ISOLATION: &str = "cluster-isolation";
const IMPORTER: &str = "allow-kubevirt-importer";
/// Addresses that are nobody's on the internet (RFC 1918; RFC 4193 and 4291).
const PRIVATE_V4: [&str; 3] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];

/// What the policies are made of.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The tenant's id.
    pub tenant: &'a str,
    /// What it asks for.
    pub asked: Option<&'a NetworkPolicies>,
    /// For all tenants.
    pub common: &'a [CustomNetworkPolicy],
    /// Name servers of VMs, as InfraConfig has them.
    pub name_servers: &'a [String],
    /// The tenant's own API server, if its address is known.
    pub api_server: Option<IpAddr>,
}

/// All policies that are to be, and what is wrong with those that cannot.
#[must_use]
pub fn policies(input: Input<'_>) -> (Vec<Wanted>, Vec<Fault>) {
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    let isolation = input.asked.and_then(|asked| asked.isolation).unwrap_or_default();
    let names = name_servers(input.name_servers, &mut faults);
    let spec = match isolation {
        Isolation::Off => None,
        Isolation::InCluster => {
            let mut out = vec![json!({"to": [same_namespace()]})];
            out.extend(names);
            out.extend(input.api_server.map(|address| json!({"to": [single(address)]})));
            Some(json!({
                "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [same_namespace()]}], "egress": out,
            }))
        }
        Isolation::Egress => {
            let mut out = vec![
                json!({"to": [same_namespace()]}),
                json!({"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": PRIVATE_V4}}]}),
                json!({"to": [{"ipBlock": {"cidr": "::/0", "except": PRIVATE_V6}}]}),
            ];
            out.extend(input.api_server.map(|address| json!({"to": [single(address)]})));
            out.extend(names);
            Some(json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": out}))
        }
    };
    if let Some(spec) = spec {
        all.push(Wanted::new(Kind::NetworkPolicy, input.tenant, ISOLATION, json!({"spec": spec})));
        // Without isolation it would shut the importer in, not let it out.
        all.push(importer(input.tenant));
    }
    let own = input.asked.map(|asked| asked.custom.as_slice()).unwrap_or_default();
    let mut taken: BTreeSet<String> = [ISOLATION, IMPORTER].map(str::to_owned).into();
    for (source, place, list) in [
        ("infra-config", "InfraConfig default: spec.customNetworkPolicies", input.common),
        ("tenant", "spec.networkPolicies.custom", own),
    ] {
        for policy in list {
            match custom(input.tenant, source, policy, &mut taken) {
                Ok(wanted) => all.push(wanted),
                Err(message) => {
                    let message = format!("{place}[{}]: {message}", policy.name);
                    faults.push(Fault::new("PolicyInvalid", message));
                }
            }
        }
    }
    (all, faults)
}

fn same_namespace() -> Value {
    json!({"podSelector": {}})
}

fn single(address: IpAddr) -> Value {
    let length = if address.is_ipv4() { 32 } else { 128 };
    json!({"ipBlock": {"cidr": format!("{address}/{length}")}})
}

fn name_servers(servers: &[String], faults: &mut Vec<Fault>) -> Vec<Value> {
    let mut rules = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        let Ok(address) = server.parse() else {
            let message = format!(
                "InfraConfig default: spec.dnsConfig.nameservers[{index}]: `{server}` is not an address"
            );
            faults.push(Fault::new("PolicyInvalid", message));
            continue;
        };
        let ports = json!([{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]);
        rules.push(json!({"to": [single(address)], "ports": ports}));
    }
    rules
}

/// CDI's importer pods reach the repository of images, in whichever namespace it is.
fn importer(tenant: &str) -> Wanted {
    let spec = json!({
        "podSelector": {"matchLabels": {"app": "containerized-data-importer", "cdi.kubevirt.io": "importer"}},
        "policyTypes": ["Egress"],
        "egress": [{"to": [
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "image-repo"}}},
        ]}],
    });
    Wanted::new(Kind::NetworkPolicy, tenant, IMPORTER, json!({"spec": spec}))
}

fn custom(
    tenant: &str,
    source: &str,
    policy: &CustomNetworkPolicy,
    taken: &mut BTreeSet<String>,
) -> Result<Wanted, String> {
    if !taken.insert(policy.name.clone()) {
        return Err("a policy of this name is there already; give it another".to_owned());
    }
    let mut spec = serde_json::to_value(&policy.spec).map_err(|error| error.to_string())?;
    if spec.get("podSelector").is_none_or(Value::is_null) {
        // KKP's lists leave it out, which is all pods there; a server wants it said.
        spec["podSelector"] = json!({});
    }
    let mut wanted = Wanted::new(Kind::NetworkPolicy, tenant, &policy.name, json!({"spec": spec}));
    wanted.body["metadata"]["labels"][CUSTOM_POLICY] = source.into();
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(isolation: &str, servers: &[&str], api: Option<&str>) -> (Vec<Wanted>, Vec<Fault>) {
        let asked: NetworkPolicies =
            serde_json::from_value(json!({"isolation": isolation})).unwrap();
        let servers: Vec<String> = servers.iter().map(|one| (*one).to_owned()).collect();
        policies(Input {
            tenant: "abc",
            asked: Some(&asked),
            common: &[],
            name_servers: &servers,
            api_server: api.map(|one| one.parse().unwrap()),
        })
    }

    #[test]
    fn inside_the_cluster_only_in_both_directions() {
        let (all, faults) = made("InCluster", &["10.96.0.10", "2001:db8::53"], Some("192.0.2.7"));
        assert!(faults.is_empty());
        let ports = json!([{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]);
        assert_eq!(
            all[0].body["spec"],
            json!({
                "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {}}]}],
                "egress": [
                    {"to": [{"podSelector": {}}]},
                    {"to": [{"ipBlock": {"cidr": "10.96.0.10/32"}}], "ports": ports},
                    {"to": [{"ipBlock": {"cidr": "2001:db8::53/128"}}], "ports": ports},
                    {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]},
                ],
            })
        );
        assert_eq!(all[1].name(), "allow-kubevirt-importer");
    }

    #[test]
    fn what_is_not_known_opens_nothing() {
        for isolation in ["InCluster", "Egress"] {
            let (all, faults) = made(isolation, &["ten.dot.one"], None);
            assert!(faults[0].message.contains("nameservers[0]: `ten.dot.one`"), "{faults:?}");
            for wanted in &all {
                for direction in ["ingress", "egress"] {
                    for rule in wanted.body["spec"][direction].as_array().into_iter().flatten() {
                        let peers = rule["to"].as_array().or_else(|| rule["from"].as_array());
                        assert!(
                            peers.is_some_and(|peers| !peers.is_empty()),
                            "{isolation}: {rule}"
                        );
                        let empty = |peer: &&Value| peer.as_object().unwrap().is_empty();
                        assert_eq!(peers.unwrap().iter().find(empty), None, "{isolation}");
                    }
                }
            }
        }
    }

    #[test]
    fn as_kkp_has_it_and_ipv6_too() {
        let (all, _) = made("Egress", &[], Some("2001:db8::6"));
        assert_eq!(
            all[0].body["spec"],
            json!({
                "podSelector": {}, "policyTypes": ["Egress"],
                "egress": [
                    {"to": [{"podSelector": {}}]},
                    {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]}}]},
                    {"to": [{"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}}]},
                    {"to": [{"ipBlock": {"cidr": "2001:db8::6/128"}}]},
                ],
            })
        );
        assert!(made("Off", &[], None).0.is_empty());
    }

    #[test]
    fn policies_of_lists_are_marked_and_never_stand_in_for_ours() {
        let policy =
            |name: &str| CustomNetworkPolicy { name: name.to_owned(), ..Default::default() };
        let asked = NetworkPolicies {
            isolation: Some(Isolation::Off),
            custom: vec![policy("both"), policy("own"), policy("cluster-isolation")],
        };
        let common = [policy("both"), policy("common")];
        let (all, faults) = policies(Input {
            tenant: "abc",
            asked: Some(&asked),
            common: &common,
            name_servers: &[],
            api_server: None,
        });
        let marked: Vec<(&str, &str)> = all
            .iter()
            .map(|one| {
                (one.name(), one.body["metadata"]["labels"][CUSTOM_POLICY].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            marked,
            [("both", "infra-config"), ("common", "infra-config"), ("own", "tenant")]
        );
        assert_eq!(faults.len(), 2);
        assert!(faults[0].message.starts_with("spec.networkPolicies.custom[both]"), "{faults:?}");
    }
}
