//! Kubernetes objects of Berth (API group `berth.dev/v1alpha1`) and their value types.
//!
//! Text is parsed when it is read: all code uses [`CpuSet`] for a CPU list, [`PageSize`] for a huge page size and
//! [`VlanId`] for a VLAN. Only `FromStr`, `Display` and serde convert between these types and text. This crate has no
//! client, no I/O and no clock, so agent, controller and tools can all share it.

#![warn(missing_docs)]

#[cfg(feature = "kube")]
mod address_claim;
mod address_pool;
mod address_range;
mod bit_set;
mod bytes;
mod condition;
mod cpu_set;
#[cfg(feature = "kube")]
mod crds;
mod domain_name;
mod drain_timeout;
mod excerpt;
mod exposure;
#[cfg(feature = "kube")]
mod host_devices;
mod host_leases;
#[cfg(feature = "kube")]
mod host_profile;
#[cfg(feature = "kube")]
mod images;
#[cfg(feature = "kube")]
mod infra_config;
pub mod infra_node;
mod link_name;
mod mac_address;
pub mod mtu;
pub mod names;
mod node_labels;
mod node_port_range;
mod page_size;
mod pci_address;
mod pci_id;
mod placement_config;
mod pod_network;
#[cfg(feature = "kube")]
mod prefix_claim;
mod problem;
mod quantity;
mod quota_amounts;
mod ranges;
mod reason;
mod replace_after;
#[cfg(feature = "kube")]
mod tenant_cluster;
#[cfg(feature = "kube")]
mod tenant_quota;
#[cfg(feature = "kube")]
mod tenant_request;
mod tenant_resources;
mod text;
#[cfg(feature = "kube")]
mod vlan_claim;
mod vlan_id;
mod vlan_set;

#[cfg(feature = "kube")]
pub use address_claim::*;
pub use address_pool::{AddressPool, GrantedPrefix, NetworkRoute, PrefixGateway, PrefixPool};
pub use address_range::{AddressRange, ParseAddressRangeError};
pub use bytes::{Bytes, ParseBytesError};
pub use condition::{Condition, Time};
pub use cpu_set::{CpuSet, ParseCpuSetError};
#[cfg(feature = "kube")]
pub use crds::{all_crds, crd_yaml};
pub use domain_name::is_domain_name;
pub use drain_timeout::{DrainTimeout, ParseDrainTimeoutError};
pub use excerpt::excerpt;
pub use exposure::{
    AccessType, Advertisement, CloudControllerManager, Exposure, LoadBalancers, MachineAccess,
};
#[cfg(feature = "kube")]
pub use host_devices::{AllowedDevice, HostDevices};
#[cfg(feature = "kube")]
pub use host_leases::HostLeases;
pub use host_leases::{HostLeasesSpec, Lease, LeaseNetwork, LeaseOptions};
#[cfg(feature = "kube")]
pub use host_profile::{Class, HostProfile, HostProfileSpec, HostProfileStatus};
#[cfg(feature = "kube")]
pub use images::{
    CatalogImage, CloneStrategy, GarbageCollect, GoldenImagePhase, GoldenImageStatus, HttpImages,
    Images, Preallocation,
};
#[cfg(feature = "kube")]
pub use infra_config::*;
#[cfg(feature = "kube")]
pub use infra_node::InfraNode;
pub use infra_node::{InfraNodeSpec, InfraNodeStatus};
pub use link_name::{LinkName, ParseLinkNameError};
pub use mac_address::{MacAddress, ParseMacAddressError};
pub use node_labels::feature_labels;
pub use node_port_range::{NodePortRange, ParseNodePortRangeError};
pub use page_size::{PageSize, ParsePageSizeError};
pub use pci_address::{ParsePciAddressError, PciAddress};
pub use pci_id::{ParsePciIdError, PciId};
pub use placement_config::{ControlPlaneSpread, PlacementConfig};
pub use pod_network::{PodEncapsulation, PodNetwork};
#[cfg(feature = "kube")]
pub use prefix_claim::{PrefixClaim, PrefixClaimSpec, PrefixClaimStatus};
pub use problem::Problem;
pub use quantity::{ParseQuantityError, Quantity};
pub use quota_amounts::QuotaAmounts;
pub use ranges::{MAX_VNI, ParseVniRangeError, VlanRanges, VniRange};
pub use reason::{ConditionReason, EventReason};
pub use replace_after::{ParseReplaceAfterError, ReplaceAfter};
#[cfg(feature = "kube")]
pub use tenant_cluster::*;
#[cfg(feature = "kube")]
pub use tenant_quota::*;
#[cfg(feature = "kube")]
pub use tenant_request::*;
pub use tenant_resources::*;
#[cfg(feature = "kube")]
pub use vlan_claim::{VlanClaim, VlanClaimSpec, VlanClaimStatus};
pub use vlan_id::{ParseVlanIdError, VlanId};
pub use vlan_set::{ParseVlanSetError, VlanSet};
