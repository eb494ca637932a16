//! Facts of the infra cluster on which the NetworkPolicies of tenants depend: the pods of cluster DNS, and the
//! addresses of the cluster itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::InfraConfigSpec;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

use super::node_local_dns::bound_addresses;

/// Label that every namespace has since Kubernetes 1.21. Its value is the name of the namespace, and users cannot
/// change it.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespace in which cluster DNS runs.
pub const KUBE_SYSTEM: &str = "kube-system";
/// Label of the Services of cluster DNS. CoreDNS, kube-dns and the charts of distributions set it.
pub const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");

/// Maximum number of entries of `except` in an `ipBlock`, for each address family.
const MAX_EXCEPT_ENTRIES: usize = 256;
/// Shortest prefix length to which [`widen_to_limit`] widens networks: there are only 256 networks of this length,
/// which equals [`MAX_EXCEPT_ENTRIES`].
const MIN_PREFIX_LENGTH: u8 = 8;

/// Address ranges that are not public: private (RFC 1918, RFC 4193), shared (RFC 6598), link-local (RFC 3927, RFC
/// 4291), protocol assignments (RFC 6890), and the metadata service of Azure. The metadata services of other clouds are
/// in the other ranges.
const NON_PUBLIC_RANGES: [&str; 9] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "fc00::/7",
    "fe80::/10",
];

/// Listed objects of a kind, or the reason why they are unknown.
pub type ListResult<K> = Result<Vec<Arc<K>>, UnknownFact>;

/// Reason why a fact of the infra cluster is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFact {
    /// The watch has not received the first list of a kind yet.
    #[error("{0} are not listed yet")]
    NotListed(&'static str),
    /// The API server refuses the request to list a kind.
    #[error("{kind} cannot be listed: {reason}")]
    ListFailed {
        /// Plural name of the kind.
        kind: String,
        /// Error of the API server, with the chain of its causes.
        reason: String,
    },
    /// Cluster DNS has no Service with the required label, port and selector, so its pods are unknown.
    #[error(
        "no Service of namespace {} has label {}={}, port 53 and a selector: name the pods in InfraConfig's spec.clusterDNS",
        KUBE_SYSTEM, DNS_LABEL.0, DNS_LABEL.1
    )]
    NoDnsService,
    /// The namespace of cluster DNS lacks the label [`NAMESPACE_NAME_LABEL`], so that policies cannot select the
    /// namespace. Kubernetes sets this label since 1.21.
    #[error(
        "namespace {0} has no label {1}: kubectl label namespace {0} {1}={0}",
        KUBE_SYSTEM,
        NAMESPACE_NAME_LABEL
    )]
    NoNamespaceLabel,
    /// `spec.clusterDNS` of the InfraConfig contains no labels, and would therefore select all pods.
    #[error(
        "InfraConfig default: spec.clusterDNS has no labels, and would select every pod: set its namespaceLabels and \
         podLabels"
    )]
    ClusterDnsWithoutLabels,
    /// The Service of the API server has no endpoints.
    #[error("the EndpointSlice default/kubernetes has no addresses")]
    NoApiServerAddress,
}

/// Objects from which facts are derived.
#[derive(Clone, Debug)]
pub struct FactSources {
    /// Services in kube-system that have the label of cluster DNS.
    pub dns: ListResult<Service>,
    pub kube_system: ListResult<Namespace>,
    /// The Service `default/kubernetes`.
    pub api_service: ListResult<Service>,
    /// Endpoints of the API server.
    pub api_endpoints: ListResult<EndpointSlice>,
    /// ServiceCIDRs, which contain the address ranges of Services; empty before Kubernetes 1.33.
    pub service_networks: ListResult<ServiceCIDR>,
    /// The ConfigMap of NodeLocal DNSCache; empty if it is not installed.
    pub node_local_dns: ListResult<ConfigMap>,
}

/// Pods that answer DNS queries in the infra cluster, and the addresses of their Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsFacts {
    /// Labels of the namespace in which these pods run.
    pub namespace: BTreeMap<String, String>,
    /// Selectors and ports of the pods, one for each Service.
    pub backends: Vec<DnsBackend>,
    /// Addresses of the Services. On Nodes with NodeLocal DNSCache, a process on the Node itself answers at these
    /// addresses, so their packets are not translated to addresses of pods.
    pub addresses: BTreeSet<IpAddr>,
}

/// Pods behind one Service of cluster DNS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsBackend {
    /// Labels that select the pods; never empty, because an empty selector would select every pod.
    pub selector: BTreeMap<String, String>,
    /// Protocol and port (number or name) of each port of the pods.
    pub ports: Vec<(String, IntOrString)>,
}

/// Facts of the infra cluster on which NetworkPolicies depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Pods of cluster DNS, or the reason why they are unknown.
    pub dns: Result<DnsFacts, UnknownFact>,
    /// Addresses of the API server, or the reason why they are unknown.
    pub api_server: Result<BTreeSet<IpAddr>, UnknownFact>,
    pub node_addresses: BTreeSet<IpAddr>,
    /// Address ranges of pods and Services, if the API server has objects that contain them.
    pub networks: BTreeSet<IpNet>,
    /// Addresses at which NodeLocal DNSCache answers on every Node; empty if NodeLocal DNSCache is not installed, or
    /// its addresses are unknown.
    pub node_local_dns: BTreeSet<IpAddr>,
}

impl ClusterFacts {
    /// Derives the facts from objects of the infra cluster.
    #[must_use]
    pub fn derive(objects: &FactSources, nodes: &[Arc<Node>]) -> Self {
        let mut networks: BTreeSet<IpNet> =
            nodes.iter().flat_map(|node| pod_networks(node)).collect();
        // If the list cannot be read, the address ranges of Services are unknown, as before Kubernetes 1.33.
        for network in objects.service_networks.iter().flatten() {
            let spec = network.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
            networks.extend(spec.filter_map(|cidr| cidr.parse::<IpNet>().ok()));
        }
        Self {
            dns: derive_dns(&objects.dns, &objects.kube_system),
            api_server: derive_api_server(&objects.api_service, &objects.api_endpoints),
            node_addresses: nodes.iter().flat_map(|node| node_addresses(node)).collect(),
            networks,
            node_local_dns: bound_addresses(objects.node_local_dns.iter().flatten()),
        }
    }

    /// Returns the networks to which an isolated pod must not connect: IPv4 networks and IPv6 networks, both aggregated
    /// and sorted.
    #[must_use]
    pub fn excluded_networks(&self, config: &InfraConfigSpec) -> (Vec<Ipv4Net>, Vec<Ipv6Net>) {
        let single = self
            .api_server
            .iter()
            .flatten()
            .chain(&self.node_addresses)
            .map(|one| IpNet::from(*one));
        let all = NON_PUBLIC_RANGES.iter().filter_map(|one| one.parse::<IpNet>().ok());
        let all = all.chain(single).chain(self.networks.iter().copied());
        let all: Vec<IpNet> = all.chain(config.cluster_networks.iter().copied()).collect();
        let v4 = |bits: u8| {
            let widen = |one: &IpNet| match one {
                IpNet::V4(net) => Ipv4Net::new(net.addr(), net.prefix_len().min(bits)).ok(),
                IpNet::V6(_) => None,
            };
            Ipv4Net::aggregate(&all.iter().filter_map(widen).map(|net| net.trunc()).collect())
        };
        let v6 = |bits: u8| {
            let widen = |one: &IpNet| match one {
                IpNet::V6(net) => Ipv6Net::new(net.addr(), net.prefix_len().min(bits)).ok(),
                IpNet::V4(_) => None,
            };
            Ipv6Net::aggregate(&all.iter().filter_map(widen).map(|net| net.trunc()).collect())
        };
        (widen_to_limit(32, v4), widen_to_limit(128, v6))
    }
}

/// Widens networks until there are at most [`MAX_EXCEPT_ENTRIES`] of them. `networks` returns the networks, widened to
/// a maximum prefix length; the longest prefix length that results in few enough networks is used. If there are
/// thousands of Nodes with public addresses, the result also contains neighbouring addresses: the policies then permit
/// less than they could, never more.
fn widen_to_limit<N: Ord>(bits: u8, networks: impl Fn(u8) -> Vec<N>) -> Vec<N> {
    let lengths = (MIN_PREFIX_LENGTH..=bits).rev();
    let mut found =
        lengths.map(networks).find(|all| all.len() <= MAX_EXCEPT_ENTRIES).unwrap_or_default();
    found.sort();
    found
}

/// Returns the IP addresses in the status of a Node.
#[must_use]
pub fn node_addresses(node: &Node) -> BTreeSet<IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    all.filter_map(|one| one.address.parse().ok()).collect()
}

/// Returns the pod networks of a Node; empty if the cluster does not assign a pod network to each Node.
#[must_use]
pub fn pod_networks(node: &Node) -> BTreeSet<IpNet> {
    let spec = node.spec.as_ref();
    let all =
        spec.iter().flat_map(|spec| spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten()));
    all.filter_map(|cidr| cidr.parse().ok()).collect()
}

fn derive_dns(
    services: &ListResult<Service>,
    kube_system: &ListResult<Namespace>,
) -> Result<DnsFacts, UnknownFact> {
    let services = services.as_ref().map_err(Clone::clone)?;
    let mut dns = DnsFacts::default();
    let mut services: Vec<&Service> = services.iter().map(Arc::as_ref).collect();
    services.sort_by_key(|service| service.name_any());
    for spec in services.iter().filter_map(|service| service.spec.as_ref()) {
        let selector = spec.selector.clone().unwrap_or_default();
        let first = spec.cluster_ip.iter();
        let all = first.chain(spec.cluster_ips.iter().flatten());
        dns.addresses.extend(all.filter_map(|address| address.parse::<IpAddr>().ok()));
        if selector.is_empty() {
            continue;
        }
        // Only port 53 is permitted. Tenants do not need the other ports of the DNS pods, such as the metrics port.
        let ports = spec.ports.iter().flatten().filter(|port| port.port == 53);
        let ports = ports.map(|port| {
            let target = port.target_port.clone().unwrap_or(IntOrString::Int(port.port));
            (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), target)
        });
        let backend = DnsBackend { selector, ports: ports.collect() };
        if !backend.ports.is_empty() && !dns.backends.contains(&backend) {
            dns.backends.push(backend);
        }
    }
    if dns.backends.is_empty() {
        return Err(UnknownFact::NoDnsService);
    }
    let kube_system = kube_system.as_ref().map_err(Clone::clone)?;
    let labels =
        kube_system.first().map(|namespace| namespace.labels().clone()).unwrap_or_default();
    if labels.get(NAMESPACE_NAME_LABEL).is_none_or(|name| name != KUBE_SYSTEM) {
        return Err(UnknownFact::NoNamespaceLabel);
    }
    dns.namespace = [(NAMESPACE_NAME_LABEL.to_owned(), KUBE_SYSTEM.to_owned())].into();
    Ok(dns)
}

fn derive_api_server(
    service: &ListResult<Service>,
    endpoints: &ListResult<EndpointSlice>,
) -> Result<BTreeSet<IpAddr>, UnknownFact> {
    let service = service.as_ref().map_err(Clone::clone)?;
    let endpoints = endpoints.as_ref().map_err(Clone::clone)?;
    let of_endpoints = endpoints.iter().flat_map(|slice| &slice.endpoints);
    let mut all: BTreeSet<IpAddr> = of_endpoints
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse().ok())
        .collect();
    if all.is_empty() {
        return Err(UnknownFact::NoApiServerAddress);
    }
    for spec in service.iter().filter_map(|service| service.spec.as_ref()) {
        let ips = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
        all.extend(ips.filter_map(|address| address.parse::<IpAddr>().ok()));
    }
    Ok(all)
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
