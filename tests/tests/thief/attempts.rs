//! Requests that a thief of an agent's credential sends, with the expected results.

use serde_json::Value;

use crate::request::{Credential, Request};
use crate::test_cluster::TestCluster;
use crate::{credentials, infra_nodes, nodes, other_requests, permitted, reports};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedResult {
    /// Regular work of the agent and of other clients: the request succeeds, with and without the policy.
    Succeeds,
    /// The request succeeds, but the server applies only its changes of the status.
    ChangesStatusOnly,
    /// Only the policy denies the request, because RBAC cannot restrict a client to its own object.
    DeniedByPolicy,
    /// RBAC grants no permission. If another role grants the permission, the policy denies the request.
    DeniedByRbac,
    /// RBAC grants no permission, and no policy applies, because servers do not call admission policies for this
    /// request.
    DeniedByRbacOnly,
}

impl ExpectedResult {
    /// Returns true if the policy denies the request of a client that has all permissions.
    pub(crate) fn is_denied_by_policy(self) -> bool {
        matches!(self, Self::DeniedByPolicy | Self::DeniedByRbac)
    }
}

pub(crate) struct Attempt {
    pub(crate) expected_result: ExpectedResult,
    pub(crate) description: String,
    pub(crate) request: Request,
    /// Credential of the request; `None` for the thief's credential.
    pub(crate) credential: Option<Credential>,
    /// JSON pointers and values that the object must have afterwards; null for a missing value.
    pub(crate) expected_values: Vec<(&'static str, Value)>,
}

pub(crate) fn new_attempt(
    expected_result: ExpectedResult,
    what: impl Into<String>,
    request: Request,
) -> Attempt {
    Attempt {
        expected_result,
        description: what.into(),
        request,
        credential: None,
        expected_values: Vec::new(),
    }
}

impl Attempt {
    pub(crate) fn with_credential(self, credential: &Credential) -> Self {
        Self { credential: Some(credential.clone()), ..self }
    }

    pub(crate) fn expect_value(mut self, pointer: &'static str, value: impl Into<Value>) -> Self {
        self.expected_values.push((pointer, value.into()));
        self
    }
}

/// Returns all attempts in the order of execution: attempts that need a missing InfraNode come before its creation,
/// and attacks on objects come after the agent has created the objects.
pub(crate) fn all_attempts(test_cluster: &TestCluster<'_>) -> Vec<(&'static str, Vec<Attempt>)> {
    vec![
        ("A missing InfraNode", infra_nodes::creation_attempts(test_cluster)),
        ("Regular requests of the agent", permitted::agent_requests(test_cluster)),
        ("The agent's own Node", nodes::own_node_attempts(test_cluster)),
        ("Other Nodes", nodes::other_node_attempts()),
        ("InfraNodes", infra_nodes::update_attempts()),
        ("Leases", reports::lease_attempts(test_cluster)),
        ("Events", reports::event_attempts(test_cluster)),
        ("NodeResourceTopologies", reports::topology_attempts()),
        ("Other writes", other_requests::write_attempts()),
        ("Reads", other_requests::read_attempts()),
        ("Other credentials", credentials::other_credential_attempts(test_cluster)),
        ("Requests of other clients", permitted::other_client_requests(test_cluster)),
    ]
}

/// Returns each attempt with its group.
pub(crate) fn with_groups<'a>(
    groups: &'a [(&str, Vec<Attempt>)],
) -> impl Iterator<Item = (&'a str, &'a Attempt)> {
    groups.iter().flat_map(|(group, attempts)| attempts.iter().map(move |one| (*group, one)))
}
