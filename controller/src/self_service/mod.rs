//! Tenants that users request: decides which TenantRequests a TenantQuota permits, and computes the objects of granted
//! requests.
//!
//! ```text
//! TenantRequests, TenantQuota ──► assignment ──► plan (demand, limits) ──► grants in the status of the TenantQuota
//!                                                                               │
//!                     TenantCluster, ServiceAccount, RoleBinding, ResourceQuota ◄──┘
//! ```
//!
//! The modules have no side effects.

pub mod assignment;
pub mod data;
pub mod deletion;
pub mod demand;
pub mod flavor;
pub mod kubeconfig;
pub mod limits;
pub mod objects;
pub mod orphans;
pub mod plan;
#[cfg(test)]
mod plan_tests;
pub mod quarantine;
pub mod reserved;
pub mod status;
pub mod usage;
