//! Evaluates NetworkPolicies as the Kubernetes API documentation defines them (reference of `networking.k8s.io/v1`,
//! concept page "Network Policies"): returns the connections that a set of policies allows. The evaluator shares no
//! code with the renderer of policies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

pub(crate) type Labels = BTreeMap<String, String>;

/// Builds labels from pairs of key and value.
pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A pod on the pod network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    /// Addresses of the pod, one for each family.
    pub(crate) addresses: Vec<IpAddr>,
    /// Named container ports: name, protocol and number.
    pub(crate) ports: Vec<(String, String, u16)>,
    /// Addresses of the node on which the pod runs.
    pub(crate) node: Vec<IpAddr>,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    Pod(Pod),
    /// An address that does not belong to a pod.
    Address(IpAddr),
}

/// Destination port of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port<'a> {
    pub(crate) protocol: &'a str,
    pub(crate) number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// Namespaces and policies of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) policies: Vec<Value>,
    /// True if an `ipBlock` also applies to addresses of pods. The documentation leaves this to the network plugin:
    /// the blocks "should be cluster-external IPs".
    pub(crate) blocks_apply_to_pods: bool,
}

impl Cluster {
    /// Returns true if a connection is allowed by the policies of its source and by the policies of its
    /// destination.
    pub(crate) fn allows(
        &self,
        from: &Endpoint,
        to: &Endpoint,
        port: Port<'_>,
        is_v6: bool,
    ) -> bool {
        let egress_allowed = match from {
            Endpoint::Pod(pod) => self.is_allowed_by(Direction::Egress, pod, to, to, port, is_v6),
            Endpoint::Address(_) => true,
        };
        let ingress_allowed = match to {
            Endpoint::Pod(pod) => {
                self.is_allowed_by(Direction::Ingress, pod, from, to, port, is_v6)
            }
            Endpoint::Address(_) => true,
        };
        egress_allowed && ingress_allowed
    }

    fn is_allowed_by(
        &self,
        direction: Direction,
        pod: &Pod,
        other: &Endpoint,
        to: &Endpoint,
        port: Port<'_>,
        is_v6: bool,
    ) -> bool {
        // The Kubernetes documentation: "traffic to and from the node where a Pod is running is always allowed,
        // regardless of the IP address of the Pod or the node".
        if let Endpoint::Address(address) = other
            && pod.node.contains(address)
        {
            return true;
        }
        // A pod that no policy of a direction selects is not isolated in that direction. Otherwise the connection must
        // match a rule of at least one of these policies.
        let applying: Vec<&Value> = self
            .policies
            .iter()
            .filter(|policy| namespace_of(policy) == pod.namespace)
            .filter(|policy| selects(&policy["spec"]["podSelector"], &pod.labels))
            .filter(|policy| applies_to_direction(policy, direction))
            .collect();
        if applying.is_empty() {
            return true;
        }
        applying.iter().any(|policy| {
            let (rules, peers) = match direction {
                Direction::Ingress => ("ingress", "from"),
                Direction::Egress => ("egress", "to"),
            };
            as_list(&policy["spec"][rules]).iter().any(|rule| {
                let peers = as_list(&rule[peers]);
                let ports = as_list(&rule["ports"]);
                // An absent or empty `from`, `to` or `ports` matches all peers or all ports.
                (peers.is_empty()
                    || peers.iter().any(|peer| self.matches_peer(peer, policy, other, is_v6)))
                    && (ports.is_empty() || ports.iter().any(|one| matches_port(one, to, port)))
            })
        })
    }

    fn matches_peer(&self, peer: &Value, policy: &Value, end: &Endpoint, is_v6: bool) -> bool {
        let block = &peer["ipBlock"];
        if block.is_object() {
            assert!(
                peer.get("podSelector").is_none() && peer.get("namespaceSelector").is_none(),
                "a peer with ipBlock must have no other field: {peer}"
            );
            let address = match end {
                Endpoint::Address(address) => Some(*address),
                Endpoint::Pod(pod) if self.blocks_apply_to_pods => {
                    pod.addresses.iter().copied().find(|address| address.is_ipv6() == is_v6)
                }
                Endpoint::Pod(_) => None,
            };
            return address.is_some_and(|address| {
                let is_in = |cidr: &Value| cidr_contains(cidr.as_str().expect("a CIDR"), address);
                is_in(&block["cidr"]) && !as_list(&block["except"]).iter().any(is_in)
            });
        }
        let Endpoint::Pod(pod) = end else { return false };
        let none = Labels::new();
        let namespace_labels = self.namespaces.get(&pod.namespace).unwrap_or(&none);
        let (pods, namespaces) = (peer.get("podSelector"), peer.get("namespaceSelector"));
        assert!(pods.is_some() || namespaces.is_some(), "the peer is empty: {peer}");
        let matches_namespace = match namespaces {
            Some(selector) => selects(selector, namespace_labels),
            None => pod.namespace == namespace_of(policy),
        };
        matches_namespace && pods.is_none_or(|selector| selects(selector, &pod.labels))
    }
}

fn namespace_of(policy: &Value) -> &str {
    policy["metadata"]["namespace"].as_str().unwrap_or("default")
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns true if a policy applies to ingress or to egress. "If no policyTypes are specified on a NetworkPolicy then
/// by default Ingress will always be set and Egress will be set if the NetworkPolicy has any egress rules."
fn applies_to_direction(policy: &Value, direction: Direction) -> bool {
    let types = as_list(&policy["spec"]["policyTypes"]);
    let name = match direction {
        Direction::Ingress => "Ingress",
        Direction::Egress => "Egress",
    };
    if types.is_empty() {
        return direction == Direction::Ingress || !as_list(&policy["spec"]["egress"]).is_empty();
    }
    types.iter().any(|one| one == name)
}

fn matches_port(rule: &Value, to: &Endpoint, port: Port<'_>) -> bool {
    if rule["protocol"].as_str().unwrap_or("TCP") != port.protocol {
        return false;
    }
    match (&rule["port"], &rule["endPort"]) {
        // An absent port matches all ports of the protocol.
        (Value::Null, _) => true,
        (Value::Number(first), Value::Number(last)) => {
            let range = first.as_u64().unwrap()..=last.as_u64().unwrap();
            range.contains(&u64::from(port.number))
        }
        (Value::Number(only), _) => only.as_u64() == Some(port.number.into()),
        // A named port is a container port of the destination pod.
        (Value::String(name), _) => match to {
            Endpoint::Pod(pod) => pod.ports.iter().any(|(known, protocol, number)| {
                known == name && protocol == port.protocol && *number == port.number
            }),
            Endpoint::Address(_) => false,
        },
        (other, _) => panic!("invalid port: {other}"),
    }
}

/// Returns true if a selector selects these labels. An empty selector selects all labels; otherwise all its parts
/// must match.
fn selects(selector: &Value, labels: &Labels) -> bool {
    let pairs = selector["matchLabels"].as_object();
    let pairs_match = pairs.into_iter().flatten().all(|(key, value)| {
        labels.get(key).map(String::as_str) == Some(value.as_str().expect("a string"))
    });
    let terms = as_list(&selector["matchExpressions"]);
    pairs_match
        && terms.iter().all(|term| {
            let value = labels.get(term["key"].as_str().expect("a key"));
            let is_listed = || {
                value.is_some_and(|there| as_list(&term["values"]).iter().any(|one| one == there))
            };
            match term["operator"].as_str().expect("the term should have an operator") {
                "In" => is_listed(),
                "NotIn" => !is_listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("unknown operator: {other}"),
            }
        })
}

/// Returns true if a CIDR contains an address; compares bit by bit.
fn cidr_contains(cidr: &str, address: IpAddr) -> bool {
    let (network, length) = cidr.split_once('/').expect("a CIDR");
    let (network, length): (IpAddr, u32) = (network.parse().unwrap(), length.parse().unwrap());
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let ((network, width), (address, other)) = (bits(network), bits(address));
    assert!(length <= width, "{cidr}");
    width == other && (length == 0 || (network ^ address) >> (128 - length) == 0)
}
