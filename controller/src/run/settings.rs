//! Settings of the daemon.

use std::path::PathBuf;
use std::time::Duration;

use berth_runtime::serve::ListenAddress;

use super::extender;

/// Settings of the daemon from the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of a kubeconfig; `None` to use the kubeconfig of the variable `KUBECONFIG`, or the ServiceAccount of the
    /// pod.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease of the leader election and of the Leases of agents.
    pub lease_namespace: String,
    /// Time after which another replica becomes the leader if the leader does not renew its lease.
    pub lease_duration: Duration,
    /// Identity of this replica in the leader lease.
    pub identity: String,
    /// Addresses on which the HTTP server listens.
    pub listen: Vec<ListenAddress>,
    /// Period after which an object is reconciled again without a change.
    pub resync: Duration,
    /// Settings of the scheduler extender; `None` if it is disabled.
    pub extender: Option<extender::Settings>,
}
