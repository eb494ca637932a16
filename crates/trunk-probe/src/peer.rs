//! Evidence about one peer. A peer is another agent on the segment.

use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::message::{Message, MessageKind};
use crate::peer_round::PeerRound;
use crate::replay_window::ReplayWindow;
use crate::unreceived_vlans::UnreceivedVlans;
use crate::vlan_list;

/// Time without an accepted frame after which a peer is removed.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest time between two challenges of a session. A challenge is a solicitation that a session must answer to prove
/// that its frames are not replays.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(200);

/// Another agent on the segment. Sets of VLANs are bitmaps, so that hundreds of peers with 4,000 VLANs need few
/// megabytes.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Session that has proven that its frames are not replays, by answering a solicitation of this agent; `None` if no
    /// session has. Frames of other sessions may be replays.
    session: Option<u64>,
    challenge: Option<Challenge>,
    /// Session that must be challenged, and the VLAN in which it was received; `None` if no session must be challenged.
    due_challenge: Option<(u64, VlanId)>,
    counters: ReplayWindow,
    /// Time of the last accepted frame. Frames of sessions that have proven nothing count only if the peer has no other
    /// session.
    last_received: Duration,
    round: PeerRound,
    /// The list of VLANs that the peer announced last, in encoded form.
    encoded_vlans: Vec<u8>,
    /// The same list of VLANs in decoded form.
    announced: VlanSet,
    /// VLANs that both agents probe.
    common: VlanSet,
    /// Common VLANs in which the peer was received at least once.
    received: VlanSet,
    /// VLAN in which the peer was received last; `None` if it has not been received.
    last_vlan: Option<VlanId>,
    unreceived: UnreceivedVlans,
    /// Time when the solicitations in a VLAN of the peer began last.
    last_begun: Duration,
}

/// A session that was solicited, and must answer to prove that its frames are not replays.
#[derive(Debug, Clone, Copy)]
struct Challenge {
    session: u64,
    /// Counter of the first solicitation of the session. An answer to an earlier solicitation is a replay.
    counter: u64,
    last_sent: Duration,
}

/// State of the session that sent a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionState {
    /// The session has proven before that its frames are not replays.
    Known,
    /// The session is new, and this frame proves that its frames are not replays.
    Proven,
    /// The session has proven nothing yet, and must be challenged.
    ChallengeDue,
    /// The session has proven nothing yet, and was challenged less than [`CHALLENGE_INTERVAL`] ago.
    Challenged,
}

impl Peer {
    /// Returns true if no frame of the peer was accepted for [`PEER_TIMEOUT`].
    pub(crate) fn is_unresponsive(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_received) > PEER_TIMEOUT
    }

    /// Returns true if the peer has a proven session, and has VLANs in common with this agent.
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

    /// Returns the common VLANs in which the peer's frames do not arrive.
    pub(crate) const fn missing(&self) -> &VlanSet {
        self.unreceived.missing()
    }

    /// Returns true if each common VLAN is decided: the peer was received in it, or it is missing.
    pub(crate) fn is_complete(&self) -> bool {
        // The received VLANs and the missing VLANs are subsets of the common VLANs.
        let undecided = self.common.len().saturating_sub(self.received.len());
        undecided <= self.missing().difference(&self.received).len()
    }

    /// Returns the VLAN of the peer's last probe, and the time when this probe was received; `None` unless the peer
    /// probes exactly the VLANs `vlans`.
    pub(crate) fn position_in(&self, vlans: &VlanSet) -> Option<(VlanId, Duration)> {
        self.round.last_probe().filter(|_| self.announced == *vlans)
    }

    /// Determines the state of the session that sent a frame. `own_session` is the session of this agent.
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

    /// Records a frame of a session that has proven nothing.
    pub(crate) fn record_unproven_frame(&mut self, now: Duration) {
        if self.session.is_none() {
            self.last_received = now;
        }
    }

    /// Requests a challenge of the session in this VLAN. If another session waits already, this session waits for the
    /// next challenge, unless the other session was challenged last: neither of two sessions can displace the other.
    pub(crate) fn request_challenge(&mut self, session: u64, vlan: VlanId) {
        let last = self.challenge.map(|one| one.session);
        if self.due_challenge.is_none_or(|(waiting, _)| Some(waiting) == last) {
            self.due_challenge = Some((session, vlan));
        }
    }

    /// Returns the time of the last challenge if another one is due; `None` if none is due.
    pub(crate) fn challenge_due(&self) -> Option<Duration> {
        self.due_challenge?;
        Some(self.challenge.map_or(Duration::ZERO, |one| one.last_sent))
    }

    /// Returns the challenge that is due. Its frame must have this counter or a higher counter.
    pub(crate) fn take_challenge(
        &mut self,
        counter: u64,
        now: Duration,
    ) -> Option<(VlanId, MessageKind)> {
        let (session, vlan) = self.due_challenge.take()?;
        let known = self.challenge.filter(|one| one.session == session);
        let counter = known.map_or(counter, |one| one.counter);
        self.challenge = Some(Challenge { session, counter, last_sent: now });
        Some((vlan, MessageKind::Solicit { session }))
    }

    fn start_session(&mut self, message: &Message, now: Duration) {
        self.session = Some(message.session);
        self.challenge = None;
        self.due_challenge = None;
        self.counters = ReplayWindow::default();
        self.last_received = now;
        self.encoded_vlans.clear();
        self.ignore_past_losses();
    }

    /// Ignores all probes that were missed until now. VLANs that are already missing stay missing until the peer is
    /// received in them.
    pub(crate) fn ignore_past_losses(&mut self) {
        self.unreceived.clear_unconfirmed();
        self.round.restart();
    }

    /// Resumes after a time in which this agent did not run, and thus received no frames.
    pub(crate) fn resume(&mut self, now: Duration) {
        self.last_received = now;
        self.ignore_past_losses();
    }

    /// Accepts a frame by its counter; returns `false` if the frame is a replay. If the frame is accepted, updates the
    /// announced VLANs, and suspects the VLANs whose probes were missed.
    pub(crate) fn accept(&mut self, message: &Message, own: &VlanSet, now: Duration) -> bool {
        if !self.counters.accept(message.counter) {
            return false;
        }
        self.last_received = now;
        // The frame was overtaken by a later frame, so its announcement is outdated.
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

    /// Updates the common VLANs after the VLANs of this agent or of the peer have changed. In VLANs that are newly
    /// common, no probe is expected before the next round.
    pub(crate) fn update_common(&mut self, own: &VlanSet) {
        let common = self.announced.intersection(own);
        self.round.skip_until_next_round(&common.difference(&self.common));
        self.received = self.received.intersection(&common);
        self.unreceived.retain(&common);
        self.due_challenge = self.due_challenge.filter(|(_, vlan)| own.contains(*vlan));
        self.common = common;
    }

    /// Records that a frame of this round arrived in the VLAN in which it was sent.
    pub(crate) fn record_arrival(&mut self, vlan: VlanId, round: u32) {
        if !self.common.contains(vlan) {
            return;
        }
        self.round.record_arrival(vlan, round);
        self.received.insert(vlan);
        self.unreceived.clear(vlan);
        self.last_vlan = Some(vlan);
    }

    /// Records a report of the peer that it does not receive this agent in a VLAN. This agent then solicits the peer in
    /// this VLAN, to verify the opposite direction. If the peer's last frame arrived in this VLAN, the opposite
    /// direction is already verified.
    pub(crate) fn record_reported_loss(&mut self, vlan: VlanId) {
        if self.common.contains(vlan) && self.last_vlan != Some(vlan) {
            self.unreceived.request(vlan);
        }
    }

    /// Returns the common VLANs that are neither missing nor may be missing.
    pub(crate) fn received_vlans(&self) -> VlanSet {
        self.common.difference(&self.unreceived.possibly_missing())
    }

    /// Returns the VLANs that are solicited now.
    pub(crate) fn solicited_vlans(&self) -> impl ExactSizeIterator<Item = VlanId> + '_ {
        self.unreceived.solicited()
    }

    /// Returns true if solicitations or a challenge are in progress, or wait.
    pub(crate) fn is_soliciting(&self) -> bool {
        self.unreceived.is_soliciting() || self.due_challenge.is_some()
    }

    /// Returns the time when solicitations of the peer began last, if a VLAN that `excluded` does not contain waits for
    /// solicitations.
    pub(crate) fn waiting_since(&self, excluded: &VlanSet) -> Option<Duration> {
        self.session?;
        let is_waiting = !self.unreceived.waiting().difference(excluded).is_empty();
        is_waiting.then_some(self.last_begun)
    }

    /// Begins to solicit the peer in the next waiting VLAN that `excluded` does not contain.
    pub(crate) fn begin_solicitation(&mut self, now: Duration, excluded: &VlanSet) {
        self.last_begun = now;
        self.unreceived.begin_solicitation(now, excluded);
    }

    /// Ends the solicitations in the VLANs that are decided.
    pub(crate) fn end_solicitations(&mut self, now: Duration) {
        self.unreceived.end_solicitations(now, self.last_received);
    }

    /// Returns the time when the oldest of the due solicitations began; `None` if none is due.
    pub(crate) fn solicitation_due(&self) -> Option<Duration> {
        self.session?;
        self.unreceived.oldest_due()
    }

    /// Returns the oldest of the due solicitations. A second solicitation is sent in a VLAN in which the peer was received:
    /// a missing answer is evidence only if the peer answers the second solicitation.
    pub(crate) fn take_solicitation(&mut self, now: Duration) -> Vec<(VlanId, MessageKind)> {
        let Some(session) = self.session else { return Vec::new() };
        let Some((vlan, is_reported)) = self.unreceived.send_oldest(now) else { return Vec::new() };
        let control = self.last_vlan.filter(|vlan| self.common.contains(*vlan));
        let control_kind = if is_reported {
            MessageKind::ReportLoss { session, vlan }
        } else {
            MessageKind::Solicit { session }
        };
        let mut frames = vec![(vlan, MessageKind::Solicit { session })];
        frames.extend(control.map(|control| (control, control_kind)));
        frames
    }

    /// Returns the time since which a solicitation in a missing VLAN is due; `None` if none is due.
    pub(crate) fn recheck_due(&self, now: Duration) -> Option<Duration> {
        self.session?;
        self.unreceived.recheck_due(now)
    }

    /// Returns a solicitation in the next missing VLAN. The one after it is due after `interval`.
    pub(crate) fn take_recheck(
        &mut self,
        now: Duration,
        interval: Duration,
    ) -> Option<(VlanId, MessageKind)> {
        let session = self.session?;
        let vlan = self.unreceived.send_recheck(now, interval)?;
        Some((vlan, MessageKind::Solicit { session }))
    }
}
