//! Links, drives and accelerators of a host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, LinkName, PciAddress};

/// A physical network link or a bond of them.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Uplink {
    /// Link name.
    pub name: LinkName,
    /// Physical link or bond.
    pub kind: UplinkKind,
    /// Hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Addresses with prefix length, link-local ones left out.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LinkState>,
    /// IOMMU group of the PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// The bond it is a port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bond: Option<LinkName>,
    /// The bridge it is a port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<LinkName>,
    /// Whether a default route leaves through this link (or through one stacked on it).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
    /// Virtual functions, if it is an SR-IOV physical function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
}

/// Kinds of uplinks.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum UplinkKind {
    /// A port of a network card.
    Physical,
    /// Several physical links as one, by the bonding or the team driver.
    Bond,
}

/// Operational state of a link (RFC 2863 `ifOperStatus`).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Carries frames.
    Up,
    /// Does not.
    Down,
    /// The link below is down.
    LowerLayerDown,
    /// Waits for something, such as 802.1X.
    Dormant,
    /// Under test.
    Testing,
    /// The hardware is gone.
    NotPresent,
    /// The driver does not say.
    Unknown,
}

/// A bridge or VLAN link that Berth did not make.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualLink {
    /// Link name.
    pub name: LinkName,
    /// Bridge or VLAN.
    pub kind: VirtualLinkKind,
    /// Maximum transmission unit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Operational state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LinkState>,
    /// The bridge or bond it is a port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<LinkName>,
    /// The link a VLAN is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<LinkName>,
    /// The VLAN's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Whether a bridge keeps VLANs apart (`vlan_filtering`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_filtering: Option<bool>,
    /// Whether a default route leaves through this link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
}

/// Kinds of virtual links that are reported.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualLinkKind {
    /// A bridge.
    Bridge,
    /// An 802.1Q VLAN on another link.
    Vlan,
}

/// Virtual functions of an SR-IOV physical function.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sriov {
    /// Most virtual functions the device can have (`sriov_totalvfs`).
    pub total: u32,
    /// Virtual functions there are now (`sriov_numvfs`).
    pub configured: u32,
    /// Virtual functions that are with a VM driver, or whose link was moved into a pod.
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
    /// Most virtual functions it can have (`sriov_totalvfs`).
    pub total: u32,
    /// Virtual functions there are now (`sriov_numvfs`).
    pub configured: u32,
    /// Virtual functions that are with a VM driver, or whose link was moved into a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use: Option<u32>,
}

/// An NVMe drive.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Nvme {
    /// Block device (`nvme0n1`), or the PCI address of a drive without one.
    pub name: String,
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
    /// Whether anything uses it: partitions, mounts, holders (LVM, RAID), swap, signatures, a VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use: Option<bool>,
    /// What uses it.
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
    /// Virtual functions, if it has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
}

/// A path that holds images or volumes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DirectIo {
    /// The path.
    pub path: String,
    /// Its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    /// Size of that file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Whether files there can be opened with O_DIRECT (QEMU's `cache=none`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supported: Option<bool>,
}
