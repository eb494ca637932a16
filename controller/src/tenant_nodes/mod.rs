//! Labels of tenants' Nodes: which labels of a host its VMs' Nodes carry, and what must be written. The modules have no
//! side effects. A tenant controls its API server, so all its objects are input that may be hostile.
//!
//! ```text
//! InfraConfig ──► keys ──┐
//! infra Nodes ───────────┴─► plan ──► writes, report
//! VirtualMachineInstances ──► machine_index ─┤
//! tenant's Nodes ──► node ──► node_store ──► node_match
//! ```

pub mod keys;
pub mod labels;
pub mod machine_index;
pub mod node;
pub mod node_match;
pub mod node_store;
pub mod plan;
pub mod rbac;
pub mod report;
