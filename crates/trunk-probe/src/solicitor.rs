//! Solicitations of one agent to all its peers, within the budget of the agent.
//!
//! The budget of an agent on a large segment is small: with 100 agents, 30 frames per second. Challenges of sessions,
//! solicitations in undecided VLANs, and rechecks of missing VLANs therefore take turns, and within each of them the peers
//! take turns, so that none of them waits without end.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::message::MessageKind;
use crate::peer::Peer;
use crate::solicitation::SOLICITATION_INTERVAL;
use crate::solicitation_budget::SolicitationBudget;

/// Number of VLANs that may be solicited at the same time even if the budget is small, so that a peer that is not
/// received, or has not woken up yet, does not delay the others.
const MIN_SOLICITED: usize = 4;
/// Number of chosen VLANs of which one is chosen regardless of its state, so that none waits without end. The others are
/// VLANs that are neither missing nor solicited for any peer, if any wait.
const ANY_VLAN_PERIOD: u32 = 4;
/// Time between two solicitations of one peer in missing VLANs. It is short, so that this agent soon detects that the
/// switches carry a VLAN again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Number of peers above which missing VLANs are solicited less often: an agent sends about four such frames per second.
/// With more agents, one solicitation or its answer shows many agents that the switches carry a VLAN again.
const MAX_RECHECKED_PEERS: usize = 8;

/// Reason for a solicitation.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// A session must prove that its frames are not replays.
    Challenge,
    /// A VLAN of a peer may be missing.
    Undecided,
    /// The switches may carry a missing VLAN again.
    Recheck,
}

/// Number of reasons.
const TURNS: usize = 3;

/// Chooses the solicitations of one agent.
#[derive(Debug)]
pub(crate) struct Solicitor {
    budget: SolicitationBudget,
    last_turn: Turn,
    /// Number of VLANs whose solicitations have begun.
    begun: u32,
}

impl Solicitor {
    pub(crate) fn new() -> Self {
        Self { budget: SolicitationBudget::new(), last_turn: Turn::Recheck, begun: 0 }
    }

    /// Returns the solicitations to send now. `node` is the name of this agent's Node, and `counter` a lower bound of the
    /// counters of the frames.
    pub(crate) fn take(
        &mut self,
        now: Duration,
        node: &str,
        counter: u64,
        peers: &mut BTreeMap<String, Peer>,
    ) -> Vec<(VlanId, MessageKind)> {
        // Peers whose sessions have proven nothing count too: after a start, this is every peer.
        self.budget.set_agents(1 + peers.len());
        peers.values_mut().for_each(|peer| peer.end_solicitations(now));
        let mut frames = Vec::new();
        while self.budget.wait(now).is_zero() {
            let next = self.next(now, node, counter, peers);
            if next.is_empty() {
                break;
            }
            self.budget.spend(next.len(), now);
            frames.extend(next);
        }
        frames
    }

    /// Returns the time until the next solicitations may be sent.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        self.budget.wait(now)
    }

    /// Returns the next solicitations for one peer; nothing if none is due.
    fn next(
        &mut self,
        now: Duration,
        node: &str,
        counter: u64,
        peers: &mut BTreeMap<String, Peer>,
    ) -> Vec<(VlanId, MessageKind)> {
        for _ in 0..TURNS {
            let frames: Vec<_> = match self.last_turn {
                Turn::Recheck => {
                    self.last_turn = Turn::Challenge;
                    let peer = next_in_turn(peers, node, Peer::challenge_due);
                    let challenge = peer.and_then(|peer| peer.take_challenge(counter, now));
                    challenge.into_iter().collect()
                }
                Turn::Challenge => {
                    self.last_turn = Turn::Undecided;
                    if peers.values().all(|peer| peer.solicitation_due().is_none()) {
                        self.begin_solicitation(now, node, peers);
                    }
                    let peer = next_in_turn(peers, node, Peer::solicitation_due);
                    peer.map_or_else(Vec::new, |peer| peer.take_solicitation(now))
                }
                Turn::Undecided => {
                    self.last_turn = Turn::Recheck;
                    let factor = u32::try_from(peers.len().div_ceil(MAX_RECHECKED_PEERS));
                    let interval = RECHECK_INTERVAL.saturating_mul(factor.unwrap_or(u32::MAX));
                    let peer = next_in_turn(peers, node, |peer| peer.recheck_due(now));
                    let recheck = peer.and_then(|peer| peer.take_recheck(now, interval));
                    recheck.into_iter().collect()
                }
            };
            if !frames.is_empty() {
                return frames;
            }
        }
        Vec::new()
    }

    /// Begins to solicit a peer in a waiting VLAN, unless as many VLANs are solicited as the budget permits. A VLAN that is
    /// missing or solicited already, for any peer, usually comes last: this agent soon reports all missing VLANs, even if it
    /// needs long to find out from which peers they do not arrive.
    fn begin_solicitation(
        &mut self,
        now: Duration,
        node: &str,
        peers: &mut BTreeMap<String, Peer>,
    ) {
        let solicited: usize = peers.values().map(|peer| peer.solicited_vlans().len()).sum();
        if solicited >= self.budget.groups_in(SOLICITATION_INTERVAL).max(MIN_SOLICITED) {
            return;
        }
        let mut known = VlanSet::default();
        if !self.begun.is_multiple_of(ANY_VLAN_PERIOD) {
            for peer in peers.values() {
                known.extend(peer.missing().iter());
                known.extend(peer.solicited_vlans());
            }
        }
        for excluded in [known, VlanSet::default()] {
            let last_begun = |peer: &Peer| peer.waiting_since(&excluded);
            if let Some(peer) = next_in_turn(peers, node, last_begun) {
                peer.begin_solicitation(now, &excluded);
                self.begun = self.begun.wrapping_add(1);
                return;
            }
        }
    }
}

/// Returns the peer whose last turn was the longest time ago; `last_turn` returns `None` for a peer that needs no turn. Of
/// several such peers, returns the first after this agent in the order of names, so that agents with the same peers begin
/// with different peers.
fn next_in_turn<'p>(
    peers: &'p mut BTreeMap<String, Peer>,
    node: &str,
    last_turn: impl Fn(&Peer) -> Option<Duration>,
) -> Option<&'p mut Peer> {
    let waiting = peers.iter_mut().filter_map(|(name, peer)| {
        let last_turn = last_turn(peer)?;
        Some(((last_turn, name.as_str() < node), peer))
    });
    waiting.min_by_key(|(key, _)| *key).map(|(_, peer)| peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns peers with these names that must each be challenged.
    fn unproven_peers(names: &[&str]) -> BTreeMap<String, Peer> {
        let mut peers = BTreeMap::new();
        for (name, session) in names.iter().zip(1..) {
            let mut peer = Peer::default();
            peer.request_challenge(session, VlanId::try_from(100).unwrap());
            peers.insert((*name).to_owned(), peer);
        }
        peers
    }

    fn sessions(frames: Vec<(VlanId, MessageKind)>) -> Vec<u64> {
        frames.into_iter().filter_map(|(_, kind)| kind.solicited_session()).collect()
    }

    #[test]
    fn challenges_begin_after_the_own_name_and_no_peer_waits_without_end() {
        let mut peers = unproven_peers(&["a", "b", "d", "e"]);
        let mut solicitor = Solicitor::new();
        let mut now = Duration::from_secs(1);
        assert_eq!(sessions(solicitor.take(now, "c", 1, &mut peers)), [3, 4, 1, 2]);
        assert!(peers.values().all(|peer| !peer.is_soliciting()));
        // Frames of `d` and `e` arrive twice as often as those of `a` and `b`. The budget permits one challenge per step.
        let mut challenged = Vec::new();
        for step in 0..4_u64 {
            now += Duration::from_millis(10);
            for (peer, session) in peers.values_mut().zip(1..) {
                if session > 2 || step % 2 == 0 {
                    peer.request_challenge(session, VlanId::try_from(100).unwrap());
                }
            }
            let next = solicitor.next(now, "c", 1, &mut peers);
            challenged.extend(sessions(next));
        }
        assert_eq!(challenged, [3, 4, 1, 2]);
    }

    /// A replayed session of a peer cannot displace the session that the peer has now, however often it is received.
    #[test]
    fn sessions_of_one_peer_are_challenged_in_turn() {
        let vlan = VlanId::try_from(100).unwrap();
        let mut peers = BTreeMap::from([("a".to_owned(), Peer::default())]);
        let mut solicitor = Solicitor::new();
        let mut challenged = Vec::new();
        for second in 1..5 {
            let peer = peers.get_mut("a").unwrap();
            [7, 7, 8, 7].into_iter().for_each(|session| peer.request_challenge(session, vlan));
            let frames = solicitor.take(Duration::from_secs(second), "b", 1, &mut peers);
            challenged.extend(sessions(frames));
        }
        assert_eq!(challenged, [7, 8, 7, 8]);
    }

    #[test]
    fn budget_is_shared_by_all_agents_of_the_segment() {
        let names: Vec<String> = (0..99).map(|index| format!("host-{index:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut peers = unproven_peers(&names);
        let mut solicitor = Solicitor::new();
        let mut count_in_second = |second: u64, peers: &mut BTreeMap<String, Peer>| {
            let wake_up = |index: u64| Duration::from_millis(1000 * second + 10 * index);
            let frames =
                (0..100).map(|index| solicitor.take(wake_up(index), "host", 1, peers).len());
            frames.sum::<usize>()
        };
        let first = count_in_second(1, &mut peers);
        assert!((20..=32).contains(&first), "{first}");
        let others: usize = (2..6).map(|second| count_in_second(second, &mut peers)).sum();
        assert_eq!(first + others, 99);
        assert!(peers.values().all(|peer| !peer.is_soliciting()));
    }
}
