//! Attempts of the thief, as data.

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
    pub(crate) fn is_the_policys(self) -> bool {
        matches!(self, Self::NotOwn | Self::NoRight)
    }
}

pub(crate) struct Attempt {
    pub(crate) expect: Expect,
    pub(crate) what: String,
    pub(crate) request: Request,
    /// Credential of the request; `None` for the thief's credential.
    pub(crate) who: Option<Credential>,
    /// JSON pointers and values that the object must have afterwards; null for a missing value.
    pub(crate) leaves: Vec<(&'static str, Value)>,
}

pub(crate) fn attempt(expect: Expect, what: impl Into<String>, request: Request) -> Attempt {
    Attempt { expect, what: what.into(), request, who: None, leaves: Vec::new() }
}

impl Attempt {
    pub(crate) fn by(self, who: &Credential) -> Self {
        Self { who: Some(who.clone()), ..self }
    }

    pub(crate) fn leaves(mut self, pointer: &'static str, value: impl Into<Value>) -> Self {
        self.leaves.push((pointer, value.into()));
        self
    }
}

/// Returns all attempts in the order of execution: attempts that need a missing InfraNode come before its creation,
/// and attacks on objects come after the agent has created the objects.
pub(crate) fn all(world: &World<'_>) -> Vec<(&'static str, Vec<Attempt>)> {
    vec![
        ("An InfraNode that is not there yet", infra_nodes::make(world)),
        ("What the agent is for", works::agents(world)),
        ("Its own Node", nodes::own(world)),
        ("Other Nodes", nodes::others()),
        ("InfraNodes", infra_nodes::change()),
        ("Leases", reports::leases(world)),
        ("Events", reports::events(world)),
        ("NodeResourceTopologies", reports::topologies()),
        ("Everything else", rest::writes()),
        ("Reading", rest::reads()),
        ("Other credentials", credentials::others(world)),
        ("Others are left alone", works::others(world)),
    ]
}

/// Returns each attempt with its group.
pub(crate) fn flat<'a>(
    groups: &'a [(&str, Vec<Attempt>)],
) -> impl Iterator<Item = (&'a str, &'a Attempt)> {
    groups.iter().flat_map(|(group, attempts)| attempts.iter().map(move |one| (*group, one)))
}
