//! Answers to the solicitations of other agents. In each VLAN they are sent one after the other, in the order of the
//! solicitations: after a start, all other agents solicit this agent at the same time, and each of them needs an answer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::message::MessageKind;

/// Minimum time between two answers in one VLAN, so that replayed solicitations do not multiply frames.
const ANSWER_INTERVAL: Duration = Duration::from_millis(40);
/// Maximum number of answers that wait: more than one for each agent of the largest segment.
const MAX_WAITING: usize = 1024;

/// Answers that were not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: VecDeque<Answer>,
    last_sent: BTreeMap<VlanId, Duration>,
}

#[derive(Debug)]
struct Answer {
    vlan: VlanId,
    /// Session that sent the solicitation.
    session: u64,
    /// Counter of the solicitation.
    counter: u64,
}

impl Answers {
    /// Adds the answer to a solicitation. A second solicitation of the session in this VLAN is answered together with the
    /// first.
    pub(crate) fn add(&mut self, vlan: VlanId, session: u64, counter: u64) {
        let is_same = |answer: &&mut Answer| answer.vlan == vlan && answer.session == session;
        if let Some(answer) = self.waiting.iter_mut().find(is_same) {
            answer.counter = answer.counter.max(counter);
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(Answer { vlan, session, counter });
        }
    }

    /// Removes the answers in VLANs that `vlans` does not contain.
    pub(crate) fn retain(&mut self, vlans: &VlanSet) {
        self.waiting.retain(|answer| vlans.contains(answer.vlan));
        self.last_sent.clear();
    }

    /// Returns true if no answer waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the answers to send now, at most `limit`.
    pub(crate) fn take_due(&mut self, now: Duration, limit: usize) -> Vec<(VlanId, MessageKind)> {
        let mut due = Vec::new();
        let Self { waiting, last_sent } = self;
        waiting.retain(|answer| {
            let last = last_sent.get(&answer.vlan);
            let is_recent = last.is_some_and(|last| now.saturating_sub(*last) < ANSWER_INTERVAL);
            if is_recent || due.len() >= limit {
                return true;
            }
            last_sent.insert(answer.vlan, now);
            let Answer { vlan, session, counter } = *answer;
            due.push((vlan, MessageKind::Answer { session, counter }));
            false
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(id: u16) -> VlanId {
        VlanId::try_from(id).unwrap()
    }

    /// Returns VLAN, session and counter of the answers that are sent now.
    fn take(answers: &mut Answers, milliseconds: u64, limit: usize) -> Vec<(u16, u64, u64)> {
        let due = answers.take_due(Duration::from_millis(milliseconds), limit);
        let answer = |(vlan, kind): (VlanId, MessageKind)| match kind {
            MessageKind::Answer { session, counter } => (vlan.into(), session, counter),
            other => panic!("{other:?} is no answer"),
        };
        due.into_iter().map(answer).collect()
    }

    #[test]
    fn all_sessions_are_answered_one_after_the_other_in_each_vlan() {
        let mut answers = Answers::default();
        for session in 1..4 {
            answers.add(vlan(100), session, 10 + session);
        }
        answers.add(vlan(101), 3, 20);
        // A repeated solicitation is answered only once; an older counter is a replay.
        answers.add(vlan(100), 2, 30);
        answers.add(vlan(100), 3, 5);
        assert_eq!(take(&mut answers, 1000, 9), [(100, 1, 11), (101, 3, 20)]);
        assert!(take(&mut answers, 1030, 9).is_empty());
        assert_eq!(take(&mut answers, 1040, 9), [(100, 2, 30)]);
        answers.add(vlan(100), 1, 40);
        answers.add(vlan(101), 1, 41);
        assert_eq!(take(&mut answers, 1080, 1), [(100, 3, 13)]);
        assert_eq!(take(&mut answers, 1080, 9), [(101, 1, 41)]);
        answers.retain(&"101".parse().unwrap());
        assert!(answers.is_empty());
    }

    #[test]
    fn number_of_waiting_answers_is_limited() {
        let mut answers = Answers::default();
        (0..5000).for_each(|session| answers.add(vlan(100), session, 1));
        assert_eq!(answers.waiting.len(), MAX_WAITING);
    }
}
