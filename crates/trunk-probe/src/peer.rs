//! Evidence about one other agent.

use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::message::{Kind, Message};
use crate::peer_round::PeerRound;
use crate::replay_window::ReplayWindow;
use crate::unreceived_vlans::{DueSolicitation, UnreceivedVlans};
use crate::vlan_list;

/// Time without any frame after which a peer is forgotten.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest time between two challenges of a session.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(200);

/// Another agent on the segment. Sets of VLANs are bitmaps, so that hundreds of peers with 4,000 VLANs need few
/// megabytes.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Session that answered a solicitation of this agent. Frames of other sessions may be replays.
    session: Option<u64>,
    challenge: Option<Challenge>,
    counters: ReplayWindow,
    last_heard: Duration,
    round: PeerRound,
    /// The list of VLANs as received, and decoded.
    encoded_vlans: Vec<u8>,
    announced: VlanSet,
    /// VLANs that both agents probe.
    common: VlanSet,
    /// Common VLANs that were received at least once.
    received: VlanSet,
    /// VLAN in which the peer was received last.
    last_vlan: Option<VlanId>,
    unreceived: UnreceivedVlans,
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
    pub(crate) fn is_unresponsive(&self, now: Duration) -> bool {
        let challenged = self.challenge.filter(|_| self.session.is_none());
        let last = challenged.map_or(self.last_heard, |one| one.last_sent);
        now.saturating_sub(last) > PEER_TIMEOUT
    }

    /// Returns true if the peer is alive and has VLANs in common with this agent.
    pub(crate) fn is_witness(&self) -> bool {
        self.session.is_some() && !self.common.is_empty()
    }

    /// VLANs that both agents probe.
    pub(crate) const fn common(&self) -> &VlanSet {
        &self.common
    }

    pub(crate) const fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Common VLANs that do not arrive.
    pub(crate) const fn missing(&self) -> &VlanSet {
        self.unreceived.missing()
    }

    /// Returns true if every common VLAN was received, or is missing.
    pub(crate) fn is_complete(&self) -> bool {
        // Both are subsets of the common VLANs.
        let undecided = self.common.len().saturating_sub(self.received.len());
        undecided <= self.missing().difference(&self.received).len()
    }

    /// Returns the VLAN of the peer's last probe and the time when it was received, if the peer probes exactly these
    /// VLANs.
    pub(crate) fn position_in(&self, vlans: &VlanSet) -> Option<(VlanId, Duration)> {
        self.round.last_probe().filter(|_| self.announced == *vlans)
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
        if let Some(challenge) = self.challenge.filter(|one| one.session == message.session)
            && let Kind::Answer { session, counter } = message.kind
            && session == own_session
            && counter >= challenge.counter
        {
            self.start_session(message, now);
            return SessionState::Proven;
        }
        // A replayed session may be challenged at the moment. Then this one has to wait for its turn.
        let is_recent = |one: Challenge| now.saturating_sub(one.last_sent) < CHALLENGE_INTERVAL;
        if self.challenge.is_some_and(is_recent) {
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
        self.last_heard = now;
        self.encoded_vlans.clear();
        self.ignore_past_losses();
    }

    /// Ignores all losses until now. VLANs that are missing stay missing until they are received.
    pub(crate) fn ignore_past_losses(&mut self) {
        self.unreceived.clear_unconfirmed();
        self.round.restart();
    }

    /// Resumes after a time in which this agent did not run and received nothing.
    pub(crate) fn resume(&mut self, now: Duration) {
        self.last_heard = now;
        self.ignore_past_losses();
    }

    /// Accepts the counter of a frame; returns `false` for a replay. Then updates what the frame announces.
    pub(crate) fn accept(&mut self, message: &Message, own: &VlanSet, now: Duration) -> bool {
        if !self.counters.accept(message.counter) {
            return false;
        }
        self.last_heard = now;
        // A frame that was overtaken by a later one announces nothing new.
        if !self.counters.is_highest(message.counter) {
            return true;
        }
        if self.encoded_vlans != message.vlans
            && let Some(announced) = vlan_list::decode(message.vlans)
        {
            self.encoded_vlans = message.vlans.to_vec();
            self.announced = announced;
            self.update_common(own);
        }
        if message.kind == Kind::Probe {
            let missed = self.round.record_probe(message.vlan, message.round, now, &self.common);
            missed.into_iter().for_each(|vlan| self.unreceived.suspect(vlan));
        }
        true
    }

    /// Updates the common VLANs after either agent's VLANs changed. In new common VLANs nothing is expected before the
    /// next round.
    pub(crate) fn update_common(&mut self, own: &VlanSet) {
        let common = self.announced.intersection(own);
        self.round.skip_until_next_round(&common.difference(&self.common));
        self.received = self.received.intersection(&common);
        self.unreceived.retain(&common);
        self.common = common;
    }

    /// Records that a frame of this round arrived in its VLAN.
    pub(crate) fn record_arrival(&mut self, vlan: VlanId, round: u32) {
        if !self.common.contains(vlan) {
            return;
        }
        self.round.record_arrival(vlan, round);
        self.received.insert(vlan);
        self.unreceived.clear(vlan);
        self.last_vlan = Some(vlan);
    }

    /// Records that the peer does not receive this agent in a VLAN. Whether this agent receives the peer there is
    /// verified at once, unless the solicitation that the peer sent just before arrived.
    pub(crate) fn record_doubt(&mut self, vlan: VlanId) {
        if self.common.contains(vlan) && self.last_vlan != Some(vlan) {
            self.unreceived.solicit_on_request(vlan);
        }
    }

    /// Returns the solicitations to send now, for at most `limit` VLANs at the same time. For each there is a second
    /// one in a VLAN in which the peer was received: only a peer that answers there can be expected to answer in the
    /// first.
    pub(crate) fn take_solicitations(
        &mut self,
        now: Duration,
        limit: usize,
    ) -> Vec<(VlanId, Kind)> {
        let Some(session) = self.session else { return Vec::new() };
        let control = self.last_vlan.filter(|vlan| self.common.contains(*vlan));
        let mut frames = Vec::new();
        for due in self.unreceived.take_due(now, self.last_heard, limit) {
            let (vlan, control_kind) = match due {
                DueSolicitation::Recheck(vlan) => (vlan, None),
                DueSolicitation::Undecided { vlan, is_reported: true } => {
                    (vlan, Some(Kind::Doubt { session, vlan }))
                }
                DueSolicitation::Undecided { vlan, is_reported: false } => {
                    (vlan, Some(Kind::Solicit { session }))
                }
            };
            frames.push((vlan, Kind::Solicit { session }));
            frames.extend(control.zip(control_kind));
        }
        frames
    }

    /// Returns true if solicitations are in progress.
    pub(crate) fn is_soliciting(&self) -> bool {
        self.unreceived.is_soliciting()
    }
}
