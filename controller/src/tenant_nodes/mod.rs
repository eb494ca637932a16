//! Labels, annotations and taints of tenants' Nodes: determines which fields of a host the Nodes of its VMs get, and
//! plans the necessary writes. The modules do no I/O. A tenant controls its API server, so all objects in its cluster
//! are input that may be hostile.
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
