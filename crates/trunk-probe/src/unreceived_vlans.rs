//! VLANs in which a peer's probes are not received. Such a VLAN is first suspected, then solicited, then missing.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::solicitation::{Solicitation, SolicitationStep};
use crate::solicitation_limits::SolicitationLimits;

/// Maximum number of VLANs that are requested at the same time.
const MAX_REQUESTED: usize = 32;

/// VLANs in which a peer's probes are not received.
#[derive(Debug, Default)]
pub(crate) struct UnreceivedVlans {
    /// VLANs in which a probe was missed, and that are not solicited yet.
    suspected: VlanSet,
    /// VLANs in which the peer has reported a loss, and that are not solicited yet.
    requested: VlanSet,
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

    /// Adds a VLAN to the requested VLANs, because the peer has reported that it does not receive this agent in this
    /// VLAN. Unless a probe of the peer is missed too, the solicitation contains no report, because the peer already
    /// knows of the loss.
    pub(crate) fn request(&mut self, vlan: VlanId) {
        let is_known = self.missing.contains(vlan) || self.solicited.contains_key(&vlan);
        if !is_known && self.requested.len() < MAX_REQUESTED {
            self.requested.insert(vlan);
        }
    }

    /// Removes a VLAN, because the peer was received in this VLAN.
    pub(crate) fn clear(&mut self, vlan: VlanId) {
        self.suspected.remove(vlan);
        self.requested.remove(vlan);
        self.solicited.remove(&vlan);
        self.missing.remove(vlan);
    }

    /// Removes all VLANs that are suspected, requested or solicited, but not missing.
    pub(crate) fn clear_unconfirmed(&mut self) {
        self.suspected = VlanSet::default();
        self.requested = VlanSet::default();
        self.solicited.clear();
    }

    /// Removes all VLANs that `vlans` does not contain.
    pub(crate) fn retain(&mut self, vlans: &VlanSet) {
        self.suspected = self.suspected.intersection(vlans);
        self.requested = self.requested.intersection(vlans);
        self.solicited.retain(|vlan, _| vlans.contains(*vlan));
        self.missing = self.missing.intersection(vlans);
    }

    /// Returns the missing VLANs.
    pub(crate) const fn missing(&self) -> &VlanSet {
        &self.missing
    }

    /// Returns the VLANs in which the peer's last probe did not arrive: the missing VLANs, and the VLANs that may be
    /// missing.
    pub(crate) fn possibly_missing(&self) -> VlanSet {
        let mut vlans = self.missing.clone();
        vlans.extend(self.suspected.iter());
        let solicited = self.solicited.iter().filter(|(_, solicitation)| solicitation.is_reported);
        vlans.extend(solicited.map(|(vlan, _)| *vlan));
        vlans
    }

    /// Returns the VLANs that are solicited now.
    pub(crate) fn solicited(&self) -> impl Iterator<Item = VlanId> + '_ {
        self.solicited.keys().copied()
    }

    /// Returns the number of VLANs that were solicited more than once.
    pub(crate) fn repeated_count(&self) -> usize {
        self.solicited.values().filter(|solicitation| solicitation.is_repeated()).count()
    }

    /// Returns true if any VLAN waits for [`Self::begin_solicitation`].
    pub(crate) fn has_waiting(&self) -> bool {
        !self.suspected.is_empty() || !self.requested.is_empty()
    }

    /// Returns true if any VLAN is solicited, or waits for it.
    pub(crate) fn is_soliciting(&self) -> bool {
        !self.solicited.is_empty() || self.has_waiting()
    }

    /// Begins to solicit the peer in one of the waiting VLANs; in a VLAN of `known` only if no other VLAN waits. Returns
    /// the VLAN; `None` if no VLAN waits.
    pub(crate) fn begin_solicitation(&mut self, known: &VlanSet) -> Option<VlanId> {
        let waiting = || self.suspected.iter().chain(self.requested.iter());
        let vlan = waiting().find(|vlan| !known.contains(*vlan)).or_else(|| waiting().next())?;
        let is_reported = self.suspected.remove(vlan);
        self.requested.remove(vlan);
        self.solicited.insert(vlan, Solicitation::new(is_reported));
        Some(vlan)
    }

    /// Returns the solicitations to send now. `last_received` is the time of the last frame of the peer in any VLAN.
    pub(crate) fn take_due(
        &mut self,
        now: Duration,
        last_received: Duration,
        limits: SolicitationLimits,
    ) -> Vec<DueSolicitation> {
        let mut due = Vec::new();
        let Self { suspected, requested, solicited, missing, .. } = self;
        solicited.retain(|vlan, solicitation| {
            let is_reported = solicitation.is_reported;
            let step = solicitation.step(now, last_received, limits.interval);
            match step {
                SolicitationStep::Send => {
                    due.push(DueSolicitation::Undecided { vlan: *vlan, is_reported });
                }
                SolicitationStep::Wait => {}
                SolicitationStep::Missing => {
                    missing.insert(*vlan);
                }
                SolicitationStep::Postpone if is_reported => {
                    suspected.insert(*vlan);
                }
                SolicitationStep::Postpone => {
                    requested.insert(*vlan);
                }
            }
            matches!(step, SolicitationStep::Send | SolicitationStep::Wait)
        });
        if now >= self.next_recheck && !self.missing.is_empty() {
            self.next_recheck = now + limits.recheck_interval;
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
    fn unknown_vlans_are_solicited_first_and_missing_ones_in_turn() {
        let mut unreceived = UnreceivedVlans::default();
        let vlans: VlanSet = "100-109".parse().unwrap();
        vlans.iter().for_each(|vlan| unreceived.suspect(vlan));
        unreceived.request("109".parse::<VlanSet>().unwrap().iter().next().unwrap());
        let known: VlanSet = "100-105".parse().unwrap();
        let begun = std::iter::from_fn(|| unreceived.begin_solicitation(&known));
        let begun: Vec<u16> = begun.map(u16::from).collect();
        assert_eq!(begun, [106, 107, 108, 109, 100, 101, 102, 103, 104, 105]);
        assert_eq!(unreceived.possibly_missing(), vlans);
        let limits = SolicitationLimits::new(1);
        let (mut now, mut rechecked) = (Duration::from_secs(5), Vec::new());
        for _ in 0..400 {
            now += Duration::from_millis(100);
            // The peer is alive, because it is received in other VLANs.
            let due = unreceived.take_due(now, now, limits);
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
