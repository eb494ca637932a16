//! Allocation of addresses to the machines of a tenant, from the pools in `spec.network.ipv4` and `.ipv6`. The modules
//! do no I/O.
//!
//! ```text
//! TenantNetwork, prefixes ──► resolved ──► pools ──┐
//! AddressClaims ──► claims ────────────────────────┴─► choose, mac ──► interface (InterfaceConfig of the machine)
//!                     │  └────► report (condition AddressesReady, status.addresses) ◄── conflicts (reports of hosts)
//!                     └───────► release (quarantine and deletion of claims)
//! ```
//!
//! A chosen address is only a proposal. The creation of the AddressClaim is the lock, because the API server accepts
//! each name only once. Therefore the known claims may be stale: the caller adds an address whose claim was refused to
//! a list, and calls [`choose::choose_address`] again, which returns the next candidate.

pub(super) mod checks;
pub mod choose;
pub mod claims;
pub mod conflicts;
pub mod family;
pub mod fixed;
pub mod interface;
pub mod interrupted;
pub mod lost;
pub mod mac;
pub mod pool;
pub mod pools;
pub mod release;
pub mod report;
pub mod resolved;
