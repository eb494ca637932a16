//! Requests that a thief of an agent's credential sends, with the expected results.

use serde_json::Value;

use crate::request::{Credential, Request};
use crate::world::World;
use crate::{credentials, infra_nodes, nodes, reports, rest, works};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Regular work of the agent and of other clients: the request succeeds, with and without the policy.
    Works,
    /// The request succeeds, but the server only changes the status.
    Dropped,
    /// Only the policy denies the request, because RBAC cannot restrict a client to its own object.
    NotOwn,
    /// RBAC grants no permission. If another role grants the permission, the policy denies the request.
    NoRight,
    /// RBAC grants no permission, and no policy applies, because servers do not call admission policies for this
    /// request.
    NotAsked,
}

impl Expect {
    /// Returns true if the policy denies the request of a client that has all permissions.
    pub(crate) fn is_denied_by_policy(self) -> bool {
        matches!(self, Self::NotOwn | Self::NoRight)
    }
}

pub(crate) struct Attempt {
    pub(crate) expect: Expect,
    pub(crate) description: String,
    pub(crate) request: Request,
    /// Credential of the request; `None` for the thief's credential.
    pub(crate) credential: Option<Credential>,
    /// JSON pointers and values that the object must have afterwards; null for a missing value.
    pub(crate) expected_values: Vec<(&'static str, Value)>,
}

pub(crate) fn attempt(expect: Expect, what: impl Into<String>, request: Request) -> Attempt {
    Attempt {
        expect,
        description: what.into(),
        request,
        credential: None,
        expected_values: Vec::new(),
    }
}

impl Attempt {
    pub(crate) fn with_credential(self, who: &Credential) -> Self {
        Self { credential: Some(who.clone()), ..self }
    }

    pub(crate) fn expect_value(mut self, pointer: &'static str, value: impl Into<Value>) -> Self {
        self.expected_values.push((pointer, value.into()));
        self
    }
}

/// Returns all attempts in the order of execution: attempts that need a missing InfraNode come before its creation,
/// and attacks on objects come after the agent has created the objects.
pub(crate) fn all_attempts(world: &World<'_>) -> Vec<(&'static str, Vec<Attempt>)> {
    vec![
        ("A missing InfraNode", infra_nodes::creation_attempts(world)),
        ("Regular requests of the agent", works::agent_requests(world)),
        ("The agent's own Node", nodes::own_node(world)),
        ("Other Nodes", nodes::other_nodes()),
        ("InfraNodes", infra_nodes::update_attempts()),
        ("Leases", reports::leases(world)),
        ("Events", reports::events(world)),
        ("NodeResourceTopologies", reports::topologies()),
        ("Other writes", rest::writes()),
        ("Reads", rest::reads()),
        ("Other credentials", credentials::other_credentials(world)),
        ("Requests of other clients", works::other_clients(world)),
    ]
}

/// Returns each attempt with its group.
pub(crate) fn with_groups<'a>(
    groups: &'a [(&str, Vec<Attempt>)],
) -> impl Iterator<Item = (&'a str, &'a Attempt)> {
    groups.iter().flat_map(|(group, attempts)| attempts.iter().map(move |one| (*group, one)))
}
