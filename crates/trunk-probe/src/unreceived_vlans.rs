//! VLANs in which a peer's probes are not received. Such a VLAN is first suspected, then solicited, then missing.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::solicitation::{Solicitation, SolicitationStep};

/// Maximum number of VLANs that are solicited because the peer has reported a loss in them.
const MAX_REQUESTED: usize = 32;
/// Time between two solicitations in missing VLANs. It is short, so that this agent soon detects that the switches
/// carry a VLAN again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// VLANs in which a peer's probes are not received.
#[derive(Debug, Default)]
pub(crate) struct UnreceivedVlans {
    /// VLANs in which a probe was missed, and that are not solicited yet.
    suspected: VlanSet,
    solicited: BTreeMap<VlanId, Solicitation>,
    missing: VlanSet,
    /// The missing VLAN that was solicited last; `None` if none was.
    rechecked: Option<VlanId>,
    /// Time of the next solicitation in a missing VLAN.
    next_recheck: Duration,
}

/// A solicitation that must be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueSolicitation {
    /// A solicitation in a VLAN that may be missing.
    Undecided {
        vlan: VlanId,
        /// True if the solicitation also reports to the peer that its probes do not arrive.
        is_reported: bool,
    },
    /// A solicitation in a missing VLAN, to detect whether the switches carry the VLAN again.
    Recheck(VlanId),
}

impl UnreceivedVlans {
    /// Adds a VLAN in which a probe was missed to the suspected VLANs.
    pub(crate) fn suspect(&mut self, vlan: VlanId) {
        if !self.missing.contains(vlan) && !self.solicited.contains_key(&vlan) {
            self.suspected.insert(vlan);
        }
    }

    /// Solicits the peer in a VLAN, because the peer has reported that it does not receive this agent in this VLAN. The
    /// solicitation contains no report, because the peer already knows of the loss.
    pub(crate) fn solicit_on_request(&mut self, vlan: VlanId) {
        if !self.missing.contains(vlan) && self.solicited.len() < MAX_REQUESTED {
            self.solicited.entry(vlan).or_insert_with(|| Solicitation::new(false));
        }
    }

    /// Removes a VLAN, because the peer was received in this VLAN.
    pub(crate) fn clear(&mut self, vlan: VlanId) {
        self.suspected.remove(vlan);
        self.solicited.remove(&vlan);
        self.missing.remove(vlan);
    }

    /// Removes all VLANs that are suspected or solicited, but not missing.
    pub(crate) fn clear_unconfirmed(&mut self) {
        self.suspected = VlanSet::default();
        self.solicited.clear();
    }

    /// Removes all VLANs that `vlans` does not contain.
    pub(crate) fn retain(&mut self, vlans: &VlanSet) {
        self.suspected = self.suspected.intersection(vlans);
        self.solicited.retain(|vlan, _| vlans.contains(*vlan));
        self.missing = self.missing.intersection(vlans);
    }

    /// Returns the missing VLANs.
    pub(crate) const fn missing(&self) -> &VlanSet {
        &self.missing
    }

    /// Returns true if any VLAN is suspected or solicited.
    pub(crate) fn is_soliciting(&self) -> bool {
        !self.solicited.is_empty() || !self.suspected.is_empty()
    }

    /// Returns the solicitations to send now. At most `limit` VLANs are solicited at the same time; the other suspected
    /// VLANs wait. `last_received` is the time of the last frame of the peer in any VLAN.
    pub(crate) fn take_due(
        &mut self,
        now: Duration,
        last_received: Duration,
        limit: usize,
    ) -> Vec<DueSolicitation> {
        let free = limit.saturating_sub(self.solicited.len());
        let next: Vec<VlanId> = self.suspected.iter().take(free).collect();
        for vlan in next {
            self.suspected.remove(vlan);
            self.solicited.insert(vlan, Solicitation::new(true));
        }
        let mut due = Vec::new();
        let missing = &mut self.missing;
        self.solicited.retain(|vlan, solicitation| match solicitation.step(now, last_received) {
            SolicitationStep::Send => {
                let is_reported = solicitation.is_reported;
                due.push(DueSolicitation::Undecided { vlan: *vlan, is_reported });
                true
            }
            SolicitationStep::Wait => true,
            SolicitationStep::Missing => {
                missing.insert(*vlan);
                false
            }
        });
        if now >= self.next_recheck && !self.missing.is_empty() {
            self.next_recheck = now + RECHECK_INTERVAL;
            let mut missing = self.missing.iter();
            let next = missing.find(|vlan| Some(*vlan) > self.rechecked);
            self.rechecked = next.or_else(|| self.missing.iter().next());
            due.extend(self.rechecked.map(DueSolicitation::Recheck));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_vlans_are_solicited_at_a_time_and_missing_ones_in_turn() {
        let mut unreceived = UnreceivedVlans::default();
        let vlans: VlanSet = "100-109".parse().unwrap();
        vlans.iter().for_each(|vlan| unreceived.suspect(vlan));
        let (mut now, mut rechecked) = (Duration::from_secs(5), Vec::new());
        for _ in 0..400 {
            now += Duration::from_millis(100);
            // The peer is alive, because it is received in other VLANs.
            let due = unreceived.take_due(now, now, 4);
            let solicited =
                due.iter().filter(|due| matches!(due, DueSolicitation::Undecided { .. }));
            assert!(solicited.count() <= 4, "{due:?}");
            rechecked.extend(due.iter().filter_map(|due| match due {
                DueSolicitation::Recheck(vlan) => Some(*vlan),
                DueSolicitation::Undecided { .. } => None,
            }));
        }
        assert_eq!(unreceived.missing(), &vlans);
        assert!(!unreceived.is_soliciting());
        assert_eq!(rechecked.into_iter().collect::<VlanSet>(), vlans);
        vlans.iter().for_each(|vlan| unreceived.clear(vlan));
        assert!(unreceived.missing().is_empty());
    }
}
