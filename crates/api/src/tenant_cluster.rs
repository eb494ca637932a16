//! TenantCluster: a tenant's cluster and its resources in the infra cluster.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::NetworkPolicySpec;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::TENANT_REQUEST_UID_ANNOTATION;
use crate::{
    AddressPool, Condition, DrainTimeout, Exposure, GrantedPrefix, PodNetwork, ReplaceAfter, VlanId,
};

/// Prefix of the names of NetworkAttachmentDefinitions for the networks of other tenants. Templates must not name these
/// definitions, so the prefix differs from names that users give to definitions of their own.
const ADDITIONAL_DEFINITION_PREFIX: &str = "berth-network-";

/// Desired state of one tenant cluster. The name of the object is the tenant's ID; the tenant's namespace is
/// `cluster-<id>`.
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
    doc = "One tenant cluster. The name of the object is the tenant's ID. The tenant's machines are in namespace cluster-<id>.",
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,53}[a-z0-9])?$')")
        .message("the name must be a DNS label of at most 55 characters: \
                  the namespace is cluster-<name>"),
    printcolumn(
        name = "VLAN",
        type_ = "integer",
        json_path = ".status.vlan",
        description = "VLAN of the tenant's network"
    ),
    printcolumn(
        name = "Machines",
        type_ = "integer",
        json_path = ".status.machines.ready",
        description = "Number of ready machines"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "True if the actual state is the desired state"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the condition Ready"
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
        .message("the host network cannot be changed: delete the tenant and create it again")
)]
pub struct TenantClusterSpec {
    /// Network of the tenant. Without this field, the tenant's machines have only the pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<TenantNetwork>,
    /// Labels of the infra Nodes that carry the tenant's network. Default: all Nodes that have the host network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Network policies of the tenant's machines on the pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policies: Option<NetworkPolicies>,
    /// Exposure of the tenant's services and machines outside the infra cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Secret with a kubeconfig for the tenant's API server. Berth uses it to drain Nodes, to create StorageClasses, to
    /// copy labels of infra Nodes to the tenant's Nodes, and to permit connections to the API server in
    /// NetworkPolicies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<SecretRef>,
    /// True if the kubeconfig may set `insecure-skip-tls-verify`, so that the tenant's API server is not verified.
    /// Default false: such a kubeconfig is refused.
    #[serde(rename = "insecureSkipTLSVerify", skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// Time limit for the drain of a machine's Node in the tenant's cluster, such as `30m`. When it expires, the
    /// machine is deleted although pods remain on the Node. `0` disables the drain. Default 2h. Without
    /// `kubeconfigSecretRef`, machines are deleted without a drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_drain_timeout: Option<DrainTimeout>,
    /// Condition for a machine to count as ready. Default: Node with `kubeconfigSecretRef`, otherwise Instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_readiness: Option<MachineReadiness>,
    /// Project of the tenant, for the label `kubermatic.k8c.io/project-id`.
    #[serde(rename = "projectID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub project_id: Option<String>,
    /// Secret with the user data of machines whose MachineDeployment specifies no user data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_secret_ref: Option<SecretRef>,
    /// Scheduler of the tenant's machines, such as berth-scheduler. Default: the scheduler of their instance type.
    /// Machines with an instance type that specifies another scheduler are rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub scheduler_name: Option<String>,
    /// Other namespaces whose MachineDeployments may refer to this tenant, such as `kube-system`. The tenant's own
    /// namespace, `cluster-<id>`, is always allowed. Machines of the tenant get its network and its user data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub machine_namespaces: Vec<String>,
    /// Instance types that machines of the tenant may have. Machines with other instance types, or without an instance
    /// type, are not created. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    pub allowed_flavors: Option<Vec<String>>,
    /// Time after which a machine of a lost host is replaced by a machine with another name, provided that all its
    /// disks can be created again from their images. A host is lost if its Node is not ready and its agent is
    /// unresponsive. Default 10m; 0 means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_after: Option<ReplaceAfter>,
    /// Address of NodeLocal DNSCache on the tenant's Nodes, such as 169.254.20.10. If it is also the address of
    /// NodeLocal DNSCache in the infra cluster, machines cannot resolve names. A condition reports this.
    #[serde(rename = "nodeLocalDNSAddress", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 39))]
    pub node_local_dns_address: Option<IpAddr>,
}

/// Condition for a machine to count as ready.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineReadiness {
    /// The condition Ready of the machine's Node in the tenant's cluster is `True`. Without `kubeconfigSecretRef`, this
    /// value has the effect of Instance.
    Node,
    /// The condition Ready of the machine's VirtualMachineInstance is `True`.
    Instance,
}

/// Layer 2 network of a tenant.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.vlan) && has(self.vni))")
        .message("vlan and vni are mutually exclusive"),
    validation = Rule::new("!has(oldSelf.vlan) || (has(self.vlan) && self.vlan == oldSelf.vlan)")
        .message("vlan cannot be changed once it is set: delete the tenant and create it again"),
    validation = Rule::new("!has(oldSelf.vni) || (has(self.vni) && self.vni == oldSelf.vni)")
        .message("vni cannot be changed once it is set: delete the tenant and create it again"),
    validation = Rule::new("!has(self.sourceGuard) || !self.sourceGuard || ((has(self.ipv4) || has(self.ipv6)) && (!has(self.dhcp) || self.dhcp))")
        .message("sourceGuard requires ipv4 or ipv6, and not dhcp: false: the hosts compare addresses with those that agents serve"),
    validation = Rule::new("!has(self.sourceGuard) || !self.sourceGuard || !has(self.binding) || self.binding == 'Bridge'")
        .message("sourceGuard requires the binding Bridge: frames of other bindings pass through no bridge of the host"),
    validation = Rule::new("!has(self.sourceGuard) || !self.sourceGuard || !has(self.macSpoofCheck) || self.macSpoofCheck")
        .message("sourceGuard requires macSpoofCheck: otherwise a machine can send from the addresses of another machine")
)]
pub struct TenantNetwork {
    /// Name of the host network that carries the tenant's network, as in HostProfiles.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// VLAN of the network; it need not be in a pool. Default: a VLAN from InfraConfig's `vlanPools` is allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of the network. Default: a number from InfraConfig's `vniRange` is allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<u32>,
    /// IP addresses of the network in CIDR notation, for information only. Machines get addresses from `ipv4` and
    /// `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 43))]
    pub cidr: Option<String>,
    /// IPv4 addresses of the machines. Default: Berth allocates no IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<AddressPool>,
    /// IPv6 addresses of the machines. Default: Berth allocates no IPv6 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<AddressPool>,
    /// True if the agents of the hosts answer DHCPv4, DHCPv6 and router solicitations of the machines. If false,
    /// machines get their addresses only through cloud-init or Ignition. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<bool>,
    /// Additional networks that MachineDeployments of the tenant may attach: NAMESPACE/NAME of a
    /// NetworkAttachmentDefinition, or the name of another TenantCluster, whose `spec.network` is then attached with an
    /// address from its pools. Each network must also be in InfraConfig's `additionalNetworks`, unless it is a
    /// NetworkAttachmentDefinition in the tenant's own namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub additional: Vec<String>,
    /// Method that attaches VMs to the network. Default: Sriov for a host network with scenario SriovVf, else Bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<NetworkBinding>,
    /// True if frames from Ethernet addresses other than the VM's own are dropped. Set it to false for VMs that use
    /// additional Ethernet addresses (keepalived, nested bridges). Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_spoof_check: Option<bool>,
    /// True if the hosts drop ARP, IPv4 and IPv6 from machines whose source address is not an address that Berth
    /// allocated to the machine. Only for machines without further IP addresses (keepalived, MetalLB, pods without
    /// overlay). A family without a pool is not compared. Requires `ipv4` or `ipv6`, `dhcp`, `macSpoofCheck`, and the
    /// binding Bridge; machines of a network with scenario SriovVf are not created with it. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_guard: Option<bool>,
    /// True if machines are placed only on hosts on which the tenant's network is ready. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_hosts_only: Option<bool>,
    /// Pod network of the tenant's cluster, if it uses this network. A condition reports an MTU of pods that is too large
    /// for the machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_network: Option<PodNetwork>,
    /// Resource of the SR-IOV device plugin that allocates virtual functions, such as `openshift.io/tenantvfs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 317))]
    pub sriov_resource: Option<String>,
}

impl TenantNetwork {
    /// Returns the names of the other TenantClusters whose networks machines of the tenant may attach.
    pub fn additional_tenants(&self) -> impl Iterator<Item = &str> {
        self.additional.iter().map(String::as_str).filter(|name| !name.contains('/'))
    }

    /// Returns true if the agents of the hosts answer the DHCP requests of the machines.
    #[must_use]
    pub fn is_served_by_agents(&self) -> bool {
        (self.ipv4.is_some() || self.ipv6.is_some()) && self.dhcp != Some(false)
    }

    /// Returns true if the hosts drop frames of machines from addresses that Berth did not allocate to them.
    #[must_use]
    pub fn has_source_guard(&self) -> bool {
        self.source_guard == Some(true) && self.is_served_by_agents()
    }
}

/// Method that attaches VMs to a tenant's network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkBinding {
    /// A port of the tenant's bridge.
    Bridge,
    /// A virtual function (SR-IOV) of the uplink.
    Sriov,
    /// A macvtap device. KubeVirt's network binding plugin `macvtap` must be installed.
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

    /// Returns the name of the network binding plugin that the binding needs; `None` for bindings that are part of
    /// KubeVirt.
    #[must_use]
    pub const fn plugin(self) -> Option<&'static str> {
        match self {
            Self::Bridge | Self::Sriov => None,
            Self::Macvtap => Some("macvtap"),
        }
    }
}

/// Network policies of a tenant's machines on the pod network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicies {
    /// Isolation of the machines. Default InCluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Additional NetworkPolicies for the tenant's namespace. If an entry is removed from this list, the NetworkPolicy
    /// is deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub custom: Vec<CustomNetworkPolicy>,
}

/// Isolation of a tenant's machines on the pod network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Allow only traffic within the same namespace, in both directions. Also allow outbound traffic to the cluster's
    /// DNS, name servers and the tenant's own API server, and from CDI's importers to sources of images. Also allow
    /// inbound traffic from CDI and KubeVirt's API.
    #[default]
    InCluster,
    /// Allow all inbound traffic. Allow outbound traffic to the same namespace, public addresses outside the infra
    /// cluster, the infra cluster's DNS, name servers and the tenant's own API server.
    Egress,
    /// Allow all traffic: Berth creates no NetworkPolicy for isolation.
    Off,
}

/// A NetworkPolicy for a tenant's namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CustomNetworkPolicy {
    /// Name of the NetworkPolicy.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Spec of the NetworkPolicy.
    pub spec: NetworkPolicySpec,
}

/// Reference to an entry of a Secret.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Secret. Default: the tenant's namespace, `cluster-<id>`. Any other namespace must be listed in
    /// InfraConfig's `secretReferences`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// Key of the entry. Default: `kubeconfig` in `kubeconfigSecretRef`, and `userdata` in `userDataSecretRef`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

/// Observed state of a tenant cluster in the infra cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantClusterStatus {
    /// Generation of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Namespace of the tenant, `cluster-<id>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// VLAN of the tenant's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of the tenant's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16_777_215))]
    pub vni: Option<u32>,
    /// MTU of the tenant's network in bytes: the smallest MTU of the hosts that carry the network. It is the MTU of
    /// machines whose address pools specify none. If the MTU becomes unknown, this field retains the last known MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// NetworkAttachmentDefinition of the tenant's machines, as namespace/name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_attachment_definition: Option<String>,
    /// TenantClusters in `spec.network.additional` whose networks can be attached to the tenant's machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub additional_networks: Vec<String>,
    /// Prefixes that are allocated to the network from pools of InfraConfig (`fromPool`), at most one of each family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub prefixes: Vec<GrantedPrefix>,
    /// Numbers of allocated, quarantined and free addresses, by network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub addresses: Vec<AddressCount>,
    /// Hosts that carry the tenant's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<TenantHosts>,
    /// Numbers of desired, current and ready machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<TenantMachines>,
    /// Conditions of the tenant cluster: Ready, NetworkReady, AddressesReady, HostsReady, PoliciesReady, ObjectsReady, ExposureReady, MachinesReady,
    /// TenantAccessReady, NodeLabelsReady, NodeLocalDNSDistinct, PodMTUFits, HostLost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Numbers of allocated, quarantined and free addresses of one family.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressCount {
    /// Network in CIDR notation.
    #[schemars(length(max = 43))]
    pub cidr: String,
    /// Number of addresses that are allocated to machines.
    pub allocated: u32,
    /// Number of addresses in quarantine.
    pub quarantined: u32,
    /// Number of free addresses, but at most 2^31-1.
    pub free: u32,
}

/// Hosts that carry a tenant's network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantHosts {
    /// Number of hosts that should carry the network, according to `spec.nodeSelector`.
    pub selected: u32,
    /// Number of hosts on which the network is ready.
    pub ready: u32,
    /// Hosts on which the network is not ready: the first 16 in the order of names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub not_ready: Vec<TenantHost>,
}

/// A host on which a tenant's network is not ready.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantHost {
    /// Name of the host.
    pub name: String,
    /// Reason why the network is not ready.
    pub message: String,
}

/// Numbers of desired, current and ready machines.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantMachines {
    /// Sum of the replicas of the tenant's MachineDeployments.
    pub desired: u32,
    /// Current number of machines.
    pub current: u32,
    /// Number of machines that are ready, see `spec.machineReadiness`.
    pub ready: u32,
}

impl TenantClusterSpec {
    /// Returns true if a machine counts as ready when its Node in the tenant's cluster is ready.
    #[must_use]
    pub fn uses_node_readiness(&self) -> bool {
        self.kubeconfig_secret_ref.is_some()
            && self.machine_readiness != Some(MachineReadiness::Instance)
    }
}

impl TenantCluster {
    /// Returns the namespace of a tenant, which is also the name of its network on the hosts: `cluster-<id>`.
    #[must_use]
    pub fn namespace_of(id: &str) -> String {
        format!("cluster-{id}")
    }

    /// Returns the name of the NetworkAttachmentDefinition with which machines of other tenants are attached to the
    /// network of the tenant `id`. It is in the namespace of the machines, because Multus refuses definitions of other
    /// namespaces with `namespaceIsolation`.
    #[must_use]
    pub fn additional_definition_name(id: &str) -> String {
        format!("{ADDITIONAL_DEFINITION_PREFIX}{id}")
    }

    /// Returns the tenant to whose network a NetworkAttachmentDefinition of this name attaches machines of other
    /// tenants; `None` for the name of a tenant's own definition.
    #[must_use]
    pub fn tenant_of_additional_definition(name: &str) -> Option<&str> {
        name.strip_prefix(ADDITIONAL_DEFINITION_PREFIX)
    }

    /// Returns true if a user requested the tenant with a TenantRequest. Lists of the InfraConfig that apply to all tenants are
    /// for tenants of administrators.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(TENANT_REQUEST_UID_ANNOTATION))
    }

    /// Returns the names of the other TenantClusters whose networks machines of the tenant may attach.
    pub fn additional_tenants(&self) -> impl Iterator<Item = &str> {
        self.spec.network.iter().flat_map(TenantNetwork::additional_tenants)
    }

    /// Returns true if MachineDeployments of a namespace may refer to the tenant.
    #[must_use]
    pub fn accepts_namespace(&self, namespace: &str) -> bool {
        let own = self.metadata.name.as_deref().map(Self::namespace_of);
        own.as_deref() == Some(namespace)
            || self.spec.machine_namespaces.iter().any(|one| one == namespace)
    }

    /// Returns true if the node selector of the tenant matches these labels of an infra Node. The Node carries the
    /// tenant's network only if it also has the host network.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_networks_name_tenants_or_definitions() {
        let additional = ["storage/ceph", "abc-storage"].map(str::to_owned).to_vec();
        let network = TenantNetwork { additional, ..TenantNetwork::default() };
        let spec = TenantClusterSpec { network: Some(network), ..TenantClusterSpec::default() };
        let tenant = TenantCluster::new("abc", spec);
        assert_eq!(tenant.additional_tenants().collect::<Vec<_>>(), ["abc-storage"]);
        let name = TenantCluster::additional_definition_name("abc-storage");
        assert_eq!(TenantCluster::tenant_of_additional_definition(&name), Some("abc-storage"));
        let own = NetworkBinding::Bridge.definition_name("abc");
        assert_eq!(TenantCluster::tenant_of_additional_definition(&own), None);
    }
}
