//! What the infra cluster keeps for a tenant: its VLAN or VNI, its objects, how far its network is on the hosts, and in
//! which order all of it goes again. Pure.
//!
//! ```text
//! InfraNodes, Nodes ──► hosts ──► network ──┐
//! VlanClaims, InfraConfig, NADs of others ──┴─► claims ──► objects ──► differs ──► what is applied
//!                                    hosts, claims, objects ──► status
//! ```

pub mod claims;
pub mod cluster;
pub mod concern;
pub mod deletion;
pub mod fault;
pub mod hosts;
pub mod ids;
pub mod imports;
pub mod kubeconfig;
pub mod network;
pub mod objects;
pub mod status;
pub mod sweep;
pub mod wires;
