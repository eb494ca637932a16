//! InfraConfig: configuration for all tenants of one infra cluster. Changes take effect without a restart.
//!
//! Fields that also exist in `spec.kubevirt` of a KKP datacenter have the same names.

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

use crate::tenant_cluster::CustomNetworkPolicy;
use crate::{
    Condition, ControlPlaneSpread, DrainTimeout, GoldenImageStatus, HostDevices, Images,
    PlacementConfig, PrefixPool, Quantity, VlanRanges, VniRange,
};

/// Configuration for all tenants of this infra cluster.
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
    doc = "Configuration for all tenants of this infra cluster. There is only one, named `default`.",
    validation = Rule::new("self.metadata.name == 'default'")
        .message("the name of the InfraConfig must be default"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "True if the whole configuration is valid"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InfraConfigSpec {
    /// Labels that are copied from an infra Node to the Nodes of the VMs on this host, in clusters of tenants with a
    /// `kubeconfigSecretRef`: keys, or prefixes that end in `*`. Default `topology.kubernetes.io/region` and
    /// `topology.kubernetes.io/zone`; an empty list copies no label. Labels such as `kubernetes.io/hostname`, which
    /// describe the tenant's Node itself, are not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub replicated_node_labels: Option<Vec<String>>,
    /// Annotations that are copied in the same way as `replicatedNodeLabels`: keys, or prefixes that end in `*`.
    /// Default none. Annotations of Kubernetes, KubeVirt and Berth, and values of more than 4 KiB, are not copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub replicated_node_annotations: Vec<String>,
    /// Taints that are copied in the same way as `replicatedNodeLabels`: keys, or prefixes that end in `*`. Default
    /// none. Taints such as `node.kubernetes.io/unschedulable`, which describe the state or the role of a Node, are not
    /// copied. A copied taint with the effect `NoExecute` evicts the tenants' pods that do not tolerate it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub replicated_node_taints: Vec<String>,
    /// Pools of VLANs that are allocated to tenants, by host network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["network".to_string()]))]
    pub vlan_pools: Vec<VlanPool>,
    /// Host networks that share a layer 2 segment. Two networks are assumed to share a segment unless two different
    /// segments list them. In networks that share a segment, a VLAN is allocated to one tenant only, and overlapping
    /// pools are an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub segments: Vec<Segment>,
    /// VXLAN network identifiers that are allocated to tenants, such as `10000-19999`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni_range: Option<VniRange>,
    /// Pools of IP addresses. A tenant's network that names a pool in `fromPool` of its `ipv4` or `ipv6` gets a prefix
    /// of this pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub address_pools: Vec<PrefixPool>,
    /// Seconds for which a VLAN, a VNI or a prefix stays unused after its tenant is deleted, so that remaining traffic
    /// does not reach the next tenant. Default 3600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 31_536_000))]
    pub vlan_quarantine_seconds: Option<u32>,
    /// Seconds for which an address stays unused after its machine is deleted. Default 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 31_536_000))]
    pub address_quarantine_seconds: Option<u32>,
    /// Networks that tenants may attach to their machines: NAMESPACE/NAME of a NetworkAttachmentDefinition, or the name
    /// of a TenantCluster with `spec.network`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub additional_networks: Vec<String>,
    /// Namespace in which MetalLB reads its configuration. Default metallb-system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub metallb_namespace: Option<String>,
    /// DNS policy of VMs that do not specify one: ClusterFirst, ClusterFirstWithHostNet, Default or None.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<DnsPolicy>,
    /// DNS settings (`dnsConfig`) of VMs that specify no DNS settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// NetworkPolicies for the namespace of every tenant. If an entry is removed from this list, the NetworkPolicy is
    /// deleted from all namespaces of tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub custom_network_policies: Vec<CustomNetworkPolicy>,
    /// Pods that answer DNS queries of the infra cluster. Tenants' NetworkPolicies permit connections to them. Default:
    /// the pods of the Services with the label `k8s-app: kube-dns` in namespace kube-system.
    #[serde(rename = "clusterDNS", skip_serializing_if = "Option::is_none")]
    pub cluster_dns: Option<ClusterDns>,
    /// Networks of the infra cluster with public addresses that isolated tenants must not reach: pods, Services,
    /// storage, management. Private, shared and link-local addresses, Nodes and the API server are always excluded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 64), inner(length(max = 43)))]
    pub cluster_networks: Vec<IpNet>,
    /// Addresses from which images may be imported, in addition to ports 80 and 443 of the internet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub image_sources: Vec<ImageSource>,
    /// Images of VMs: those of operating systems, for VMs that specify an operating system, with or without its version,
    /// instead of an image; and how images are imported and cloned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,
    /// Storage classes of this cluster that tenants may use. Disks that do not specify a class use the default class.
    /// For each class, the controller creates a StorageClass `kubevirt-NAME` in the clusters of tenants with a
    /// `kubeconfigSecretRef`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub infra_storage_classes: Vec<InfraStorageClass>,
    /// Eviction strategy of VMs that do not specify one. Default External.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_eviction_strategy: Option<EvictionStrategy>,
    /// CPUs, memory and disk size of VMs that do not specify these values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_defaults: Option<NodeDefaults>,
    /// Maximum time limit of the drain of a machine. A longer time limit in the annotation
    /// `berth.dev/node-drain-timeout` of a MachineDeployment or of a machine is reduced to this maximum. Default: no
    /// maximum. The drain of a host is complete only after all its machines are drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_node_drain_timeout: Option<DrainTimeout>,
    /// Maximum number of secondary disks of a VM. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32))]
    pub max_secondary_disks: Option<u32>,
    /// PCI devices of hosts, such as GPUs and NVMe drives, that VMs may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_devices: Option<HostDevices>,
    /// Secrets and ConfigMaps that every MachineDeployment and TenantCluster may refer to, in addition to those of its
    /// own namespace and of its machines' namespace; except those of tenants that users request. The controller also needs
    /// permission to read them: docs/security.md.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["namespace".to_string(), "name".to_string()]))]
    pub secret_references: Vec<SecretReference>,
    /// Prefixes of the annotations that templates of machines may set, such as `example.com/`. Annotations without a
    /// prefix and a few annotations of CDI are always permitted. Annotations of KubeVirt, Multus and container runtimes
    /// change how a pod runs: list them only for tenants that you trust like administrators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub annotation_prefixes: Vec<String>,
    /// Preferences for the placement of VMs on hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementConfig>,
    /// Tenants that users request with TenantRequests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_service: Option<SelfService>,
}

/// Configuration of tenants that users request.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SelfService {
    /// URL of this cluster's API server in the kubeconfigs of requesters, such as `https://api.example.com:6443`. Without
    /// it, requesters get no kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 512), regex(pattern = r"^https://\S+$"))]
    pub server: Option<String>,
    /// Certificates of the authority that has signed the API server's certificate, in PEM. Default: those in the ConfigMap
    /// `kube-root-ca.crt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65_536))]
    pub certificate_authority: Option<String>,
    /// Namespace with VirtualMachineInstancetypes and VirtualMachinePreferences that are shared with requested tenants: the
    /// controller copies the granted instance types and all preferences to the namespaces of the tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub flavors_namespace: Option<String>,
    /// Seconds for which a tenant stays whose TenantRequest does not exist any more, although its finalizer prevents its
    /// deletion. Default 3600, so that a restore from a backup may create the objects in any order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 31_536_000))]
    pub orphan_deletion_delay_seconds: Option<u32>,
}

/// Reference to a Secret or ConfigMap that objects in other namespaces may use.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Namespace of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Pool of VLANs of one host network that are allocated to tenants.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VlanPool {
    /// Name of the host network, as in HostProfiles.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// Single VLAN IDs and ranges of VLAN IDs, such as `300` and `100-199`.
    #[schemars(length(min = 1, max = 256))]
    pub ranges: Vec<VlanRanges>,
}

/// Host networks that share a layer 2 segment.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Segment {
    /// Name of the segment, for information only.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Names of the host networks, as in HostProfiles. A host network is in at most one segment.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub networks: Vec<String>,
}

/// Pods that answer DNS queries of the infra cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDns {
    /// Labels of the pods' namespace, for example `kubernetes.io/metadata.name: openshift-dns`.
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

/// Addresses from which images may be imported.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Addresses of an image server, a registry or a proxy in CIDR notation, such as `10.20.0.0/24` or `10.20.0.7/32`.
    #[schemars(with = "String", length(max = 43))]
    pub cidr: IpNet,
    /// TCP ports. Default 80 and 443.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(range(min = 1)))]
    pub ports: Vec<u16>,
}

/// A storage class that tenants may use.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraStorageClass {
    /// Name of the StorageClass in this cluster.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// True if this is the default class for disks of machines that do not specify a class, and for volumes in tenants'
    /// clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_default_class: Option<bool>,
    /// Restricts the use of the class: `kubevirt-csi-driver` for volumes in tenants' clusters only, `infra-csi-driver`
    /// for disks of machines only. Default: both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_provisioner: Option<VolumeProvisioner>,
    /// Binding mode of the StorageClass in tenants' clusters. Default: the binding mode of the class in this cluster.
    /// The binding mode of an existing StorageClass cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_binding_mode: Option<VolumeBindingMode>,
    /// Reclaim policy of the StorageClass in tenants' clusters. Default Delete. The reclaim policy of an existing
    /// StorageClass cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// True if volumes in tenants' clusters can be expanded. Default: the value of the class in this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_volume_expansion: Option<bool>,
    /// Zones in which the class has storage. Default: the zones in `allowedTopologies` of the class in this cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub zones: Vec<String>,
    /// Regions in which the class has storage. Default: the regions in `allowedTopologies` of the class in this
    /// cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub regions: Vec<String>,
}

impl InfraStorageClass {
    /// Returns true if the class is for disks of machines.
    #[must_use]
    pub fn is_for_machines(&self) -> bool {
        self.volume_provisioner != Some(VolumeProvisioner::KubevirtCsiDriver)
    }

    /// Returns true if the class is for volumes in tenants' clusters.
    #[must_use]
    pub fn is_for_tenants(&self) -> bool {
        self.volume_provisioner != Some(VolumeProvisioner::InfraCsiDriver)
    }
}

/// Uses of a storage class, with the names of the CSI drivers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeProvisioner {
    /// Volumes in tenants' clusters.
    #[serde(rename = "kubevirt-csi-driver")]
    KubevirtCsiDriver,
    /// Disks of machines.
    #[serde(rename = "infra-csi-driver")]
    InfraCsiDriver,
}

/// Time at which a volume is created: `volumeBindingMode` of a StorageClass.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeBindingMode {
    /// The volume is created with the PersistentVolumeClaim.
    Immediate,
    /// The volume is created after a pod that uses the PersistentVolumeClaim.
    WaitForFirstConsumer,
}

impl VolumeBindingMode {
    /// Returns the value of `volumeBindingMode` in a StorageClass.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Immediate => "Immediate",
            Self::WaitForFirstConsumer => "WaitForFirstConsumer",
        }
    }
}

/// Handling of a volume whose PersistentVolumeClaim is deleted: `reclaimPolicy` of a StorageClass.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// The volume is deleted.
    #[default]
    Delete,
    /// The volume and its data remain.
    Retain,
}

impl ReclaimPolicy {
    /// Returns the value of `reclaimPolicy` in a StorageClass.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

/// CPUs, memory and disk size of VMs that do not specify these values.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeDefaults {
    /// Number of CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub cpus: Option<Quantity>,
    /// Amount of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub memory: Option<Quantity>,
    /// Size of the primary disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub primary_disk_size: Option<Quantity>,
}

/// DNS policy of a VM's launcher pod: `dnsPolicy` of the pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsPolicy {
    /// Use the cluster's DNS first, even if the pod uses the host's network.
    ClusterFirstWithHostNet,
    /// Use the cluster's DNS first.
    ClusterFirst,
    /// Use the host's DNS settings.
    Default,
    /// Use only the settings of `dnsConfig`.
    None,
}

impl InfraConfigSpec {
    /// Returns `spec.placement.controlPlaneSpread`; if it is absent, a value whose fields are all `None`.
    #[must_use]
    pub fn control_plane_spread(&self) -> ControlPlaneSpread {
        let placement = self.placement.as_ref();
        placement.and_then(|one| one.control_plane_spread.clone()).unwrap_or_default()
    }

    /// Returns true if an entry of `annotationPrefixes` is a complete domain, followed by `/`. A shorter prefix such as
    /// `k8s` would match the annotations of many domains.
    #[must_use]
    pub fn is_valid_annotation_prefix(prefix: &str) -> bool {
        prefix.split_once('/').is_some_and(|(domain, _)| domain.contains('.'))
    }
}

impl DnsPolicy {
    /// Returns the value of `dnsPolicy` in a VirtualMachine.
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

/// Handling of a VM whose host is drained.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionStrategy {
    /// A controller outside KubeVirt handles the eviction: Berth replaces the machine.
    #[default]
    External,
    /// The VM is migrated to another host while it runs.
    LiveMigrate,
}

impl EvictionStrategy {
    /// Returns the value of `evictionStrategy` in a VirtualMachine.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::External => "External",
            Self::LiveMigrate => "LiveMigrate",
        }
    }
}

/// Observed state of the configuration, as reported by the controller.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraConfigStatus {
    /// Generation of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Golden images of all namespaces: those that machines or `spec.images.catalog` need, and those that are not deleted
    /// yet. At most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace", "name"])
    )]
    pub golden_images: Vec<GoldenImageStatus>,
    /// Number of golden images that are not in `goldenImages` because of its maximum length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub golden_images_omitted: Option<u32>,
    /// Conditions of the configuration. Ready: if it is `False`, its message names the fields that cannot be applied.
    /// GoldenImagesReady, with golden images only: if it is `False`, its message names the images that are not ready.
    /// HostDevicesReady, with `hostDevices.manage` only: if it is `False`, its message names the devices that KubeVirt does not
    /// permit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
