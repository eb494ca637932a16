//! Evidence about one peer, that is, another agent on the segment.

use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::message::{Message, MessageKind};
use crate::peer_round::PeerRound;
use crate::replay_window::ReplayWindow;
use crate::unreceived_vlans::{DueSolicitation, UnreceivedVlans};
use crate::vlan_list;

/// Time without a frame after which a peer is removed.
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
    last_received: Duration,
    round: PeerRound,
    /// The last list of VLANs that the peer announced, as received.
    encoded_vlans: Vec<u8>,
    /// The decoded list of VLANs that the peer announced.
    announced: VlanSet,
    /// VLANs that both agents probe.
    common: VlanSet,
    /// Common VLANs that were received at least once.
    received: VlanSet,
    /// VLAN in which the peer was received last.
    last_vlan: Option<VlanId>,
    unreceived: UnreceivedVlans,
}

/// A session that must answer a solicitation.
#[derive(Debug, Clone, Copy)]
struct Challenge {
    session: u64,
    /// Counter of the first solicitation. An answer to an earlier solicitation is a replay.
    counter: u64,
    last_sent: Duration,
}

/// State of the session that sent a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionState {
    /// The session is known.
    Known,
    /// The session is new, and the frame proves that it is not a replay.
    Proven,
    /// The session is unknown and must be challenged.
    ChallengeDue,
    /// The session was challenged less than [`CHALLENGE_INTERVAL`] ago.
    Challenged,
}

impl Peer {
    /// Returns true if no frame of the peer was accepted for [`PEER_TIMEOUT`]. Frames of unknown sessions do not count,
    /// unless there is no other session.
    pub(crate) fn is_unresponsive(&self, now: Duration) -> bool {
        let challenged = self.challenge.filter(|_| self.session.is_none());
        let last = challenged.map_or(self.last_received, |one| one.last_sent);
        now.saturating_sub(last) > PEER_TIMEOUT
    }

    /// Returns true if the peer is alive and has VLANs in common with this agent.
    pub(crate) fn is_witness(&self) -> bool {
        self.session.is_some() && !self.common.is_empty()
    }

    /// Returns the VLANs that both agents probe.
    pub(crate) const fn common(&self) -> &VlanSet {
        &self.common
    }

    pub(crate) const fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the common VLANs in which the peer's probes do not arrive.
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
            && let MessageKind::Answer { session, counter } = message.kind
            && session == own_session
            && counter >= challenge.counter
        {
            self.start_session(message, now);
            return SessionState::Proven;
        }
        // If another session, which may be a replay, was challenged recently, the challenge of this session must wait.
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
        self.last_received = now;
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
        self.last_received = now;
        self.ignore_past_losses();
    }

    /// Accepts the counter of a frame; returns `false` for a replay. Then updates the announced VLANs, and suspects the
    /// VLANs of missed probes.
    pub(crate) fn accept(&mut self, message: &Message, own: &VlanSet, now: Duration) -> bool {
        if !self.counters.accept(message.counter) {
            return false;
        }
        self.last_received = now;
        // A frame that arrives after a later frame announces nothing new.
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
        if message.kind == MessageKind::Probe {
            let missed = self.round.record_probe(message.vlan, message.round, now, &self.common);
            missed.into_iter().for_each(|vlan| self.unreceived.suspect(vlan));
        }
        true
    }

    /// Updates the common VLANs after either agent's VLANs changed. In new common VLANs no probe is expected before the
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

    /// Records that the peer does not receive this agent in a VLAN. Then this agent solicits the peer in the VLAN, to
    /// verify the opposite direction. This is not needed if the solicitation that the peer has just sent in the VLAN
    /// arrived.
    pub(crate) fn record_reported_loss(&mut self, vlan: VlanId) {
        if self.common.contains(vlan) && self.last_vlan != Some(vlan) {
            self.unreceived.solicit_on_request(vlan);
        }
    }

    /// Returns the solicitations to send now, for at most `limit` VLANs at the same time. For each of these VLANs, a
    /// second solicitation is sent in a VLAN in which the peer was received: a missing answer is evidence only if the
    /// peer answers there.
    pub(crate) fn take_solicitations(
        &mut self,
        now: Duration,
        limit: usize,
    ) -> Vec<(VlanId, MessageKind)> {
        let Some(session) = self.session else { return Vec::new() };
        let control = self.last_vlan.filter(|vlan| self.common.contains(*vlan));
        let mut frames = Vec::new();
        for due in self.unreceived.take_due(now, self.last_received, limit) {
            let (vlan, control_kind) = match due {
                DueSolicitation::Recheck(vlan) => (vlan, None),
                DueSolicitation::Undecided { vlan, is_reported: true } => {
                    (vlan, Some(MessageKind::ReportLoss { session, vlan }))
                }
                DueSolicitation::Undecided { vlan, is_reported: false } => {
                    (vlan, Some(MessageKind::Solicit { session }))
                }
            };
            frames.push((vlan, MessageKind::Solicit { session }));
            frames.extend(control.zip(control_kind));
        }
        frames
    }

    /// Returns true if solicitations are in progress.
    pub(crate) fn is_soliciting(&self) -> bool {
        self.unreceived.is_soliciting()
    }
}
