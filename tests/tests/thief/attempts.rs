//! What is tried, as data.

use serde_json::Value;

use crate::request::{Credential, Request};
use crate::world::World;
use crate::{credentials, infra_nodes, nodes, reports, rest, works};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// What the agent is for, and what others do: it works, with the policy and without.
    Works,
    /// It is answered as if it had worked, but only a status may change.
    Dropped,
    /// Only the policy denies it, as RBAC cannot say "its own".
    NotOwn,
    /// RBAC gives no right to it. If another role does, the policy denies it.
    NoRight,
    /// As before, but for RBAC alone: about this, servers ask no policy.
    NotAsked,
}

impl Expect {
    /// Whether the policy denies it with all rights given.
    pub(crate) fn is_the_policys(self) -> bool {
        matches!(self, Self::NotOwn | Self::NoRight)
    }
}

pub(crate) struct Attempt {
    pub(crate) expect: Expect,
    pub(crate) what: String,
    pub(crate) request: Request,
    /// The thief, unless stated.
    pub(crate) who: Option<Credential>,
    /// Where in the object what must be found afterwards; null for nothing.
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

/// In this order: an InfraNode is made after all that is tried while there is none, and what thieves try on objects
/// comes when the agent has made them.
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

/// Each with its group.
pub(crate) fn flat<'a>(
    groups: &'a [(&str, Vec<Attempt>)],
) -> impl Iterator<Item = (&'a str, &'a Attempt)> {
    groups.iter().flat_map(|(group, attempts)| attempts.iter().map(move |one| (*group, one)))
}
