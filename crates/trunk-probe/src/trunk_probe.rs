//! Probe of one network of this host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::codec::{Codec, DecodeError};
use crate::key::ProbeKeys;
use crate::message::{Kind, Message};
use crate::peer::{Peer, SessionState};
use crate::schedule::Schedule;
use crate::solicitation::SOLICITATION_INTERVAL;
use crate::verdict::{Leak, Verdict};
use crate::vlan_list;

/// Maximum number of peers.
const MAX_PEERS: usize = 512;
/// Maximum number of frames that wait to be sent, and that one call returns.
const MAX_QUEUE: usize = 1024;
const MAX_BATCH: usize = 256;
/// Shortest time between two answers in one VLAN, so that replayed solicitations do not multiply frames.
const ANSWER_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two calls of `poll` after which this agent was stopped: frames were lost, and peers are not at fault.
const PAUSE: Duration = Duration::from_secs(5);
/// Time after which a leak is forgotten.
const LEAK_MEMORY: Duration = Duration::from_secs(300);
/// Longest time between two wake-ups.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A frame to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// VLAN of the frame.
    pub vlan: VlanId,
    /// Payload after the Ethernet header.
    pub payload: Vec<u8>,
}

/// Reason why a received frame is no evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IgnoredFrame {
    /// The frame could not be decoded.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// The frame was sent by this node, or for another network.
    #[error("the frame belongs to this node or to another network")]
    Foreign,
    /// The session of the sender is not proven yet.
    #[error("the session of the sender is not proven yet")]
    NotProven,
    /// The frame was received before.
    #[error("the frame is a replay")]
    Replayed,
    /// The frame was sent in another VLAN.
    #[error("the frame was sent in another VLAN")]
    Leaked,
    /// There are too many peers.
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
    queue: VecDeque<(VlanId, Kind)>,
    answered: BTreeMap<VlanId, Duration>,
    leak: Option<(Duration, Leak)>,
    /// True if the evidence was complete once. A peer that joins later does not make the verdict unknown.
    was_complete: bool,
    last_poll: Duration,
}

/// Creates frames.
#[derive(Debug)]
struct Sender {
    node: String,
    network: String,
    codec: Codec,
    session: u64,
    counter: u64,
    encoded_vlans: Vec<u8>,
}

impl Sender {
    fn frame(&mut self, vlan: VlanId, kind: Kind, round: u32) -> Option<Outgoing> {
        self.counter += 1;
        let payload = self.codec.encode(&Message {
            kind,
            session: self.session,
            counter: self.counter,
            vlan,
            round,
            node: &self.node,
            network: &self.network,
            vlans: &self.encoded_vlans,
        })?;
        Some(Outgoing { vlan, payload })
    }
}

impl TrunkProbe {
    /// Creates the probe of a network. `session` must be a random number that no other probe of the fleet used.
    #[must_use]
    pub fn new(node: &str, network: &str, keys: ProbeKeys, session: u64, now: Duration) -> Self {
        Self {
            sender: Sender {
                node: node.to_owned(),
                network: network.to_owned(),
                codec: Codec::new(keys),
                session,
                counter: 0,
                encoded_vlans: vlan_list::encode(&VlanSet::default()),
            },
            vlans: VlanSet::default(),
            schedule: Schedule::new(session),
            peers: BTreeMap::new(),
            queue: VecDeque::new(),
            answered: BTreeMap::new(),
            leak: None,
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
        self.sender.encoded_vlans = vlan_list::encode(vlans);
        self.schedule.set_vlans(vlans, now);
        self.peers.values_mut().for_each(|peer| peer.update_common(vlans));
        self.queue.retain(|(vlan, _)| vlans.contains(*vlan));
        self.answered.clear();
    }

    /// Returns the frames to send now, and the time of the next call.
    pub fn poll(&mut self, now: Duration) -> (Vec<Outgoing>, Duration) {
        if now.saturating_sub(self.last_poll) > PAUSE {
            self.peers.values_mut().for_each(|peer| peer.resume(now));
        }
        self.last_poll = now;
        self.peers.retain(|_, peer| !peer.is_silent(now));
        let due: BTreeSet<VlanId> =
            self.peers.values_mut().flat_map(|peer| peer.due_solicitations(now)).collect();
        for vlan in due {
            self.enqueue(vlan, Kind::Solicit);
        }
        let agents = 1 + self.peers.values().filter(|peer| peer.has_session()).count();
        let agents = u32::try_from(agents).unwrap_or(u32::MAX);
        let round = self.schedule.round();
        let count = self.queue.len().min(MAX_BATCH);
        let mut frames: Vec<Outgoing> = Vec::with_capacity(count);
        for (vlan, kind) in self.queue.drain(..count) {
            frames.extend(self.sender.frame(vlan, kind, round));
        }
        for (vlan, round) in self.schedule.take_due(now, agents) {
            frames.extend(self.sender.frame(vlan, Kind::Probe, round));
        }
        (frames, self.next_wake(now))
    }

    fn next_wake(&self, now: Duration) -> Duration {
        let mut next = self.schedule.next_wake(now).min(now + MAX_WAIT);
        if self.peers.values().any(Peer::has_suspicion) {
            next = next.min(now + SOLICITATION_INTERVAL);
        }
        if self.queue.is_empty() { next } else { next.min(now + Duration::from_millis(1)) }
    }

    /// Returns true if frames wait to be sent, so that the caller need not wait for the time of the next call.
    #[must_use]
    pub fn has_queued_frames(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Processes a received frame. `outer` is the VLAN in which the frame arrived, `None` if it was untagged.
    ///
    /// # Errors
    /// The reason why the frame is no evidence.
    pub fn receive(
        &mut self,
        now: Duration,
        outer: Option<VlanId>,
        payload: &[u8],
    ) -> Result<(), IgnoredFrame> {
        let Sender { node, network, codec, session: own_session, counter, .. } = &mut self.sender;
        let message = codec.decode(payload)?;
        if message.network != network || message.node == node {
            return Err(IgnoredFrame::Foreign);
        }
        let (vlan, round) = (message.vlan, message.round);
        let is_in_own_vlan = outer == Some(vlan) && self.vlans.contains(vlan);
        if message.kind == Kind::Solicit && is_in_own_vlan {
            let last = self.answered.get(&vlan);
            if last.is_none_or(|last| now.saturating_sub(*last) >= ANSWER_INTERVAL)
                && self.queue.len() < MAX_QUEUE
            {
                self.answered.insert(vlan, now);
                let answer = Kind::Answer { session: message.session, counter: message.counter };
                self.queue.push_back((vlan, answer));
            }
        }
        if !self.peers.contains_key(message.node) {
            if self.peers.len() >= MAX_PEERS {
                return Err(IgnoredFrame::TooManyPeers);
            }
            self.peers.insert(message.node.to_owned(), Peer::default());
        }
        let peer = self.peers.get_mut(message.node).ok_or(IgnoredFrame::TooManyPeers)?;
        match peer.check_session(&message, *own_session, now) {
            SessionState::Known => {}
            SessionState::Proven => self.schedule.run_fast_rounds(now),
            SessionState::Challenged => return Err(IgnoredFrame::NotProven),
            SessionState::ChallengeDue => {
                if is_in_own_vlan && self.queue.len() < MAX_QUEUE {
                    // Every later frame has a higher counter.
                    peer.record_challenge(message.session, *counter + 1, now);
                    self.queue.push_back((vlan, Kind::Solicit));
                }
                return Err(IgnoredFrame::NotProven);
            }
        }
        if !peer.accept(&message, &self.vlans, now) {
            return Err(IgnoredFrame::Replayed);
        }
        if outer != Some(vlan) {
            let leak = Leak { from: message.node.to_owned(), sent: vlan, received: outer };
            self.leak = Some((now, leak));
            return Err(IgnoredFrame::Leaked);
        }
        peer.record_arrival(vlan, round);
        Ok(())
    }

    /// Returns the verdict.
    pub fn verdict(&mut self) -> Verdict {
        let witnesses = || self.peers.iter().filter(|(_, peer)| peer.is_witness());
        let is_complete = witnesses().all(|(_, peer)| peer.is_complete());
        let has_witness = witnesses().next().is_some();
        let vlans: VlanSet = witnesses().flat_map(|(_, peer)| peer.missing()).collect();
        let from = witnesses().filter(|(_, peer)| peer.missing().next().is_some());
        let from: Vec<String> = from.map(|(name, _)| name.clone()).collect();
        self.was_complete = has_witness && (self.was_complete || is_complete);
        if !vlans.is_empty() {
            Verdict::Missing { vlans, from }
        } else if self.was_complete {
            Verdict::Verified
        } else {
            Verdict::Unknown
        }
    }

    /// Returns the number of other agents with VLANs in common.
    #[must_use]
    pub fn witness_count(&self) -> usize {
        self.peers.values().filter(|peer| peer.is_witness()).count()
    }

    /// Returns a leak of the last minutes.
    #[must_use]
    pub fn leak(&self, now: Duration) -> Option<&Leak> {
        let (at, leak) = self.leak.as_ref()?;
        (now.saturating_sub(*at) < LEAK_MEMORY).then_some(leak)
    }

    fn enqueue(&mut self, vlan: VlanId, kind: Kind) {
        if self.queue.len() < MAX_QUEUE {
            self.queue.push_back((vlan, kind));
        }
    }
}
