//! Settings of the daemon.

use std::path::PathBuf;
use std::time::Duration;

use berth_runtime::serve::Listen;

use super::extender;

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of a kubeconfig; `None` to use the ServiceAccount of the pod, or `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the leader lease and of the agents' Leases.
    pub lease_namespace: String,
    /// Time after which another replica takes over from a leader that does not renew the lease.
    pub lease_duration: Duration,
    /// Identity of this replica.
    pub identity: String,
    /// Addresses of the HTTP server.
    pub listen: Vec<Listen>,
    /// Period after which an unchanged object is reconciled again.
    pub resync: Duration,
    /// Settings of the scheduler extender, if it is enabled.
    pub extender: Option<extender::Settings>,
}
