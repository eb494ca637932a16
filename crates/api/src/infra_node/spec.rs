//! Desired state of a host. Users or the controller write it, and the agent applies it.
//!
//! Berth does not change the settings of absent fields. If a field is removed, Berth restores the setting's original
//! value.

#![cfg_attr(
    feature = "kube",
    expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")
)]
#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "KubeSchema copies each type into a function to build its rules"
    )
)]

use std::net::IpAddr;

#[cfg(feature = "kube")]
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CpuSet, LinkName, MacAddress, PageSize, PciAddress, PciId, VlanId};

/// Desired state of this host. Berth does not change the settings of absent fields.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(CustomResource, KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "berth.dev",
        version = "v1alpha1",
        kind = "InfraNode",
        plural = "infranodes",
        shortname = "inode",
        category = "berth",
        status = "crate::InfraNodeStatus",
        derive = "PartialEq",
        doc = "Desired state and observed state of one host of the infra cluster. The InfraNode has the name of the host's Node, and is owned by the Node.",
        printcolumn(
            name = "Profile",
            type_ = "string",
            json_path = ".spec.profile",
            description = "HostProfile from which the spec was resolved"
        ),
        printcolumn(
            name = "KVM",
            type_ = "string",
            json_path = ".status.capabilities.kvm.state",
            description = "Ready, or the reason why VMs cannot run"
        ),
        printcolumn(
            name = "Cores",
            type_ = "integer",
            json_path = ".status.capabilities.cpu.cores",
            description = "Number of online physical cores"
        ),
        printcolumn(
            name = "Memory",
            type_ = "string",
            json_path = ".status.capabilities.memory.total",
            description = "Memory that the kernel manages"
        ),
        printcolumn(
            name = "Ready",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
            description = "True if the host is in the state that spec describes"
        ),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
        printcolumn(
            name = "CPU",
            type_ = "string",
            json_path = ".status.capabilities.cpu.model",
            priority = 1
        )
    )
)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new(
        "!has(self.tenantNetworks) || self.tenantNetworks.size() == 0 || (has(self.networks) && self.tenantNetworks.all(t, self.networks.exists(n, n.name == t.network)))"
    ).message("every tenantNetworks[].network must be the name of an entry of spec.networks")
))]
pub struct InfraNodeSpec {
    /// HostProfile from which this spec was resolved, for information only. The agent does not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub profile: Option<String>,
    /// True if Berth corrects drift. If false, Berth only reports drift of settings that it has applied, but still
    /// applies changes of this spec. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<bool>,
    /// CPUs that are reserved for the host itself, and whether Berth confines the host's processes to these CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSpec>,
    /// Huge pages to allocate at runtime. Berth does not change the number of pages of sizes and zones that are not
    /// listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub hugepages: Vec<HugepagesSpec>,
    /// Configuration of kernel samepage merging (KSM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<KsmSpec>,
    /// Transparent huge page mode of the kernel (`/sys/kernel/mm/transparent_hugepage/enabled`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent_hugepages: Option<TransparentHugepages>,
    /// Devices of the host that VMs can use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<DevicesSpec>,
    /// Host networks, which carry tenants' networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[cfg_attr(feature = "kube", x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()])))]
    pub networks: Vec<NetworkSpec>,
    /// Networks of tenant clusters on this host. Each is a separate layer 2 network on one of `networks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4094))]
    #[cfg_attr(feature = "kube", x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()])))]
    pub tenant_networks: Vec<TenantNetworkSpec>,
}

/// CPUs reserved for the host itself.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CpuSpec {
    /// Cores that are reserved for the host. Only whole physical cores, with all their SMT siblings, can be reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<ReservedCpus>,
    /// True if Berth confines system slices, movable interrupts and unbound workqueues to the reserved CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub housekeeping: Option<bool>,
    /// Handling of a kubelet whose configuration does not match the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletMode>,
}

/// Cores that are reserved for the host: a number of cores per NUMA zone, or a list of CPUs. Exactly one field must be
/// set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("has(self.coresPerZone) != has(self.cpus)")
        .message("exactly one of coresPerZone and cpus must be set")
))]
pub struct ReservedCpus {
    /// Number of physical cores to reserve in every zone that has CPUs. In the zone of CPU 0, the core of CPU 0 is one
    /// of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub cores_per_zone: Option<u32>,
    /// Logical CPUs to reserve. They must form whole physical cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
}

/// Handling of the kubelet's configuration by the agent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletMode {
    /// Report the configuration that the kubelet should have.
    Advise,
    /// Write a configuration drop-in, which the kubelet uses after the node was drained and the kubelet was restarted.
    Stage,
    /// Neither report nor write a configuration.
    Ignore,
}

/// Huge pages of one size, in one zone or distributed over all zones that have CPUs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HugepagesSpec {
    /// Page size.
    pub size: PageSize,
    /// NUMA zone by the kernel's number. Default: the pages are spread evenly over the zones that have CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of pages.
    #[schemars(range(max = 67_108_864))]
    pub count: u64,
}

/// Configuration of kernel samepage merging (KSM).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KsmSpec {
    /// Mode of KSM.
    pub mode: KsmMode,
    /// Number of pages that ksmd scans before it sleeps. Not writable while a kernel advisor is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub pages_to_scan: Option<u32>,
    /// Milliseconds that ksmd sleeps between scans.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub sleep_millis: Option<u32>,
    /// True if identical pages in different NUMA zones are merged. To change this setting, the agent first unmerges all
    /// pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_across_nodes: Option<bool>,
}

/// Mode of KSM.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KsmMode {
    /// Report the state of KSM and never change it.
    Observe,
    /// Stop KSM.
    Off,
    /// Run KSM.
    On,
    /// Run KSM with the kernel's advisor if the kernel has one (6.8 and later), otherwise only when memory is short.
    Auto,
}

/// Transparent huge page mode of the kernel.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentHugepages {
    /// `always`
    Always,
    /// `madvise`: only for memory for which a program requests huge pages with `madvise(2)`
    Madvise,
    /// `never`
    Never,
}

impl TransparentHugepages {
    /// All modes of the kernel.
    pub const ALL: [Self; 3] = [Self::Always, Self::Madvise, Self::Never];

    /// Returns the kernel's name of the mode, as in `/sys/kernel/mm/transparent_hugepage/enabled`.
    #[must_use]
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }
}

/// Devices of the host that VMs can use.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DevicesSpec {
    /// PCI functions, such as NVMe drives, that Berth binds to the driver `vfio-pci`. A function that is in use is not
    /// bound: a drive with a partition, a file system or another signature, a mount, swap space, a holder (LVM, RAID) or
    /// a process that has it open, a link that is up, and a function in an IOMMU group with a device of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub vfio: Vec<VfioSpec>,
}

/// PCI functions to bind to the driver `vfio-pci`: the function with an address, or functions with an id. Exactly one of
/// `pciAddress` and `id` must be set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("has(self.pciAddress) != has(self.id)")
        .message("exactly one of pciAddress and id must be set"),
    validation = Rule::new("!has(self.count) || has(self.id)")
        .message("count requires id")
))]
pub struct VfioSpec {
    /// Address of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    /// Vendor and device id of the functions, as in KubeVirt's `pciVendorSelector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<PciId>,
    /// Number of functions with this id. Functions that are bound already are preferred, then unused functions, then
    /// those with the lowest addresses. Default: all functions with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub count: Option<u32>,
}

/// A host network, which carries tenants' networks.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("self.scenario != 'Vxlan' || has(self.vxlan)")
        .message("scenario Vxlan requires the field vxlan"),
    validation = Rule::new("self.scenario == 'Vxlan' || has(self.uplink)")
        .message("scenarios other than Vxlan require an uplink")
))]
pub struct NetworkSpec {
    /// Name of the host network, to which VLAN pools and tenants refer.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Method that isolates tenants from each other on this network.
    pub scenario: NetworkScenario,
    /// Link that connects the host to this network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkSelector>,
    /// Name of the bridge (VlanAwareBridge; default `br-` and the network's name), or prefix of the names of tenants'
    /// bridges, before the VLAN id or VNI (BridgePerTenant, Vxlan; default `tn`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<LinkName>,
    /// Maximum transmission unit of the links that Berth creates, in bytes. Default: the uplink's MTU; for Vxlan the
    /// underlay's MTU minus the overhead of the tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65535))]
    pub mtu: Option<u32>,
    /// True if the bridges use the spanning tree protocol. Default false: a port then carries frames immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stp: Option<bool>,
    /// True if a change of `uplink`, `vxlan.port` or `vxlan.localAddress` is applied while VMs are attached. The VMs
    /// lose the network while their links are removed and created again. Default false: the change is blocked until the
    /// last VM has left this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_disruption: Option<bool>,
    /// Tunnel settings for scenario Vxlan; ignored with other scenarios.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<VxlanSpec>,
}

/// Method that isolates tenants from each other on a host network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkScenario {
    /// All tenants share one VLAN-filtering bridge. The uplink, which must be dedicated to Berth, is a port of the
    /// bridge.
    VlanAwareBridge,
    /// A VLAN link on the uplink and a bridge for each tenant. The uplink itself does not become a bridge port.
    BridgePerTenant,
    /// A VXLAN tunnel and a bridge for each tenant. The switches need no VLANs.
    Vxlan,
    /// A virtual function of the uplink for each VM.
    SriovVf,
}

/// Selects an uplink. Exactly one of `name`, `mac` and `pciAddress` must be set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("[has(self.name), has(self.mac), has(self.pciAddress)].filter(x, x).size() == 1")
        .message("exactly one of name, mac and pciAddress must be set")
))]
pub struct UplinkSelector {
    /// True if the uplink may become a bridge port although the host uses it for its own traffic (default route,
    /// addresses). The change is then a trial: Berth reverts it if the host loses connectivity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_management: Option<bool>,
    /// Name of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<LinkName>,
    /// Permanent Ethernet address of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// PCI address of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
}

/// VXLAN tunnel settings (RFC 7348).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VxlanSpec {
    /// UDP port of the tunnels. Do not use 8472, which belongs to flannel and Cilium. Default 4790.
    #[serde(default = "default_vxlan_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// IP address of this host's tunnel endpoint.
    #[schemars(with = "String", length(max = 45))]
    pub local_address: IpAddr,
    /// IP addresses of the other hosts' tunnel endpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 5000))]
    pub peers: Vec<IpAddr>,
}

const fn default_vxlan_port() -> u16 {
    4790
}

/// Layer 2 network of one tenant cluster, on a host network.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("has(self.vlan) != has(self.vni)")
        .message("exactly one of vlan and vni must be set")
))]
pub struct TenantNetworkSpec {
    /// Name of the tenant network, `cluster-<id>`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Name of the entry of `networks` that carries the tenant network.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// VLAN of the tenant network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of the tenant network, 24 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<u32>,
    /// True if the hosts drop DHCP server messages and IPv6 router advertisements from VMs. To be set if the agents
    /// answer the VMs' requests instead. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp_guard: Option<bool>,
    /// True if the hosts drop ARP, IPv4 and IPv6 from VMs whose source address is not an address of the VM in the
    /// HostLeases. VMs without a lease are not restricted. Has no effect on networks with scenario SriovVf. Default
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_guard: Option<bool>,
    /// True if VMs of the tenant are placed only on hosts on which the tenant network is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_hosts_only: Option<bool>,
}
