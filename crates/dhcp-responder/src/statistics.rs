//! Counters of one port. They are lists, because a port has few of them and a host has a thousand ports.

use std::ops::Index;

use crate::outcome::{AnswerKind, ForeignKind, IgnoredReason, Outcome};

/// Counters of one port since its [`crate::PortResponder`] was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of sent answers, by message type.
    pub answers: Counters<AnswerKind>,
    /// Number of frames without an answer, by reason.
    pub ignored: Counters<IgnoredReason>,
    /// Number of messages of foreign servers, by protocol.
    pub foreign_servers: Counters<ForeignKind>,
    /// Number of times that the guest declined an address.
    pub declined: u64,
    /// Number of options that were left out of answers, because the client does not accept longer answers.
    pub options_left_out: u64,
}

/// Counters by key, sorted by key. A key that never occurred counts as 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters<K>(Vec<(K, u64)>);

impl Statistics {
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Answer { kind, .. } => self.answers.increment(*kind),
            Outcome::ForeignServer(server) => self.foreign_servers.increment(server.kind),
            Outcome::Declined(_) => self.declined = self.declined.saturating_add(1),
            Outcome::Ignored(reason) => self.ignored.increment(*reason),
        }
    }
}

impl<K> Default for Counters<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord> Counters<K> {
    fn increment(&mut self, key: K) {
        if let Some((_, count)) = self.0.iter_mut().find(|(other, _)| *other == key) {
            *count = count.saturating_add(1);
            return;
        }
        // Without the exact size, a vector reserves memory for four counters.
        self.0.reserve_exact(1);
        let position = self.0.partition_point(|(other, _)| *other < key);
        self.0.insert(position, (key, 1));
    }
}

impl<K: PartialEq> Index<&K> for Counters<K> {
    type Output = u64;

    fn index(&self, key: &K) -> &u64 {
        self.0.iter().find(|(other, _)| other == key).map_or(&0, |(_, count)| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_key() {
        let mut statistics = Statistics::default();
        for reason in [IgnoredReason::Malformed, IgnoredReason::OtherMac, IgnoredReason::Malformed]
        {
            statistics.count(&Outcome::Ignored(reason));
        }
        assert_eq!(statistics.ignored[&IgnoredReason::Malformed], 2);
        assert_eq!(statistics.ignored[&IgnoredReason::OtherMac], 1);
        assert_eq!(statistics.ignored[&IgnoredReason::Released], 0);
        assert_eq!(statistics.answers, Counters::default());
    }

    #[test]
    fn order_of_first_occurrence_does_not_matter() {
        let counters = |reasons: [IgnoredReason; 3]| {
            let mut counters = Counters::default();
            reasons.into_iter().for_each(|reason| counters.increment(reason));
            counters
        };
        let (a, b, c) =
            (IgnoredReason::Malformed, IgnoredReason::OtherMac, IgnoredReason::Released);
        assert_eq!(counters([a, b, c]), counters([c, b, a]));
        assert_ne!(counters([a, b, c]), counters([a, a, b]));
    }
}
