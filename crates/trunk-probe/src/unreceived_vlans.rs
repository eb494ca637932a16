//! VLANs in which a peer's probes are not received. Such a VLAN first waits, then is solicited, then is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{VlanId, VlanSet};

use crate::solicitation::{Solicitation, SolicitationStep};

/// VLANs in which a peer's probes are not received.
#[derive(Debug, Default)]
pub(crate) struct UnreceivedVlans {
    /// VLANs in which a probe was missed, and that are not solicited yet.
    suspected: VlanSet,
    /// VLANs in which the peer has reported a loss, and that are not solicited yet.
    requested: VlanSet,
    solicited: BTreeMap<VlanId, Solicitation>,
    /// VLAN whose solicitations began last; `None` if none did.
    begun: Option<VlanId>,
    missing: VlanSet,
    /// The missing VLAN that was solicited last; `None` if none was.
    rechecked: Option<VlanId>,
    /// Time of the next solicitation in a missing VLAN.
    next_recheck: Duration,
}

impl UnreceivedVlans {
    /// Adds a VLAN in which a probe was missed to the suspected VLANs. If the VLAN is already solicited, the peer also
    /// receives a report from now on.
    pub(crate) fn suspect(&mut self, vlan: VlanId) {
        if let Some(solicitation) = self.solicited.get_mut(&vlan) {
            solicitation.is_reported = true;
        } else if !self.missing.contains(vlan) {
            self.suspected.insert(vlan);
        }
    }

    /// Adds a VLAN to the requested VLANs, because the peer has reported that it does not receive this agent in this
    /// VLAN. Unless a probe of the peer is missed too, the solicitations contain no report, because the peer already
    /// knows of the loss.
    pub(crate) fn request(&mut self, vlan: VlanId) {
        if !self.missing.contains(vlan) && !self.solicited.contains_key(&vlan) {
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
        let reported = self.solicited.iter().filter(|(_, solicitation)| solicitation.is_reported);
        vlans.extend(reported.map(|(vlan, _)| *vlan));
        vlans
    }

    /// Returns the VLANs that are solicited now.
    pub(crate) fn solicited(&self) -> impl ExactSizeIterator<Item = VlanId> + '_ {
        self.solicited.keys().copied()
    }

    /// Returns true if any VLAN is solicited, or waits for it.
    pub(crate) fn is_soliciting(&self) -> bool {
        !(self.solicited.is_empty() && self.suspected.is_empty() && self.requested.is_empty())
    }

    /// Returns the VLANs that wait for [`Self::begin_solicitation`].
    pub(crate) fn waiting(&self) -> VlanSet {
        let mut vlans = self.suspected.clone();
        vlans.extend(self.requested.iter());
        vlans
    }

    /// Begins to solicit the peer in the next waiting VLAN that `excluded` does not contain.
    pub(crate) fn begin_solicitation(&mut self, now: Duration, excluded: &VlanSet) {
        let next = next_in_turn(&self.waiting().difference(excluded), self.begun);
        if let Some(vlan) = next {
            let is_reported = self.suspected.remove(vlan);
            self.requested.remove(vlan);
            self.solicited.insert(vlan, Solicitation::new(is_reported, now));
            self.begun = next;
        }
    }

    /// Ends the solicitations in the VLANs that are decided. `last_received` is the time of the last frame of the peer in
    /// any VLAN.
    pub(crate) fn end_solicitations(&mut self, now: Duration, last_received: Duration) {
        let Self { suspected, requested, solicited, missing, .. } = self;
        solicited.retain(|vlan, solicitation| {
            let step = solicitation.step(now, last_received);
            match step {
                SolicitationStep::Send | SolicitationStep::Wait => {}
                SolicitationStep::Missing => {
                    missing.insert(*vlan);
                }
                SolicitationStep::Postpone if solicitation.is_reported => {
                    suspected.insert(*vlan);
                }
                SolicitationStep::Postpone => {
                    requested.insert(*vlan);
                }
            }
            matches!(step, SolicitationStep::Send | SolicitationStep::Wait)
        });
    }

    /// Returns the time when the oldest of the due solicitations began; `None` if none is due.
    pub(crate) fn oldest_due(&self) -> Option<Duration> {
        let due = self.solicited.values().filter(|solicitation| solicitation.is_due());
        due.map(|solicitation| solicitation.begun).min()
    }

    /// Records that the oldest of the due solicitations is sent. Returns its VLAN, and true if the peer must also receive
    /// a report.
    pub(crate) fn send_oldest(&mut self, now: Duration) -> Option<(VlanId, bool)> {
        let due = self.solicited.iter_mut().filter(|(_, solicitation)| solicitation.is_due());
        let (vlan, solicitation) = due.min_by_key(|(_, solicitation)| solicitation.begun)?;
        solicitation.record_sent(now);
        Some((*vlan, solicitation.is_reported))
    }

    /// Returns the time since which a solicitation in a missing VLAN is due, to detect whether the switches carry the
    /// VLAN again; `None` if none is due.
    pub(crate) fn recheck_due(&self, now: Duration) -> Option<Duration> {
        (!self.missing.is_empty() && now >= self.next_recheck).then_some(self.next_recheck)
    }

    /// Records that the next missing VLAN is solicited, and returns it. The solicitation after this one is due after
    /// `interval`.
    pub(crate) fn send_recheck(&mut self, now: Duration, interval: Duration) -> Option<VlanId> {
        self.next_recheck = now + interval;
        self.rechecked = next_in_turn(&self.missing, self.rechecked);
        self.rechecked
    }
}

/// Returns the first VLAN after `last`; after the highest VLAN, the lowest VLAN follows.
fn next_in_turn(vlans: &VlanSet, last: Option<VlanId>) -> Option<VlanId> {
    vlans.iter().find(|vlan| Some(*vlan) > last).or_else(|| vlans.iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> VlanSet {
        text.parse().unwrap()
    }

    /// Begins solicitations until no VLAN waits, and returns the VLANs in this order.
    fn begin_all(unreceived: &mut UnreceivedVlans, excluded: &VlanSet) -> Vec<u16> {
        let mut begun = Vec::new();
        while !unreceived.waiting().difference(excluded).is_empty() {
            unreceived.begin_solicitation(Duration::from_millis(5), excluded);
            begun.extend(unreceived.begun.map(u16::from));
        }
        begun
    }

    #[test]
    fn waiting_vlans_are_solicited_in_turn() {
        let mut unreceived = UnreceivedVlans::default();
        set("100-105").iter().for_each(|vlan| unreceived.suspect(vlan));
        set("104-107").iter().for_each(|vlan| unreceived.request(vlan));
        assert_eq!(begin_all(&mut unreceived, &set("100-103,107")), [104, 105, 106]);
        // A VLAN that is missed again does not take precedence over the VLANs that waited longer.
        unreceived.clear(set("104").iter().next().unwrap());
        unreceived.suspect(set("104").iter().next().unwrap());
        let rest = begin_all(&mut unreceived, &VlanSet::default());
        assert_eq!(rest, [107, 100, 101, 102, 103, 104]);
        // Losses that only the peer has reported are no evidence against the peer.
        assert_eq!(unreceived.possibly_missing(), set("100-105"));
        assert_eq!(unreceived.solicited().len(), 8);
        set("107").iter().for_each(|vlan| unreceived.suspect(vlan));
        assert_eq!(unreceived.possibly_missing(), set("100-105,107"));
    }

    #[test]
    fn undecided_vlans_become_missing_and_missing_vlans_are_rechecked_in_turn() {
        let mut unreceived = UnreceivedVlans::default();
        let vlans = set("100-109");
        vlans.iter().for_each(|vlan| unreceived.suspect(vlan));
        begin_all(&mut unreceived, &VlanSet::default());
        let (mut now, mut sent) = (Duration::from_secs(5), Vec::new());
        let interval = Duration::from_secs(2);
        assert_eq!(unreceived.recheck_due(now), None);
        for _ in 0..8 {
            while unreceived.oldest_due().is_some() {
                sent.extend(unreceived.send_oldest(now).map(|(vlan, _)| u16::from(vlan)));
            }
            now += Duration::from_millis(100);
            // The peer is alive, because it is received in other VLANs.
            unreceived.end_solicitations(now, now);
        }
        assert_eq!(sent, (0..8).flat_map(|_| 100..110).collect::<Vec<u16>>());
        assert_eq!(unreceived.missing(), &vlans);
        let mut rechecked = Vec::new();
        for _ in 0..400 {
            now += Duration::from_millis(100);
            if unreceived.recheck_due(now).is_some() {
                rechecked.extend(unreceived.send_recheck(now, interval).map(u16::from));
            }
        }
        assert_eq!(rechecked, (0..2).flat_map(|_| 100..110).collect::<Vec<u16>>());
    }
}
