//! The InfraNode that `berth-agent report` prints. It needs no API client, and has the same text as the object in
//! the cluster.

use berth_api::{InfraNodeSpec, InfraNodeStatus, names};
use serde::Serialize;

/// An InfraNode with its status, and with an empty spec.
#[derive(Serialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: InfraNodeSpec,
    pub status: InfraNodeStatus,
}

#[derive(Serialize, Clone, Debug)]
struct Metadata {
    name: String,
}

impl Report {
    /// Returns the InfraNode with a name and a status.
    #[must_use]
    pub fn new(name: &str, status: InfraNodeStatus) -> Self {
        Self {
            api_version: names::API_VERSION,
            kind: "InfraNode",
            metadata: Metadata { name: name.to_owned() },
            spec: InfraNodeSpec::default(),
            status,
        }
    }

    /// Returns the name of the InfraNode.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}
