//! Rounds of a peer, as this agent observes them. In each round, a peer probes its VLANs in ascending order, so a probe
//! proves that the peer has also sent the probes of all lower VLANs in this round.

use std::ops::Range;
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

/// End of the range of VLAN IDs, which are below 4095.
const VLAN_ID_END: u16 = 4095;

/// The current round of a peer.
#[derive(Debug, Default)]
pub(crate) struct PeerRound {
    round: u32,
    /// VLAN of the peer's last probe, and the time when it was received. `None` if this agent may have lost earlier
    /// probes: the next probe then proves nothing about earlier VLANs.
    last_probe: Option<(VlanId, Duration)>,
    /// VLANs in which the peer was received in this round, and VLANs in which no probe is expected before the next
    /// round.
    received_or_skipped: VlanSet,
}

impl PeerRound {
    /// Begins the observation again with the next probe, because this agent may have lost probes.
    pub(crate) fn restart(&mut self) {
        self.last_probe = None;
        self.received_or_skipped = VlanSet::default();
    }

    /// Declares that in these VLANs no probe is expected before the next round.
    pub(crate) fn skip_until_next_round(&mut self, vlans: &VlanSet) {
        if self.last_probe.is_some() {
            self.received_or_skipped.extend(vlans.iter());
        }
    }

    /// Returns the VLAN of the peer's last probe, and the time when it was received.
    pub(crate) const fn last_probe(&self) -> Option<(VlanId, Duration)> {
        self.last_probe
    }

    /// Records that a frame of `round` arrived in the VLAN in which it was sent.
    pub(crate) fn record_arrival(&mut self, vlan: VlanId, round: u32) {
        if round == self.round {
            self.received_or_skipped.insert(vlan);
        }
    }

    /// Records the newest probe of the peer. Returns the VLANs of `common` that the peer must have probed since its
    /// last probe, but in which it was not received.
    pub(crate) fn record_probe(
        &mut self,
        vlan: VlanId,
        round: u32,
        now: Duration,
        common: &VlanSet,
    ) -> Vec<VlanId> {
        let mut missed = Vec::new();
        let last = self.last_probe.replace((vlan, now)).map(|(last, _)| u16::from(last));
        if round == self.round {
            // If the peer's VLANs have changed, the peer has begun the round again, and this range is empty.
            if let Some(last) = last {
                missed.extend(self.unreceived(last + 1..vlan.into(), common));
            }
            return missed;
        }
        if let Some(last) = last
            && round == self.round.saturating_add(1)
        {
            missed.extend(self.unreceived(last + 1..VLAN_ID_END, common));
        }
        // If more than one round has ended since the last probe, it is unknown which VLANs the peer probed in these
        // rounds.
        self.round = round;
        self.received_or_skipped = VlanSet::default();
        if last.is_some() {
            missed.extend(self.unreceived(1..vlan.into(), common));
        }
        missed
    }

    fn unreceived<'a>(
        &'a self,
        ids: Range<u16>,
        common: &'a VlanSet,
    ) -> impl Iterator<Item = VlanId> + 'a {
        let vlans = ids.filter_map(|id| VlanId::try_from(id).ok());
        vlans.filter(|vlan| common.contains(*vlan) && !self.received_or_skipped.contains(*vlan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(id: u16) -> VlanId {
        VlanId::try_from(id).unwrap()
    }

    /// Records the arrival of probes, and returns the VLANs whose probes were missed.
    fn record(peer_round: &mut PeerRound, round: u32, ids: &[u16], common: &VlanSet) -> Vec<u16> {
        let mut missed = Vec::new();
        for id in ids {
            missed.extend(peer_round.record_probe(vlan(*id), round, Duration::ZERO, common));
            peer_round.record_arrival(vlan(*id), round);
        }
        missed.into_iter().map(u16::from).collect()
    }

    #[test]
    fn a_vlan_is_missed_as_soon_as_a_later_one_arrives() {
        let common: VlanSet = "10-14".parse().unwrap();
        let mut peer_round = PeerRound::default();
        assert_eq!(
            record(&mut peer_round, 3, &[12, 14], &common),
            [13],
            "10 and 11 precede the first received probe"
        );
        assert_eq!(record(&mut peer_round, 4, &[10, 12], &common), [11]);
        assert_eq!(
            record(&mut peer_round, 4, &[13], &common),
            [0; 0],
            "a VLAN is missed once per round"
        );
        assert_eq!(
            record(&mut peer_round, 5, &[11], &common),
            [14, 10],
            "14 ends the round before"
        );
        // All probes of the rounds 6 and 7 were lost, except the probe in VLAN 12.
        assert_eq!(record(&mut peer_round, 7, &[12], &common), [10, 11]);
        peer_round.restart();
        assert_eq!(record(&mut peer_round, 8, &[13], &common), [0; 0]);
        assert_eq!(record(&mut peer_round, 9, &[11], &common), [14, 10]);
    }

    #[test]
    fn a_restarted_round_and_new_vlans_are_no_losses() {
        let common: VlanSet = "10-14".parse().unwrap();
        let mut peer_round = PeerRound::default();
        record(&mut peer_round, 2, &[10, 11, 12], &common);
        assert_eq!(record(&mut peer_round, 2, &[10, 11], &common), [0; 0]);
        let common: VlanSet = "10-15".parse().unwrap();
        peer_round.skip_until_next_round(&"15".parse().unwrap());
        assert_eq!(record(&mut peer_round, 2, &[12, 13, 14], &common), [0; 0]);
        assert_eq!(record(&mut peer_round, 3, &[10], &common), [0; 0]);
        assert_eq!(record(&mut peer_round, 4, &[10], &common), [11, 12, 13, 14, 15]);
    }
}
