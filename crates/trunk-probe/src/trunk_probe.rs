//! Probe of one network of this host.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::answers::Answers;
use crate::codec::DecodeError;
use crate::key::ProbeKeys;
use crate::message::MessageKind;
use crate::peer::{Peer, SessionState};
use crate::schedule::{Place, Schedule};
use crate::sender::{Outgoing, Sender};
use crate::solicitor::Solicitor;
use crate::unverified_vlans::UnverifiedVlans;
use crate::verdict::{Leak, Verdict};

/// Maximum number of peers.
const MAX_PEERS: usize = 512;
/// Maximum number of solicitations and answers that one call of [`TrunkProbe::poll`] returns.
const MAX_BATCH: usize = 256;
/// Maximum time between two calls of `poll`. If more time passes, this agent was stopped and has lost frames, so missed
/// probes are no evidence.
const MAX_POLL_GAP: Duration = Duration::from_secs(5);
/// Time for which a leak is reported after it occurred last.
const LEAK_RETENTION: Duration = Duration::from_secs(300);
/// Minimum time between wake-ups, and the time between wake-ups during solicitations and fast rounds.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
/// Time after a peer's solicitation for which wake-ups are frequent, because more frames are expected.
const BUSY_TIME: Duration = Duration::from_millis(500);

/// Reason why a received frame provides no evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IgnoredFrame {
    /// The frame could not be decoded.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// The frame was sent by this node, or belongs to another network.
    #[error("the frame belongs to this node or to another network")]
    Foreign,
    /// The session of the sender has not proven yet that its frames are not replays.
    #[error("the session of the sender is not proven yet")]
    NotProven,
    /// The frame was received before.
    #[error("the frame is a replay")]
    Replayed,
    /// The frame was sent in a VLAN other than the one in which it arrived.
    #[error("the frame was sent in a VLAN other than the one in which it arrived")]
    Leaked,
    /// The frame is from a new peer, but the maximum number of peers is reached.
    #[error("there are too many agents on the segment")]
    TooManyPeers,
}

/// Probe of one network of this host. All times are from the same monotonic clock.
#[derive(Debug)]
pub struct TrunkProbe {
    sender: Sender,
    vlans: VlanSet,
    schedule: Schedule,
    peers: BTreeMap<String, Peer>,
    solicitor: Solicitor,
    answers: Answers,
    leak: Option<(Duration, Leak)>,
    unverified: UnverifiedVlans,
    busy_until: Duration,
    /// True if the evidence was complete at least once since this agent has had peers. From then on, a new peer does
    /// not make the verdict unknown.
    was_complete: bool,
    last_poll: Duration,
}

impl TrunkProbe {
    /// Creates the probe of a network. `session` must be a random number that no other probe of the fleet used.
    #[must_use]
    pub fn new(node: &str, network: &str, keys: ProbeKeys, session: u64, now: Duration) -> Self {
        Self {
            sender: Sender::new(node, network, keys, session),
            vlans: VlanSet::default(),
            schedule: Schedule::new(session),
            peers: BTreeMap::new(),
            solicitor: Solicitor::new(),
            answers: Answers::default(),
            leak: None,
            unverified: UnverifiedVlans::new(now),
            busy_until: now,
            was_complete: false,
            last_poll: now,
        }
    }

    /// Replaces the VLANs that this host carries on the network.
    pub fn set_vlans(&mut self, vlans: &VlanSet, now: Duration) {
        if self.vlans == *vlans {
            return;
        }
        self.vlans = vlans.clone();
        self.sender.set_vlans(vlans);
        self.schedule.set_vlans(vlans, now);
        self.peers.values_mut().for_each(|peer| peer.update_common(vlans));
        self.answers.retain(vlans);
    }

    /// Returns the frames to send now, and the time of the next call of `poll`. Call `poll` after all frames that have
    /// arrived were passed to `receive`.
    pub fn poll(&mut self, now: Duration) -> (Vec<Outgoing>, Duration) {
        if now.saturating_sub(self.last_poll) > MAX_POLL_GAP {
            self.peers.values_mut().for_each(|peer| peer.resume(now));
            self.unverified.restart(now);
        }
        self.last_poll = now;
        self.forget_unresponsive_peers(now);
        let Self { sender, solicitor, peers, .. } = &mut *self;
        let mut queue = solicitor.take(now, &sender.node, sender.counter + 1, peers);
        let free = MAX_BATCH.saturating_sub(queue.len());
        queue.extend(self.answers.take_due(now, free));
        let others = self.peers.values().filter(|peer| peer.has_session()).count();
        let agents = u32::try_from(1 + others).unwrap_or(u32::MAX);
        let place = self.place(now);
        self.schedule.set_agents(agents, place, now);
        let round = self.schedule.round();
        let mut frames: Vec<Outgoing> = Vec::with_capacity(queue.len());
        for (vlan, kind) in queue {
            frames.extend(self.sender.frame(vlan, kind, round));
        }
        for (vlan, round) in self.schedule.take_due(now) {
            frames.extend(self.sender.frame(vlan, MessageKind::Probe, round));
        }
        let wait = self.schedule.idle_wait(now);
        let is_busy = now < self.busy_until || self.schedule.is_fast() || !self.answers.is_empty();
        let wait = if is_busy {
            BUSY_INTERVAL
        } else if self.peers.values().any(Peer::is_soliciting) {
            wait.min(self.solicitor.wait(now))
        } else {
            wait
        };
        (frames, now + wait.max(BUSY_INTERVAL))
    }

    /// Removes unresponsive peers, and updates the VLANs in which no peer is received.
    fn forget_unresponsive_peers(&mut self, now: Duration) {
        let mut lost = VlanSet::default();
        self.peers.retain(|_, peer| {
            let is_unresponsive = peer.is_unresponsive(now);
            if is_unresponsive && peer.is_witness() {
                lost.extend(peer.common().iter());
            }
            !is_unresponsive
        });
        if lost.is_empty() && !self.unverified.is_due(now) {
            return;
        }
        if self.witness_count() == 0 {
            // If there is no peer, nothing can be concluded about any VLAN.
            self.unverified = UnverifiedVlans::new(now);
        } else {
            let current = self.vlans_without_peers();
            self.unverified.update(now, &current, &lost);
        }
    }

    /// Returns the VLANs of this agent that no peer announces.
    fn vlans_without_peers(&self) -> VlanSet {
        let mut rest = self.vlans.clone();
        for peer in self.peers.values().filter(|peer| peer.is_witness()) {
            if rest.is_empty() {
                break;
            }
            rest = rest.difference(peer.common());
        }
        rest
    }

    /// Returns the place of this agent among the agents of the segment; `None` if this agent is the first agent, or if
    /// the first agent probes other VLANs.
    fn place(&self, now: Duration) -> Option<Place> {
        let lower = self.peers.range(..self.sender.node.clone());
        let mut lower = lower.map(|(_, peer)| peer).filter(|peer| peer.has_session());
        let (first_agent_vlan, at) = lower.next()?.position_in(&self.vlans)?;
        let rank = u32::try_from(1 + lower.count()).ok()?;
        Some(Place { first_agent_vlan, first_agent_age: now.saturating_sub(at), rank })
    }

    /// Ignores all probes that were missed until now. To be called after the caller has lost frames.
    pub fn ignore_past_losses(&mut self) {
        self.peers.values_mut().for_each(Peer::ignore_past_losses);
    }

    /// Processes a received frame. `arrival_vlan` is the VLAN in which the frame arrived; `None` if the frame was
    /// untagged.
    ///
    /// # Errors
    ///
    /// Returns the reason why the frame provides no evidence.
    pub fn receive(
        &mut self,
        now: Duration,
        arrival_vlan: Option<VlanId>,
        payload: &[u8],
    ) -> Result<(), IgnoredFrame> {
        let Sender { node, network, codec, session: own_session, .. } = &mut self.sender;
        let message = codec.decode(payload)?;
        if message.network != network || message.node == node {
            return Err(IgnoredFrame::Foreign);
        }
        let (vlan, round) = (message.vlan, message.round);
        let is_in_own_vlan = arrival_vlan == Some(vlan) && self.vlans.contains(vlan);
        if !self.peers.contains_key(message.node) {
            if self.peers.len() >= MAX_PEERS {
                return Err(IgnoredFrame::TooManyPeers);
            }
            self.peers.insert(message.node.to_owned(), Peer::default());
        }
        let peer = self.peers.get_mut(message.node).ok_or(IgnoredFrame::TooManyPeers)?;
        let state = peer.check_session(&message, *own_session, now);
        let is_proven = matches!(state, SessionState::Known | SessionState::Proven);
        if is_proven && !peer.accept(&message, &self.vlans, now) {
            return Err(IgnoredFrame::Replayed);
        }
        // A solicitation is answered even if the sender's session is not proven. Otherwise two agents whose sessions
        // are both unproven would wait for each other's answers.
        if message.kind.solicited_session() == Some(*own_session) && is_in_own_vlan {
            self.busy_until = now + BUSY_TIME;
            self.answers.add(vlan, message.session, message.counter);
        }
        if !is_proven && is_in_own_vlan {
            peer.record_unproven_frame(now);
        }
        match state {
            SessionState::Known => {}
            SessionState::Proven => self.schedule.run_fast_rounds(now),
            SessionState::Challenged => return Err(IgnoredFrame::NotProven),
            SessionState::ChallengeDue => {
                if is_in_own_vlan {
                    peer.request_challenge(message.session, vlan);
                    self.busy_until = now + BUSY_TIME;
                }
                return Err(IgnoredFrame::NotProven);
            }
        }
        if arrival_vlan != Some(vlan) {
            let leak = Leak { from: message.node.to_owned(), sent: vlan, received: arrival_vlan };
            self.record_leak(now, leak);
            return Err(IgnoredFrame::Leaked);
        }
        if let MessageKind::ReportLoss { session, vlan } = message.kind
            && session == *own_session
        {
            peer.record_reported_loss(vlan);
        }
        peer.record_arrival(vlan, round);
        Ok(())
    }

    /// Records a leak. A recorded leak is replaced only if it no longer occurs, so that the status does not change with
    /// each of many different leaks.
    fn record_leak(&mut self, now: Duration, leak: Leak) {
        let is_other = |(at, known): &(Duration, Leak)| {
            *known != leak && now.saturating_sub(*at) < LEAK_RETENTION
        };
        if !self.leak.as_ref().is_some_and(is_other) {
            self.leak = Some((now, leak));
        }
    }

    /// Returns the verdict on the VLANs of this host.
    pub fn verdict(&mut self) -> Verdict {
        let witnesses = || self.peers.iter().filter(|(_, peer)| peer.is_witness());
        let is_complete = witnesses().all(|(_, peer)| peer.is_complete())
            && self.vlans_without_peers().is_empty();
        let has_witness = witnesses().next().is_some();
        let vlans: VlanSet = witnesses().flat_map(|(_, peer)| peer.missing().iter()).collect();
        let from = witnesses().filter(|(_, peer)| !peer.missing().is_empty());
        let from: Vec<String> = from.map(|(name, _)| name.clone()).collect();
        self.was_complete = has_witness && (self.was_complete || is_complete);
        if !vlans.is_empty() {
            Verdict::Missing { vlans, from }
        } else if !self.unverified.vlans().is_empty() {
            Verdict::Unverified { vlans: self.unverified.vlans().clone() }
        } else if self.was_complete {
            Verdict::Verified
        } else {
            Verdict::Unknown
        }
    }

    /// Returns true if the verdict is that VLANs are missing.
    #[must_use]
    pub fn has_missing_vlans(&self) -> bool {
        self.peers.values().any(|peer| peer.is_witness() && !peer.missing().is_empty())
    }

    /// Returns the VLANs in which no peer is received, although peers are received in other VLANs. A VLAN that is missing
    /// for one peer, and in which the last probes of all other peers did not arrive, is such a VLAN: with many peers it
    /// takes long to solicit each of them.
    #[must_use]
    pub fn unverified_vlans(&self) -> VlanSet {
        let witnesses = || self.peers.values().filter(|peer| peer.is_witness());
        let mut cut_off: VlanSet = witnesses().flat_map(|peer| peer.missing().iter()).collect();
        for peer in witnesses() {
            if cut_off.is_empty() {
                break;
            }
            cut_off = cut_off.difference(&peer.received_vlans());
        }
        cut_off.extend(self.unverified.vlans().iter());
        cut_off
    }

    /// Returns the number of peers that have VLANs in common with this agent.
    #[must_use]
    pub fn witness_count(&self) -> usize {
        self.peers.values().filter(|peer| peer.is_witness()).count()
    }

    /// Returns a leak that occurred in the last five minutes; `None` if there was none.
    #[must_use]
    pub fn leak(&self, now: Duration) -> Option<&Leak> {
        let (at, leak) = self.leak.as_ref()?;
        (now.saturating_sub(*at) < LEAK_RETENTION).then_some(leak)
    }
}
