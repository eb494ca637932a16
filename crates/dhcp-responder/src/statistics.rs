//! Counters of one port, which the agent exports as metrics.

use std::collections::BTreeMap;

use crate::outcome::{AnswerKind, ForeignKind, IgnoredReason, Outcome};

/// Counters of one port since its [`crate::PortResponder`] was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of sent answers, by message type.
    pub answers: BTreeMap<AnswerKind, u64>,
    /// Number of frames without an answer, by reason.
    pub ignored: BTreeMap<IgnoredReason, u64>,
    /// Number of messages of foreign servers, by protocol.
    pub foreign_servers: BTreeMap<ForeignKind, u64>,
    /// Number of times that the guest declined an address.
    pub declined: u64,
    /// Number of options that were left out of answers, because the client does not accept longer answers.
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
