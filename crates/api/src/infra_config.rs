//! InfraConfig: what holds for all tenants of one infra cluster. Read live: no change needs a restart.
//!
//! Fields that KKP has in its datacenter's `spec.kubevirt` are named as there.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::PodDNSConfig;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, CustomNetworkPolicy, Quantity, VlanRanges, VniRange};

/// What holds for all tenants of this infra cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "InfraConfig",
    plural = "infraconfigs",
    shortname = "iconf",
    category = "berth",
    status = "InfraConfigStatus",
    derive = "PartialEq",
    doc = "What holds for all tenants of this infra cluster. There is one, named `default`.",
    validation = Rule::new("self.metadata.name == 'default'")
        .message("there is one InfraConfig, and it is named default"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether all of it makes sense"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InfraConfigSpec {
    /// Labels of infra Nodes that tenants' Nodes get: keys, and prefixes that end in `*`. Looked over, and not carried out
    /// yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub replicated_node_labels: Vec<String>,
    /// VLANs that tenants may get, by host network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["network".to_string()]))]
    pub vlan_pools: Vec<VlanPool>,
    /// Which host networks share a wire. Two networks are taken to share one unless two different segments name them:
    /// then a VLAN is given to one tenant on all of them, and pools that overlap are a fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub segments: Vec<Segment>,
    /// VXLAN network identifiers that tenants may get, as `10000-19999`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni_range: Option<VniRange>,
    /// Seconds for which a VLAN or VNI stays unused after its tenant is gone, so that nothing that still speaks on it
    /// meets the next one. Default 3600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 31_536_000))]
    pub vlan_quarantine_seconds: Option<u32>,
    /// DNS policy of VMs that name none: ClusterFirst, ClusterFirstWithHostNet, Default or None.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<DnsPolicy>,
    /// DNS settings of VMs that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// NetworkPolicies for the namespace of every tenant. One that is taken away here goes there too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub custom_network_policies: Vec<CustomNetworkPolicy>,
    /// Pods that answer DNS queries of the cluster, for tenants' NetworkPolicies. Default: those of the Services labelled
    /// `k8s-app: kube-dns` in namespace kube-system.
    #[serde(rename = "clusterDNS", skip_serializing_if = "Option::is_none")]
    pub cluster_dns: Option<ClusterDns>,
    /// Networks of this cluster that isolated tenants do not reach although their addresses are public: pods, Services,
    /// storage, management. Private, shared and link-local addresses, Nodes and the API server are excluded without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 64), inner(length(max = 43)))]
    pub cluster_networks: Vec<IpNet>,
    /// Where images may be imported from, beside ports 80 and 443 of the internet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub image_sources: Vec<ImageSource>,
    /// Images of VMs that name only an operating system, or a version of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,
    /// Storage classes of this cluster that tenants may use. The one that is default is that of disks that name none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub infra_storage_classes: Vec<InfraStorageClass>,
    /// Eviction strategy of VMs that name none. Default External.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_eviction_strategy: Option<EvictionStrategy>,
    /// Sizes of VMs that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_defaults: Option<NodeDefaults>,
    /// Secondary disks a VM may have. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32))]
    pub max_secondary_disks: Option<u32>,
    /// Secrets and ConfigMaps that every MachineDeployment and TenantCluster may refer to, beside those of its own
    /// namespace and of its machines' namespace. The controller also needs the right to read them: docs/security.md.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["namespace".to_string(), "name".to_string()]))]
    pub secret_references: Vec<SecretReference>,
    /// Prefixes of annotations that templates of machines may set, as `example.com/`, beside annotations without a prefix
    /// and a few of CDI. Annotations of KubeVirt, Multus and container runtimes change how a pod runs: list them for
    /// tenants that you trust like administrators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub annotation_prefixes: Vec<String>,
}

/// A Secret or ConfigMap that may be referred to from other namespaces.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// VLANs of one host network that tenants may get.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VlanPool {
    /// The host network, as HostProfiles name it.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// Ranges and single ids: `100-199`, `300`.
    #[schemars(length(min = 1, max = 256))]
    pub ranges: Vec<VlanRanges>,
}

/// Host networks that share a wire.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Segment {
    /// A name for people.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The host networks, as HostProfiles name them. A network is in one segment.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub networks: Vec<String>,
}

/// Pods that answer DNS queries of the cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDns {
    /// Labels of their namespace, for instance `kubernetes.io/metadata.name: openshift-dns`.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    pub namespace_labels: BTreeMap<String, String>,
    /// Labels of the pods.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    pub pod_labels: BTreeMap<String, String>,
    /// Ports that the pods listen on, UDP and TCP. Default 53.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(range(min = 1)))]
    pub ports: Vec<u16>,
}

/// Addresses that images are imported from.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// The addresses, as `10.20.0.0/24` or `10.20.0.7/32`; of an image server, a registry or a proxy.
    #[schemars(with = "String", length(max = 43))]
    pub cidr: IpNet,
    /// TCP ports. Default 80 and 443.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(range(min = 1)))]
    pub ports: Vec<u16>,
}

/// Where images of operating systems are.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// Images that are fetched by HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpImages>,
}

/// Images that are fetched by HTTP.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HttpImages {
    /// URLs by operating system (`ubuntu`) and version (`22.04`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operating_systems: BTreeMap<String, BTreeMap<String, String>>,
}

/// A storage class that tenants may use.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraStorageClass {
    /// Name of the StorageClass in this cluster.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Whether disks that name no class are of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_default_class: Option<bool>,
}

/// Sizes of VMs that name none.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeDefaults {
    /// CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub cpus: Option<Quantity>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub memory: Option<Quantity>,
    /// Size of the first disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub primary_disk_size: Option<Quantity>,
}

/// DNS policy of a VM's launcher pod, as of pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsPolicy {
    /// The cluster's DNS first, also on the host's network.
    ClusterFirstWithHostNet,
    /// The cluster's DNS first.
    ClusterFirst,
    /// The host's.
    Default,
    /// Only what dnsConfig says.
    None,
}

impl InfraConfigSpec {
    /// Returns true if an entry of `annotationPrefixes` has a whole domain before a `/`: `k8s` alone would match many.
    #[must_use]
    pub fn is_annotation_prefix(prefix: &str) -> bool {
        prefix.split_once('/').is_some_and(|(domain, _)| domain.contains('.'))
    }
}

impl DnsPolicy {
    /// As it stands in a VirtualMachine.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterFirstWithHostNet => "ClusterFirstWithHostNet",
            Self::ClusterFirst => "ClusterFirst",
            Self::Default => "Default",
            Self::None => "None",
        }
    }
}

/// What happens to a VM when its host is drained.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionStrategy {
    /// A controller outside KubeVirt handles it: the machine is replaced.
    #[default]
    External,
    /// It moves to another host while it runs.
    LiveMigrate,
}

impl EvictionStrategy {
    /// As it stands in a VirtualMachine.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::External => "External",
            Self::LiveMigrate => "LiveMigrate",
        }
    }
}

/// What the controller says of the configuration.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraConfigStatus {
    /// Generation of the spec that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready: `False` says which part cannot be followed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
