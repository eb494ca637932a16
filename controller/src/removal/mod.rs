//! Removal of machines: a machine that Berth removes gets a mark ([`mark`]), its Node in the tenant's cluster is drained,
//! and then the machine is deleted. The modules have no side effects. All objects of the tenant may be hostile.
//!
//! ```text
//! VirtualMachine ──► mark, timeout ──┐
//! tenant's Node, pods ──► pod ───────┼─► plan ──► next step ──► report
//! answers to evictions ──► eviction ─┘
//! ```

pub mod eviction;
pub mod grace_periods;
pub mod host_return;
pub mod mark;
pub mod plan;
pub mod pod;
pub mod progress;
pub mod readiness;
pub mod report;
pub mod timeout;

use berth_api::TenantCluster;

/// Returns true if the machines of a tenant are drained before they are deleted. The deletion of a tenant ends its
/// cluster, so the machines of a tenant that is being deleted are not drained.
#[must_use]
pub fn drains_machines(tenant: &TenantCluster) -> bool {
    tenant.spec.kubeconfig_secret_ref.is_some() && tenant.metadata.deletion_timestamp.is_none()
}
