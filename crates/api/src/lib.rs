//! Berth's Kubernetes objects (API group `berth.dev/v1alpha1`) and the value types they are made of.
//!
//! Text is parsed at the door: inside Berth a CPU list is a [`CpuSet`], a huge page size a
//! [`PageSize`], a VLAN a [`VlanId`]. Strings live only in `FromStr`, `Display` and serde.
//! This crate has no client, no I/O and no clock, so agent, controller and tools can all share it.

mod bits;
mod bytes;
mod cpu_set;
mod crds;
mod host_profile;
mod infra_config;
pub mod infra_node;
mod link_name;
mod mac_address;
pub mod names;
mod node_labels;
mod page_size;
mod pci_address;
mod problem;
mod quantity;
mod ranges;
mod reason;
mod tenant_cluster;
mod text;
mod vlan_claim;
mod vlan_id;
mod vlan_set;

pub use bytes::{Bytes, ParseBytesError};
pub use cpu_set::{CpuSet, ParseCpuSetError};
pub use crds::{all_crds, crd_yaml};
pub use host_profile::{Class, HostProfile, HostProfileSpec, HostProfileStatus};
pub use infra_config::*;
pub use infra_node::{InfraNode, InfraNodeSpec, InfraNodeStatus};
pub use link_name::{LinkName, ParseLinkNameError};
pub use mac_address::{MacAddress, ParseMacAddressError};
pub use node_labels::feature_labels;
pub use page_size::{PageSize, ParsePageSizeError};
pub use pci_address::{ParsePciAddressError, PciAddress};
pub use problem::Problem;
pub use quantity::{ParseQuantityError, Quantity};
pub use ranges::{ParseVniRangeError, VNI_MAX, VlanRanges, VniRange};
pub use reason::{ConditionReason, EventReason};
pub use tenant_cluster::*;
pub use vlan_claim::{VlanClaim, VlanClaimSpec, VlanClaimStatus};
pub use vlan_id::{ParseVlanIdError, VlanId};
pub use vlan_set::{ParseVlanSetError, VlanSet};
