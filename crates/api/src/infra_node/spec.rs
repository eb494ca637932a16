//! What a host is asked to be. People or the controller write it; the agent carries it out.
//!
//! A field that is absent is unmanaged; a field that is taken away again restores the value found.

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

use crate::{CpuSet, LinkName, MacAddress, PageSize, PciAddress, VlanId};

/// What this host is asked to be. Absent fields are unmanaged: Berth neither reads intent into them
/// nor changes them.
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
        doc = "One host of the infra cluster: what it is asked to be, and what it is. Named and owned as its Node.",
        printcolumn(
            name = "Profile",
            type_ = "string",
            json_path = ".spec.profile",
            description = "HostProfile the spec was resolved from"
        ),
        printcolumn(
            name = "KVM",
            type_ = "string",
            json_path = ".status.capabilities.kvm.state",
            description = "Whether virtual machines can run, or why not"
        ),
        printcolumn(
            name = "Cores",
            type_ = "integer",
            json_path = ".status.capabilities.cpu.cores",
            description = "Physical cores online"
        ),
        printcolumn(
            name = "Memory",
            type_ = "string",
            json_path = ".status.capabilities.memory.total",
            description = "Memory the kernel manages"
        ),
        printcolumn(
            name = "Ready",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
            description = "True if the host matches its spec"
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
    ).message("every tenantNetworks[].network must name one of spec.networks")
))]
pub struct InfraNodeSpec {
    /// The HostProfile this spec was resolved from, for people to see. The agent does not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub profile: Option<String>,
    /// Whether drift is repaired. `false`: what another program changes after Berth had set it is reported
    /// and left; a change of this spec is still carried out. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<bool>,
    /// CPUs kept for the host itself, and how strictly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSpec>,
    /// Huge pages to reserve at runtime. Pools that are not named are unmanaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub hugepages: Vec<HugepagesSpec>,
    /// Kernel samepage merging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<KsmSpec>,
    /// The kernel's transparent huge page mode (`/sys/kernel/mm/transparent_hugepage/enabled`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent_hugepages: Option<TransparentHugepages>,
    /// Host networks that can carry tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[cfg_attr(feature = "kube", x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()])))]
    pub networks: Vec<NetworkSpec>,
    /// Tenant clusters this host carries, each with its own layer 2 on one of `networks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4094))]
    #[cfg_attr(feature = "kube", x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()])))]
    pub tenant_networks: Vec<TenantNetworkSpec>,
}

/// CPUs kept for the host itself.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CpuSpec {
    /// Which cores are kept for the host; always whole physical cores with all their SMT siblings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<ReservedCpus>,
    /// Keep system slices, movable interrupts and unbound workqueues on the reserved CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub housekeeping: Option<bool>,
    /// What to do about a kubelet whose configuration does not match the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletMode>,
}

/// Which cores are kept for the host: by number per NUMA zone, or by name. Exactly one is set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("has(self.coresPerZone) != has(self.cpus)")
        .message("exactly one of coresPerZone and cpus must be set")
))]
pub struct ReservedCpus {
    /// Physical cores to keep in every zone that has CPUs. The core of CPU 0 is among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub cores_per_zone: Option<u32>,
    /// Logical CPUs to keep; must be whole physical cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
}

/// What the agent does about the kubelet's own reservation.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletMode {
    /// Say what the kubelet's configuration should be.
    Advise,
    /// Write a configuration drop-in that takes effect on a drained node.
    Stage,
    /// Neither.
    Ignore,
}

/// Huge pages of one size, in one zone or spread over all zones that have CPUs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HugepagesSpec {
    /// Page size.
    pub size: PageSize,
    /// NUMA zone by the kernel's number. Absent: spread evenly over zones that have CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of pages.
    #[schemars(range(max = 67_108_864))]
    pub count: u64,
}

/// How kernel samepage merging is run.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KsmSpec {
    /// Who decides whether it runs.
    pub mode: KsmMode,
    /// Pages to scan before ksmd sleeps. Unwritable while a kernel advisor is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub pages_to_scan: Option<u32>,
    /// Milliseconds ksmd sleeps between scans.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub sleep_millis: Option<u32>,
    /// Whether pages of different NUMA zones are merged. Changing it unmerges everything first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_across_nodes: Option<bool>,
}

/// Who decides whether KSM runs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KsmMode {
    /// Look, never touch.
    Observe,
    /// Stopped.
    Off,
    /// Running.
    On,
    /// Running by the kernel's advisor where it has one (6.8 and later), else when memory is short.
    Auto,
}

/// The kernel's transparent huge page mode.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentHugepages {
    /// `always`
    Always,
    /// `madvise`: only where a program asks
    Madvise,
    /// `never`
    Never,
}

/// A host network that can carry tenants.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("self.scenario != 'Vxlan' || has(self.vxlan)")
        .message("scenario Vxlan needs vxlan"),
    validation = Rule::new("self.scenario == 'Vxlan' || has(self.uplink)")
        .message("every scenario but Vxlan needs an uplink")
))]
pub struct NetworkSpec {
    /// What VLAN pools and tenants refer to.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How tenants are kept apart on this network.
    pub scenario: NetworkScenario,
    /// The link that leaves the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<UplinkSelector>,
    /// Name of the bridge (VlanAwareBridge; default `br-` and the network's name), or what tenants' bridges begin
    /// with, before the VLAN id or VNI (BridgePerTenant, Vxlan; default `tn`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<LinkName>,
    /// Maximum transmission unit of the links made, in bytes. Absent: the uplink's; for Vxlan what the tunnel
    /// leaves of the underlay's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65535))]
    pub mtu: Option<u32>,
    /// Whether the bridges speak the spanning tree protocol. Default false: a port then carries frames at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stp: Option<bool>,
    /// Whether a change of `uplink`, `vxlan.port` or `vxlan.localAddress` is made while VMs are attached, which lose the
    /// network while their links are removed and made again. Default false: the change is blocked until the last VM
    /// has left this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_disruption: Option<bool>,
    /// Tunnel settings, for scenario Vxlan; ignored with another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<VxlanSpec>,
}

/// How tenants are kept apart on a host network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkScenario {
    /// A dedicated uplink as port of one VLAN-filtering bridge.
    VlanAwareBridge,
    /// A VLAN link and a bridge for each tenant; the uplink itself is never enslaved.
    BridgePerTenant,
    /// A VXLAN tunnel for each tenant; needs no trunk.
    Vxlan,
    /// A virtual function of the uplink for each VM.
    SriovVf,
}

/// The link that leaves the host, by exactly one of its names.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("[has(self.name), has(self.mac), has(self.pciAddress)].filter(x, x).size() == 1")
        .message("exactly one of name, mac and pciAddress must be set")
))]
pub struct UplinkSelector {
    /// The uplink may become a bridge's port although the host's own traffic (its default route, addresses)
    /// runs over it. It is then done on trial: what the host cannot reach afterwards brings it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_management: Option<bool>,
    /// By link name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<LinkName>,
    /// By permanent Ethernet address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// By PCI address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
}

/// VXLAN tunnel settings (RFC 7348).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VxlanSpec {
    /// UDP port. Not 8472, which belongs to flannel and Cilium. Default 4790.
    #[serde(default = "default_vxlan_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// This host's end of the tunnels.
    #[schemars(with = "String", length(max = 45))]
    pub local_address: IpAddr,
    /// The other hosts' ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 5000))]
    pub peers: Vec<IpAddr>,
}

const fn default_vxlan_port() -> u16 {
    4790
}

/// One tenant cluster's layer 2 on a host network.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "kube", x_kube(
    validation = Rule::new("has(self.vlan) != has(self.vni)")
        .message("exactly one of vlan and vni must be set")
))]
pub struct TenantNetworkSpec {
    /// The tenant network's name, `cluster-<id>`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Which of `networks` carries it.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// Its VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// Its VXLAN network identifier, 24 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<u32>,
}
