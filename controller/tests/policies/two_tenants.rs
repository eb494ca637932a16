//! A cluster with two tenants, CDI, KubeVirt and dual-stack addresses. Many addresses of the cluster are public:
//! policies exclude all private addresses in any case, but must exclude each public address of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::{Exposure, InfraConfigSpec, NetworkPolicies};
use berth_controller::tenants::cluster::{ClusterFacts, DnsBackend, DnsFacts};
use berth_controller::tenants::load_balancer_service::LoadBalancerService;
use berth_controller::tenants::objects::policies::{PolicyInput, render_policies};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::evaluator::{Cluster, Endpoint, Labels, Pod, labels};

const CLOUD_CONTROLLER_MANAGER: &str = "kubevirt-cloud-controller-manager";
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Cluster with the policies of tenant `abc` and of the other tenant, `xyz`.
pub(crate) struct TwoTenants {
    pub(crate) cluster: Cluster,
}

fn infra_config() -> InfraConfigSpec {
    serde_json::from_value(json!({
        "dnsConfig": {"nameservers": ["198.51.100.53", "2001:db8:53::53"]},
        "clusterNetworks": ["192.0.3.0/24", "2001:db8:77::/48"],
        "imageSources": [{"cidr": "10.20.0.0/24", "ports": [5000]}, {"cidr": "fd20::/64", "ports": [5000]}],
        "images": {"http": {"operatingSystems": {"ubuntu": {
            "22.04": "https://images.example:8443/u.img",
            "24.04": "http://10.0.0.9:8080/u.img", "24.10": "http://[fd00::9]:8080/u.img",
            "26.04": "http://images.store.svc.cluster.local/u.img",
        }}}},
    }))
    .unwrap()
}

/// Returns facts about the cluster with public addresses wherever an address may be public, because policies exclude
/// all private addresses in any case.
fn cluster_facts() -> ClusterFacts {
    let parse_all = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect();
    let port =
        |protocol: &str| (protocol.to_owned(), IntOrString::String(format!("dns-{protocol}")));
    ClusterFacts {
        dns: Ok(DnsFacts {
            namespace: labels(&[(NAMESPACE_NAME_LABEL, "kube-system")]),
            backends: vec![DnsBackend {
                selector: labels(&[("k8s-app", "kube-dns")]),
                ports: vec![port("UDP"), port("TCP")],
            }],
            addresses: parse_all(&["203.0.113.10", "2001:db8:96::a"]),
        }),
        api_server: Ok(parse_all(&[
            "198.51.100.6",
            "2001:db8:5::6",
            "203.0.113.1",
            "2001:db8:96::1",
        ])),
        node_addresses: parse_all(&[
            "198.51.100.20",
            "2001:db8:5::20",
            "198.51.100.21",
            "2001:db8:5::21",
        ]),
        networks: ["203.0.113.0/24", "2001:db8:96::/112", "192.0.2.0/24", "2001:db8:244::/64"]
            .iter()
            .map(|one| one.parse().unwrap())
            .collect::<BTreeSet<_>>(),
        node_local_dns: BTreeSet::new(),
    }
}

/// Returns the policies of a tenant, including the policies of its exposure.
fn tenant_policies(
    tenant: &str,
    isolation: &str,
    exposure: Option<&Exposure>,
    load_balancers: &[LoadBalancerService],
) -> Vec<Value> {
    let network_policies: NetworkPolicies =
        serde_json::from_value(json!({"isolation": isolation})).unwrap();
    let api_server: IpAddr = "10.9.9.9".parse().unwrap();
    let all = render_policies(PolicyInput {
        tenant,
        requested: Some(&network_policies),
        config: &infra_config(),
        cluster: &cluster_facts(),
        api_server: Some(api_server),
        exposure,
        load_balancers,
    });
    assert!(all.faults.is_empty(), "{:?}", all.faults);
    all.isolation.iter().chain(&all.exposure).map(|one| one.body.clone()).collect()
}

impl TwoTenants {
    /// Creates a cluster in which tenant `abc` has the isolation `isolation`; the other tenant has the default
    /// isolation.
    pub(crate) fn with_isolation(isolation: &str) -> Self {
        Self::with_isolations(isolation, "InCluster")
    }

    /// Creates a cluster in which tenant `abc` has the isolation `isolation`, and the other tenant has the isolation
    /// `other`.
    pub(crate) fn with_isolations(isolation: &str, other: &str) -> Self {
        Self::with_policies(tenant_policies("abc", isolation, None, &[]), other)
    }

    /// Creates a cluster in which tenant `abc`, with isolation `InCluster`, exposes port 30443 of its machines by a
    /// load balancer, and port 6443 by a Service of each machine. The other tenant has the isolation `other`.
    pub(crate) fn with_exposure(other: &str) -> Self {
        let exposure: Exposure = serde_json::from_value(json!({
            "loadBalancers": {"addresses": ["198.51.100.64/28"]},
            "cloudControllerManager": {"image": "ccm:1"},
            "machineAccess": {"ssh": false, "ports": [6443]},
        }))
        .unwrap();
        let spec = json!({
            "type": "LoadBalancer", "selector": {"vm.kubevirt.io/name": "web"},
            "ports": [{"port": 443, "targetPort": 30_443}],
        });
        let service = LoadBalancerService::new("a0123", &spec).unwrap();
        let policies = tenant_policies("abc", "InCluster", Some(&exposure), &[service]);
        Self::with_policies(policies, other)
    }

    /// Creates a cluster in which tenant `abc` has the policies `policies`, and the other tenant has the isolation
    /// `other`.
    fn with_policies(policies: Vec<Value>, other: &str) -> Self {
        let name = |name: &str| (name.to_owned(), labels(&[(NAMESPACE_NAME_LABEL, name)]));
        let tenant = |id: &str| {
            let namespace = format!("cluster-{id}");
            let labels =
                labels(&[(NAMESPACE_NAME_LABEL, namespace.as_str()), ("berth.dev/tenant", id)]);
            (namespace, labels)
        };
        let namespaces: BTreeMap<String, Labels> = [
            tenant("abc"),
            tenant("xyz"),
            name("kube-system"),
            name("cdi"),
            name("kubevirt"),
            name("images"),
            name("store"),
            name("default"),
        ]
        .into();
        let policies = [policies, tenant_policies("xyz", other, None, &[])].concat();
        Self { cluster: Cluster { namespaces, policies, blocks_apply_to_pods: false } }
    }

    /// Returns an endpoint by its name in the table of connections; `None` if the endpoint has no address of the
    /// family.
    pub(crate) fn endpoint(&self, name: &str, is_v6: bool) -> Option<Endpoint> {
        let importer: &[(&str, &str)] =
            &[("app", "containerized-data-importer"), ("cdi.kubevirt.io", "importer")];
        let uploader: &[(&str, &str)] =
            &[("app", "containerized-data-importer"), ("cdi.kubevirt.io", "cdi-upload-server")];
        let clone: &[(&str, &str)] =
            &[("app", "containerized-data-importer"), ("cdi.kubevirt.io", "cdi-clone-source")];
        let vm: &[(&str, &str)] =
            &[("kubevirt.io", "virt-launcher"), ("vm.kubevirt.io/name", "web")];
        let vm_labels_with = |more: &[(&'static str, &'static str)]| [vm, more].concat();
        let (namespace, pairs): (&str, Vec<(&str, &str)>) = match name {
            "VM" => ("cluster-abc", vm.to_vec()),
            "VM of the same tenant" => ("cluster-abc", vm.to_vec()),
            "VM labelled as an importer" => ("cluster-abc", vm_labels_with(importer_labels())),
            "VM of another tenant" => ("cluster-xyz", vm.to_vec()),
            "VM of another tenant, labelled image-repo" => {
                ("cluster-xyz", vm_labels_with(&[("app", "image-repo")]))
            }
            "VM of another tenant, labelled cdi-uploadproxy" => {
                ("cluster-xyz", vm_labels_with(&[("cdi.kubevirt.io", "cdi-uploadproxy")]))
            }
            // This pod has no label `kubevirt.io: virt-launcher`. KubeVirt sets this label on every launcher pod, but
            // the policies must not depend on it.
            "VM of another tenant, labelled virt-api" => {
                ("cluster-xyz", vec![("kubevirt.io", "virt-api")])
            }
            "VM labelled as the cloud controller manager" => {
                ("cluster-abc", vm_labels_with(&[("k8s-app", CLOUD_CONTROLLER_MANAGER)]))
            }
            "cloud controller manager" => {
                ("cluster-abc", vec![("k8s-app", CLOUD_CONTROLLER_MANAGER)])
            }
            "importer" => ("cluster-abc", importer.to_vec()),
            "uploader" => ("cluster-abc", uploader.to_vec()),
            "uploader of another tenant" => ("cluster-xyz", uploader.to_vec()),
            "source of a clone here" => ("cluster-abc", clone.to_vec()),
            "source of a clone elsewhere" => ("images", clone.to_vec()),
            "cluster DNS" => ("kube-system", vec![("k8s-app", "kube-dns")]),
            "other pod of kube-system" => ("kube-system", vec![("k8s-app", "metrics-server")]),
            "image-repo of the cluster" => ("images", vec![("app", "image-repo")]),
            "Service of images in the cluster" => ("store", vec![("app", "images")]),
            "pod of the cluster" => ("default", vec![("app", "web")]),
            "cdi-uploadproxy" => ("cdi", vec![("cdi.kubevirt.io", "cdi-uploadproxy")]),
            "cdi-deployment" => ("cdi", vec![("cdi.kubevirt.io", "cdi-deployment")]),
            "virt-api" => ("kubevirt", vec![("kubevirt.io", "virt-api")]),
            "virt-handler" | "virt-handler of another node" => {
                ("kubevirt", vec![("kubevirt.io", "virt-handler")])
            }
            _ => return endpoint_address(name, is_v6),
        };
        // Pods have public addresses. A rule with an `ipBlock` for the internet must exclude these addresses, because
        // some network plugins apply an `ipBlock` to pods.
        let addresses = ["192.0.2.40", "2001:db8:244::40"];
        Some(Endpoint::Pod(Pod {
            namespace: namespace.to_owned(),
            labels: labels(&pairs),
            addresses: addresses.iter().map(|one| one.parse().unwrap()).collect(),
            ports: vec![
                ("dns-UDP".to_owned(), "UDP".to_owned(), 53),
                ("dns-TCP".to_owned(), "TCP".to_owned(), 53),
            ],
            node: vec!["198.51.100.20".parse().unwrap(), "2001:db8:5::20".parse().unwrap()],
        }))
    }
}

const fn importer_labels() -> &'static [(&'static str, &'static str)] {
    &[("app", "containerized-data-importer"), ("cdi.kubevirt.io", "importer")]
}

fn endpoint_address(name: &str, is_v6: bool) -> Option<Endpoint> {
    let (v4, v6) = match name {
        "internet" => ("93.184.216.34", "2606:2800:220::1"),
        "private address" => ("192.168.7.7", "fd77::7"),
        "shared address" => ("100.64.7.7", ""),
        "metadata" => ("169.254.169.254", "fe80::a9fe:a9fe"),
        "metadata at a public address" => ("168.63.129.16", ""),
        "NodeLocal DNSCache" => ("169.254.20.10", ""),
        "Service of cluster DNS" => ("203.0.113.10", "2001:db8:96::a"),
        "name server of InfraConfig" => ("198.51.100.53", "2001:db8:53::53"),
        "image server of InfraConfig" => ("10.0.0.9", "fd00::9"),
        "registry of spec.imageSources" => ("10.20.0.77", "fd20::77"),
        "the tenant's own API server" => ("10.9.9.9", ""),
        "infra API server" => ("198.51.100.6", "2001:db8:5::6"),
        "Service of the infra API server" => ("203.0.113.1", "2001:db8:96::1"),
        "its own node" => ("198.51.100.20", "2001:db8:5::20"),
        "another node" => ("198.51.100.21", "2001:db8:5::21"),
        "network of Services" => ("203.0.113.99", "2001:db8:96::99"),
        "network of spec.clusterNetworks" => ("192.0.3.3", "2001:db8:77::3"),
        other => panic!("unknown endpoint: {other}"),
    };
    let text = if is_v6 { v6 } else { v4 };
    (!text.is_empty()).then(|| Endpoint::Address(text.parse().unwrap()))
}
