//! VLANs in which no frame of another agent arrives. Either no other host carries such a VLAN, or the switches do not
//! carry it: an agent whose frames never arrive cannot announce its VLANs.

use std::time::Duration;

use berth_api::VlanSet;

/// Period in which the other hosts should configure a new VLAN. A VLAN becomes unverified one to two periods after it
/// was configured on this host, because all VLANs are checked once per period.
const GRACE_PERIOD: Duration = Duration::from_secs(120);
/// Time between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// VLANs in which no frame of another agent arrives.
#[derive(Debug)]
pub(crate) struct UnverifiedVlans {
    vlans: VlanSet,
    /// VLANs in which no frame of another agent has arrived since the last checkpoint.
    candidates: VlanSet,
    checkpoint: Duration,
    next_update: Duration,
}

impl UnverifiedVlans {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            vlans: VlanSet::default(),
            candidates: VlanSet::default(),
            checkpoint: now + GRACE_PERIOD,
            next_update: now + UPDATE_INTERVAL,
        }
    }

    pub(crate) const fn vlans(&self) -> &VlanSet {
        &self.vlans
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next_update
    }

    /// Restarts the grace period of all VLANs. Called after a time in which this agent received no frames at all.
    pub(crate) fn restart(&mut self, now: Duration) {
        self.candidates = VlanSet::default();
        self.checkpoint = now + GRACE_PERIOD;
    }

    /// Updates the VLANs. `current` are the VLANs in which no frame of another agent arrives now. `lost` are the VLANs
    /// of another agent that is now unresponsive: they were verified before, so they get no grace period.
    pub(crate) fn update(&mut self, now: Duration, current: &VlanSet, lost: &VlanSet) {
        self.next_update = now + UPDATE_INTERVAL;
        self.candidates = self.candidates.intersection(current);
        self.vlans = self.vlans.intersection(current);
        self.vlans.extend(lost.intersection(current).iter());
        if now >= self.checkpoint {
            self.vlans.extend(self.candidates.iter());
            self.candidates = current.clone();
            self.checkpoint = now + GRACE_PERIOD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> VlanSet {
        text.parse().unwrap()
    }

    #[test]
    fn a_vlan_is_unverified_after_the_grace_or_when_its_last_agent_is_lost() {
        let (none, mut now) = (VlanSet::default(), Duration::ZERO);
        let mut unverified = UnverifiedVlans::new(now);
        let mut run = |unverified: &mut UnverifiedVlans, seconds: u32, current: &VlanSet| {
            for _ in 0..seconds {
                now += Duration::from_secs(1);
                unverified.update(now, current, &none);
            }
            now
        };
        run(&mut unverified, 239, &set("100,101"));
        assert_eq!(unverified.vlans(), &none);
        run(&mut unverified, 2, &set("100,101"));
        assert_eq!(unverified.vlans(), &set("100,101"));
        // A frame arrives in VLAN 101 once, so the grace period of this VLAN starts again.
        run(&mut unverified, 1, &set("100"));
        run(&mut unverified, 100, &set("100,101"));
        assert_eq!(unverified.vlans(), &set("100"));
        // VLAN 102 is not in `current`, because frames of another agent still arrive in it.
        let now = run(&mut unverified, 1, &set("100,103"));
        unverified.update(now, &set("100,103"), &set("102,103"));
        assert_eq!(unverified.vlans(), &set("100,103"));
        run(&mut unverified, 1, &none);
        assert_eq!(unverified.vlans(), &none);
    }

    #[test]
    fn a_pause_of_this_agent_does_not_count() {
        let (none, current) = (VlanSet::default(), set("100"));
        let mut unverified = UnverifiedVlans::new(Duration::ZERO);
        for minutes in 1..60 {
            let now = Duration::from_secs(60 * minutes);
            unverified.restart(now);
            unverified.update(now, &current, &none);
        }
        assert_eq!(unverified.vlans(), &none);
    }
}
