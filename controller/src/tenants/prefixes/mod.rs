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
//! or if a pool was changed. Therefore, after the caller has created a claim, it reads all claims again, and deletes
//! its own claim if this overlaps a claim of another tenant: of two overlapping claims, at least the later one is
//! deleted.

pub mod choose;
pub mod grant;
pub mod pool;
pub mod release;
pub mod request;
