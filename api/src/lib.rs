//! Berth's Kubernetes objects (API group `berth.dev/v1alpha1`) and the value types they are made of.
//!
//! Text is parsed at the door: inside Berth a CPU list is a [`CpuSet`], a huge page size a
//! [`PageSize`], a VLAN a [`VlanId`]. Strings live only in `FromStr`, `Display` and serde.
//! This crate has no client, no I/O and no clock, so agent, controller and tools can all share it.

mod bits;
mod bytes;
mod cpu_set;
mod crds;
pub mod infra_node;
mod link_name;
mod mac_address;
pub mod names;
mod page_size;
mod pci_address;
mod text;
mod vlan_id;
mod vlan_set;

pub use bytes::{Bytes, ParseBytesError};
pub use cpu_set::{CpuSet, ParseCpuSetError};
pub use crds::{all_crds, crd_yaml};
pub use infra_node::{InfraNode, InfraNodeSpec, InfraNodeStatus};
pub use link_name::{LinkName, ParseLinkNameError};
pub use mac_address::{MacAddress, ParseMacAddressError};
pub use page_size::{PageSize, ParsePageSizeError};
pub use pci_address::{ParsePciAddressError, PciAddress};
pub use vlan_id::{ParseVlanIdError, VlanId};
pub use vlan_set::{ParseVlanSetError, VlanSet};
