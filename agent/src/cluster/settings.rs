//! Settings of the connection to the cluster.

use std::path::PathBuf;

/// Cluster and identity of this agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Kubeconfig; `None` for the ServiceAccount of the pod or `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the Node, and of the InfraNode.
    pub node: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// True if the agent publishes a NodeResourceTopology.
    pub node_resource_topology: bool,
}
