//! Settings of the daemon.

use std::path::PathBuf;
use std::time::Duration;

use crate::cluster;
use berth_runtime::serve::ListenAddress;

/// Settings of the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Source of the desired state.
    pub source: Source,
    /// Name of the Node, if it differs from the names of the host and the kubelet; `None` to use these names.
    pub node_name: Option<String>,
    /// True if the agent only reports and never changes the host.
    pub observe: bool,
    /// Addresses of the HTTP server.
    pub listen: Vec<ListenAddress>,
    /// Interval of the timer.
    pub interval: Duration,
    /// File with the key of probes of trunks, which all hosts on the same switches share.
    pub trunk_key: PathBuf,
}

/// Source of the desired state.
#[derive(Debug, Clone)]
pub enum Source {
    /// A manifest file, as an absolute path.
    File(PathBuf),
    /// The InfraNode in a cluster.
    Cluster(cluster::Settings),
}
