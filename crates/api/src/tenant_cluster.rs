//! TenantCluster: one tenant's cluster, and what the infra cluster keeps for it.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicySpec;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, VlanId};

/// One tenant cluster; its id is its name, its namespace `cluster-<id>`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantCluster",
    plural = "tenantclusters",
    shortname = "tcluster",
    category = "berth",
    status = "TenantClusterStatus",
    derive = "PartialEq",
    doc = "One tenant cluster: its id is its name, its machines are in namespace cluster-<id>.",
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,53}[a-z0-9])?$')")
        .message("the name is a DNS label of at most 55 characters: its namespace is cluster-<name>"),
    printcolumn(
        name = "VLAN",
        type_ = "integer",
        json_path = ".status.vlan",
        description = "VLAN of its network"
    ),
    printcolumn(
        name = "Machines",
        type_ = "integer",
        json_path = ".status.machines.ready",
        description = "Machines that run"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "True if everything matches the spec"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Why, or why not"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "VNI",
        type_ = "integer",
        json_path = ".status.vni",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network.name == oldSelf.network.name)")
        .message("a tenant cannot move to another host network: delete it and create it again")
)]
pub struct TenantClusterSpec {
    /// The network of its own. Without one its machines have the pod network only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<TenantNetwork>,
    /// Labels of the infra Nodes that carry its network; without any, all that have the host network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// What its machines may reach on the pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policies: Option<NetworkPolicies>,
    /// A kubeconfig for its own API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<SecretRef>,
    /// The project that it belongs to, for the label `kubermatic.k8c.io/project-id`.
    #[serde(rename = "projectID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub project_id: Option<String>,
    /// User data of machines whose MachineDeployment names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_secret_ref: Option<SecretRef>,
    /// Scheduler of its machines, as berth-scheduler. Default: the one of their instance type. An instance type that names
    /// another scheduler is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub scheduler_name: Option<String>,
    /// Other namespaces whose MachineDeployments may name this tenant, as `kube-system`. Its own, `cluster-<id>`, always may.
    /// Machines of the tenant get its network and its user data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub machine_namespaces: Vec<String>,
}

/// A tenant's own layer 2.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.vlan) && has(self.vni))")
        .message("vlan and vni exclude each other"),
    validation = Rule::new("!has(oldSelf.vlan) || (has(self.vlan) && self.vlan == oldSelf.vlan)")
        .message("a VLAN that was asked for cannot be changed: delete the tenant and create it again"),
    validation = Rule::new("!has(oldSelf.vni) || (has(self.vni) && self.vni == oldSelf.vni)")
        .message("a VNI that was asked for cannot be changed: delete the tenant and create it again")
)]
pub struct TenantNetwork {
    /// Which host network carries it, as HostProfiles name it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// This VLAN, inside a pool or not. Default: one from the pools of InfraConfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// This VXLAN network identifier. Default: one from the range of InfraConfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<u32>,
    /// Addresses that are used on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 43))]
    pub cidr: Option<String>,
    /// How VMs are attached. Default: as the host network's scenario has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<NetworkBinding>,
    /// Frames from other Ethernet addresses than the VM's own are dropped. Default true; virtual addresses
    /// (keepalived, nested bridges) need false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_spoof_check: Option<bool>,
    /// The resource of the SR-IOV device plugin that allocates virtual functions, as `openshift.io/tenantvfs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 317))]
    pub sriov_resource: Option<String>,
}

/// How VMs are attached to a tenant's network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkBinding {
    /// A port of the bridge.
    Bridge,
    /// A virtual function of the uplink.
    Sriov,
    /// A macvtap device; needs KubeVirt's binding plugin of that name.
    Macvtap,
}

impl NetworkBinding {
    /// Returns the name of a tenant's NetworkAttachmentDefinition for this binding.
    #[must_use]
    pub fn definition_name(self, tenant: &str) -> String {
        match self {
            Self::Bridge => format!("tenant-{tenant}"),
            Self::Sriov => format!("tenant-{tenant}-sriov"),
            Self::Macvtap => format!("tenant-{tenant}-mvt"),
        }
    }
}

/// What a tenant's machines may reach on the pod network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicies {
    /// Default InCluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// More NetworkPolicies for its namespace. One that is taken away here goes there too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub custom: Vec<CustomNetworkPolicy>,
}

/// How a tenant's machines are kept apart on the pod network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Only what is in the same namespace, in both directions. Outbound also the cluster's DNS, name servers and the
    /// tenant's own API server, and for CDI's importers sources of images; inbound also CDI and KubeVirt's API.
    #[default]
    InCluster,
    /// Anything inbound; outbound the same namespace, public addresses that are not the infra cluster's own, its DNS, name
    /// servers and the tenant's own API server.
    Egress,
    /// Not at all.
    Off,
}

/// A NetworkPolicy for a tenant's namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CustomNetworkPolicy {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What it says.
    pub spec: NetworkPolicySpec,
}

/// A Secret.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace. Default: the tenant's, `cluster-<id>`. Any other must be listed in InfraConfig's `secretReferences`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Which of its entries. Default `kubeconfig` or `userdata`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

/// What the infra cluster keeps for a tenant.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantClusterStatus {
    /// Generation of the spec that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Its namespace, `cluster-<id>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// VLAN of its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16_777_215))]
    pub vni: Option<u32>,
    /// NetworkAttachmentDefinition that machines use, as namespace/name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_attachment_definition: Option<String>,
    /// Hosts that carry its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<TenantHosts>,
    /// Its machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<TenantMachines>,
    /// Ready, NetworkReady, HostsReady, PoliciesReady, ObjectsReady, MachinesReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Hosts that carry a tenant's network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantHosts {
    /// Hosts that are to carry it.
    pub selected: u32,
    /// Hosts on which it is ready.
    pub ready: u32,
    /// Others, the first sixteen by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub not_ready: Vec<TenantHost>,
}

/// A host on which a tenant's network is not ready.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantHost {
    /// The host.
    pub name: String,
    /// Why not.
    pub message: String,
}

/// How many machines a tenant has.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantMachines {
    /// That its MachineDeployments ask for.
    pub desired: u32,
    /// That there are.
    pub current: u32,
    /// That run.
    pub ready: u32,
}

impl TenantCluster {
    /// The namespace of a tenant, and the name of its network on the hosts: `cluster-<id>`.
    #[must_use]
    pub fn namespace_of(id: &str) -> String {
        format!("cluster-{id}")
    }

    /// Whether MachineDeployments of a namespace may name it.
    #[must_use]
    pub fn takes_machines_of(&self, namespace: &str) -> bool {
        let own = self.metadata.name.as_deref().map(Self::namespace_of);
        own.as_deref() == Some(namespace)
            || self.spec.machine_namespaces.iter().any(|one| one == namespace)
    }

    /// Whether an infra Node with these labels is to carry its network, if it has that network.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}
