//! Labels, annotations and taints of tenants' Nodes: which ones the Nodes of VMs get from the host, and which must be
//! written. The modules have no side effects. A tenant controls its API server, so all its objects are input that may
//! be hostile.
//!
//! ```text
//! InfraConfig ──► keys ──► host_fields ─┐
//! infra Nodes ──────────────────────────┴─► plan (fields, taint_changes) ──► writes, report
//! VirtualMachineInstances ──► machine_index ─┤
//! tenant's Nodes ──► node ──► node_store ──► node_match
//! ```

pub mod fields;
pub mod host_fields;
pub mod keys;
pub mod machine_index;
pub mod node;
pub mod node_budget;
pub mod node_match;
pub mod node_store;
pub mod plan;
pub mod rbac;
pub mod replicated_taint;
pub mod report;
pub mod taint_changes;
