//! Desired state of a tenant in the infra cluster: its VLAN or VNI, its objects, the readiness of its network on hosts,
//! and the order of its deletion. The modules have no side effects.
//!
//! ```text
//! InfraNodes, Nodes ──► hosts ──► network ──┐
//! VlanClaims, InfraConfig, foreign NADs ────┴─► claims ──► objects ──► differs ──► apply
//! PrefixClaims, InfraConfig ──► prefixes ──► addresses
//!                                    hosts, claims, objects ──► status
//! Services, TenantClusters ──► load_balancer_service, pool_use, pool_acceptance, exposure ──► objects
//! Services of machines ──► node_ports ──► objects
//! AddressClaims, VirtualMachineInstances ──► lease_index ──► host_leases
//! ```

pub mod additional_networks;
pub mod addresses;
pub mod affected_tenants;
pub mod binding_plugins;
pub mod claim_gc;
pub mod claims;
pub mod cluster;
pub mod comparison;
pub mod deletion;
pub mod exposure;
pub mod fault;
pub mod foreign_ids;
pub mod host_leases;
pub mod hosts;
pub mod infra_addresses;
pub mod kubeconfig;
pub mod kubeconfig_rules;
pub mod kubeconfig_secret;
pub mod lease_index;
pub mod load_balancer_service;
pub mod mtu;
pub mod network;
pub mod network_id;
pub mod network_users;
pub mod node_local_dns;
pub mod node_ports;
pub mod objects;
pub mod pod_mtu;
pub mod policies_ready;
pub mod pool_acceptance;
pub mod pool_precedence;
pub mod pool_use;
pub mod prefixes;
pub mod quarantine;
pub mod shared_segment;
pub mod status;
