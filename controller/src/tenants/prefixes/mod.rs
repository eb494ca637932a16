//! Prefixes that tenants' networks get from the pools in `spec.addressPools` of the InfraConfig. The modules have no
//! side effects.
//!
//! ```text
//! InfraConfig ──► pool ─────────┐
//! TenantClusters ──► request ───┼─► choose ──► grant (status.prefixes, from which addresses::resolved reads)
//! PrefixClaims ─────────────────┤
//!                               └─► release (quarantine and deletion of claims)
//! ```
//!
//! The choice is a proposal. The creation of the PrefixClaim is the lock on one prefix, because the API server accepts
//! each name only once. Two prefixes with different names can overlap if one of them is the `cidr` of a TenantCluster,
//! or if a pool was changed. Therefore the caller reads all claims again after it has created one, and withdraws it if
//! another tenant's claim overlaps it: of two claims, at least the later one is withdrawn.

pub mod choose;
pub mod grant;
pub mod pool;
pub mod release;
pub mod request;
