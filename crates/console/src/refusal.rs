//! Reasons of hosts in the results of simulations.

/// Hosts that refuse a VM for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Number of hosts.
    pub hosts: usize,
    /// Reason of all these hosts.
    pub reason: String,
    /// One of the hosts.
    pub example: String,
    /// Reason of this host in detail.
    pub detail: String,
}
