//! Evacuation of hosts: decides how each machine leaves a host from which its pod was evicted.
//!
//! `kubectl drain` evicts the launcher pods of a host. For a VM with the eviction strategy `External`, virt-api refuses
//! the eviction and writes the host to `status.evacuationNodeName` of the VirtualMachineInstance; another controller
//! must move the VM. This module decides: a live migration if the VM can be migrated and the engine knows a host,
//! otherwise a replacement. Only evictions count: a cordoned host alone has no effect.

pub mod cancel;
pub mod decide;
pub mod deployment;
pub mod machine;
pub mod migration;
pub mod reason;
pub mod record;
pub mod summary;
pub mod targets;

#[cfg(test)]
mod simulation_tests;
