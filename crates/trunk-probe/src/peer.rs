//! Evidence about one other agent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::message::{Kind, Message};
use crate::replay_window::ReplayWindow;
use crate::solicitation::{Solicitation, Step};
use crate::vlan_list;

/// Number of complete rounds of a peer without a probe after which the VLAN is suspected.
const MISSED_ROUNDS: u32 = 2;
/// Time without any frame after which a peer is forgotten.
const SILENCE: Duration = Duration::from_secs(30);
/// Shortest time between two challenges of a session.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(200);

/// Another agent on the segment.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Session that answered a solicitation of this agent. Frames of other sessions may be replays.
    session: Option<u64>,
    challenge: Option<Challenge>,
    counters: ReplayWindow,
    last_heard: Duration,
    round: u32,
    /// The list of VLANs as received, and decoded.
    encoded_vlans: Vec<u8>,
    announced: VlanSet,
    /// VLANs that both agents probe.
    common: VlanSet,
    /// Last round in which a VLAN counts as received.
    last_rounds: BTreeMap<VlanId, u32>,
    /// Common VLANs that were received at least once.
    received: BTreeSet<VlanId>,
    suspected: BTreeMap<VlanId, Solicitation>,
    missing: BTreeSet<VlanId>,
    /// Round of the last search for VLANs that do not arrive.
    searched_round: u32,
}

/// A session that has to answer a solicitation.
#[derive(Debug, Clone, Copy)]
struct Challenge {
    session: u64,
    /// Counter of the first solicitation. An answer to an earlier one is a replay.
    counter: u64,
    last_sent: Duration,
}

/// Relation of a frame to the sessions of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionState {
    /// The session is known.
    Known,
    /// The session is new, and the frame proves that it is no replay.
    Proven,
    /// The session is unknown and has to be challenged.
    ChallengeDue,
    /// The session was challenged a moment ago.
    Challenged,
}

impl Peer {
    /// Returns true if no frame of the peer was accepted for a long time. Frames of unknown sessions do not count,
    /// unless there is no other session.
    pub(crate) fn is_silent(&self, now: Duration) -> bool {
        let challenged = self.challenge.filter(|_| self.session.is_none());
        let last = challenged.map_or(self.last_heard, |one| one.last_sent);
        now.saturating_sub(last) > SILENCE
    }

    /// Returns true if the peer is alive and has VLANs in common with this agent.
    pub(crate) fn is_witness(&self) -> bool {
        self.session.is_some() && !self.common.is_empty()
    }

    pub(crate) const fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Common VLANs that do not arrive.
    pub(crate) fn missing(&self) -> impl Iterator<Item = VlanId> + '_ {
        self.missing.iter().copied()
    }

    /// Returns true if every common VLAN was received, or is missing.
    pub(crate) fn is_complete(&self) -> bool {
        // Both are subsets of the common VLANs.
        let undecided = self.common.len().saturating_sub(self.received.len());
        undecided <= self.missing.difference(&self.received).count()
    }

    /// Checks the session of a frame. `own_session` is the session of this agent.
    pub(crate) fn check_session(
        &mut self,
        message: &Message,
        own_session: u64,
        now: Duration,
    ) -> SessionState {
        if self.session == Some(message.session) {
            return SessionState::Known;
        }
        let challenge = self.challenge.filter(|one| one.session == message.session);
        let Some(challenge) = challenge else {
            let is_recent =
                |one: &Challenge| now.saturating_sub(one.last_sent) < CHALLENGE_INTERVAL;
            return if self.challenge.as_ref().is_some_and(is_recent) {
                SessionState::Challenged
            } else {
                SessionState::ChallengeDue
            };
        };
        if let Kind::Answer { session, counter } = message.kind
            && session == own_session
            && counter >= challenge.counter
        {
            self.start_session(message, now);
            return SessionState::Proven;
        }
        if now.saturating_sub(challenge.last_sent) < CHALLENGE_INTERVAL {
            SessionState::Challenged
        } else {
            SessionState::ChallengeDue
        }
    }

    /// Records a solicitation with this counter that challenges a session.
    pub(crate) fn record_challenge(&mut self, session: u64, counter: u64, now: Duration) {
        let known = self.challenge.filter(|one| one.session == session);
        let counter = known.map_or(counter, |one| one.counter);
        self.challenge = Some(Challenge { session, counter, last_sent: now });
    }

    fn start_session(&mut self, message: &Message, now: Duration) {
        self.session = Some(message.session);
        self.challenge = None;
        self.counters = ReplayWindow::default();
        self.round = message.round;
        self.last_heard = now;
        self.encoded_vlans.clear();
        self.grant_grace();
    }

    /// Restarts the evidence of all VLANs. VLANs that are missing stay missing until they are received.
    pub(crate) fn grant_grace(&mut self) {
        self.suspected.clear();
        self.last_rounds = self.common.iter().map(|vlan| (vlan, self.round)).collect();
        self.searched_round = self.round;
    }

    /// Resumes after a pause of this agent, in which it received nothing.
    pub(crate) fn resume(&mut self, now: Duration) {
        self.last_heard = now;
        self.grant_grace();
    }

    /// Accepts the counter of a frame; returns `false` for a replay. Then updates what the frame announces.
    pub(crate) fn accept(&mut self, message: &Message, own: &VlanSet, now: Duration) -> bool {
        if !self.counters.accept(message.counter) {
            return false;
        }
        self.last_heard = now;
        if self.counters.is_highest(message.counter) {
            self.round = self.round.max(message.round);
            if self.encoded_vlans != message.vlans
                && let Some(announced) = vlan_list::decode(message.vlans)
            {
                self.encoded_vlans = message.vlans.to_vec();
                self.announced = announced;
                self.update_common(own);
            }
        }
        true
    }

    /// Updates the common VLANs after either agent's VLANs changed. New common VLANs count as received in the current
    /// round.
    pub(crate) fn update_common(&mut self, own: &VlanSet) {
        let common = self.announced.intersection(own);
        for vlan in common.difference(&self.common).iter() {
            self.last_rounds.insert(vlan, self.round);
        }
        self.last_rounds.retain(|vlan, _| common.contains(*vlan));
        self.received.retain(|vlan| common.contains(*vlan));
        self.suspected.retain(|vlan, _| common.contains(*vlan));
        self.missing.retain(|vlan| common.contains(*vlan));
        self.common = common;
    }

    /// Records that a frame of this round arrived in its VLAN.
    pub(crate) fn record_arrival(&mut self, vlan: VlanId, round: u32) {
        if !self.common.contains(vlan) {
            return;
        }
        let last = self.last_rounds.entry(vlan).or_insert(round);
        *last = (*last).max(round);
        self.received.insert(vlan);
        self.suspected.remove(&vlan);
        self.missing.remove(&vlan);
    }

    /// Suspects the VLANs that did not arrive in the last rounds, and returns the VLANs in which a solicitation is due.
    pub(crate) fn due_solicitations(&mut self, now: Duration) -> Vec<VlanId> {
        if self.searched_round != self.round {
            self.searched_round = self.round;
            for (vlan, last) in &self.last_rounds {
                // The current round may still be incomplete.
                let missed = self.round.saturating_sub(*last).saturating_sub(1);
                if missed >= MISSED_ROUNDS && !self.missing.contains(vlan) {
                    self.suspected.entry(*vlan).or_default();
                }
            }
        }
        let mut due = Vec::new();
        let last_heard = self.last_heard;
        let missing = &mut self.missing;
        self.suspected.retain(|vlan, solicitation| {
            match solicitation.step(now, last_heard) {
                Step::Send => due.push(*vlan),
                Step::Wait => {}
                Step::Missing => {
                    missing.insert(*vlan);
                    return false;
                }
            }
            true
        });
        due
    }

    /// Returns true if solicitations are in progress.
    pub(crate) fn has_suspicion(&self) -> bool {
        !self.suspected.is_empty()
    }
}
