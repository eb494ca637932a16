//! Links, drives and accelerators of a host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::unknown_value;
use crate::{Bytes, LinkName, PciAddress, PciId};

/// A physical network link or a bond of such links.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Uplink {
    /// Link name.
    pub name: LinkName,
    /// Physical link or bond.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub kind: UplinkKind,
    /// Hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// IP addresses with prefix length, without link-local addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    /// NUMA zone of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Speed in Mbit/s; absent without carrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Maximum transmission unit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Operational state (RFC 2863).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub state: Option<LinkState>,
    /// Number of the PCI function's IOMMU group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// Bond to which the link belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bond: Option<LinkName>,
    /// Bridge to which the link is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<LinkName>,
    /// True if a default route uses this link (or a link stacked on it).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
    /// Virtual functions, if the link is an SR-IOV physical function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
}

/// Kinds of uplinks.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UplinkKind {
    /// A port of a network card.
    #[default]
    Physical,
    /// Several physical links aggregated by the bonding or the team driver.
    Bond,
}

/// Operational state of a link (RFC 2863 `ifOperStatus`).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The link carries frames.
    Up,
    /// The link does not carry frames.
    Down,
    /// The underlying link is down.
    LowerLayerDown,
    /// The link waits for an external event, such as 802.1X authentication.
    Dormant,
    /// The link is under test.
    Testing,
    /// The hardware is not present.
    NotPresent,
    /// The driver does not report a state.
    Unknown,
}

/// A bridge or VLAN link that Berth did not create.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualLink {
    /// Link name.
    pub name: LinkName,
    /// Bridge or VLAN.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub kind: VirtualLinkKind,
    /// Maximum transmission unit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Operational state.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub state: Option<LinkState>,
    /// Bridge or bond to which the link belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<LinkName>,
    /// Parent link of a VLAN link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<LinkName>,
    /// VLAN id of a VLAN link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// True if a bridge separates VLANs (`vlan_filtering`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_filtering: Option<bool>,
    /// True if a default route uses this link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
}

/// Kinds of reported virtual links.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VirtualLinkKind {
    /// A bridge.
    #[default]
    Bridge,
    /// An 802.1Q VLAN on another link.
    Vlan,
}

/// Virtual functions of an SR-IOV physical function.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sriov {
    /// Maximum number of virtual functions of the device (`sriov_totalvfs`).
    pub total: u32,
    /// Current number of virtual functions (`sriov_numvfs`).
    pub configured: u32,
    /// Number of virtual functions that are bound to a VM driver or whose link was moved into a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use: Option<u32>,
}

/// An SR-IOV physical function.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PhysicalFunction {
    /// PCI function.
    pub pci_address: PciAddress,
    /// PCI vendor and device id (`15b3:101d`).
    pub id: String,
    /// Kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// NUMA zone of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// IOMMU group of the function itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// Maximum number of virtual functions of the device (`sriov_totalvfs`).
    pub total: u32,
    /// Current number of virtual functions (`sriov_numvfs`).
    pub configured: u32,
    /// Number of virtual functions that are bound to a VM driver or whose link was moved into a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use: Option<u32>,
}

/// An NVMe drive.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Nvme {
    /// Block device (`nvme0n1`), or the PCI address of a drive without one.
    pub name: String,
    /// PCI vendor and device id (`144d:a80a`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<PciId>,
    /// Model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// NUMA zone of the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    /// Kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// IOMMU group; devices of one group can only be passed through together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// True if the drive is in use: partitions, mounts, holders (LVM, RAID), swap, signatures, a VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use: Option<bool>,
    /// Users of the drive: partitions, holders, mounts, swap space, signatures or a VM driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
}

/// A graphics or compute accelerator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI function.
    pub pci_address: PciAddress,
    /// PCI vendor and device id (`10de:20b5`).
    pub id: String,
    /// Kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// NUMA zone of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// IOMMU group; devices of one group can only be passed through together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// Virtual functions, if the device supports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
}

/// A path that contains images or volumes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DirectIo {
    /// Path.
    pub path: String,
    /// File system of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    /// Size of the file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// True if files in the path can be opened with O_DIRECT (QEMU's `cache=none`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supported: Option<bool>,
}
