//! Counters of one port, for the agent's metrics.

use std::collections::BTreeMap;

use crate::outcome::{AnswerKind, ForeignKind, IgnoredReason, Outcome};

/// Counters of one port since its [`crate::PortResponder`] was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of answers by message type.
    pub answers: BTreeMap<AnswerKind, u64>,
    /// Number of frames without an answer, by reason.
    pub ignored: BTreeMap<IgnoredReason, u64>,
    /// Number of messages of foreign servers, by protocol.
    pub foreign_servers: BTreeMap<ForeignKind, u64>,
    /// Number of declined addresses.
    pub declined: u64,
    /// Number of options that were left out because the answer would be longer than the client accepts.
    pub options_left_out: u64,
}

impl Statistics {
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Answer { kind, .. } => self.answers.entry(*kind).or_default(),
            Outcome::ForeignServer(server) => self.foreign_servers.entry(server.kind).or_default(),
            Outcome::Declined(_) => &mut self.declined,
            Outcome::Ignored(reason) => self.ignored.entry(*reason).or_default(),
        };
        *counter = counter.saturating_add(1);
    }
}
