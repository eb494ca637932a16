//! Schedule of probes: one probe in each VLAN per round, several per wake-up, at a limited rate.
//!
//! After a change the schedule runs some fast rounds, so that all agents soon have complete evidence. Otherwise a round
//! takes so long that all agents of a segment together send about [`IDLE_FRAMES_PER_SECOND`] frames.

use std::time::Duration;

use berth_api::{VlanId, VlanSet};

/// Rate of all agents of a segment together while nothing changes. With two agents and 4,000 VLANs, an agent needs about
/// 0.1 % of a core.
const IDLE_FRAMES_PER_SECOND: u32 = 100;
/// Rate of all agents of a segment together in fast rounds.
const FAST_FRAMES_PER_SECOND: u32 = 8192;
/// Shortest duration of a fast round, of an idle round, and the longest duration of any round.
const MIN_FAST_ROUND: Duration = Duration::from_millis(250);
const MIN_IDLE_ROUND: Duration = Duration::from_secs(2);
const MAX_ROUND: Duration = Duration::from_secs(300);
/// Time between wake-ups.
const FAST_WAKE_INTERVAL: Duration = Duration::from_millis(10);
const IDLE_WAKE_INTERVAL: Duration = Duration::from_millis(500);
/// Number of fast rounds after a change. A peer misses a VLAN after two complete rounds without a probe.
const FAST_ROUNDS: u32 = 4;
/// Maximum number of probes per wake-up.
const MAX_BATCH: usize = 128;

/// Schedule of one agent on one network.
#[derive(Debug)]
pub(crate) struct Schedule {
    vlans: Vec<VlanId>,
    /// Position of the next probe in `vlans`.
    position: usize,
    round: u32,
    fast_rounds: u32,
    /// Time of the next probe.
    due: Duration,
    /// State of the random numbers for jitter.
    random: u64,
}

impl Schedule {
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            vlans: Vec::new(),
            position: 0,
            round: 1,
            fast_rounds: 0,
            due: Duration::ZERO,
            random: seed,
        }
    }

    /// Number of the current round.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    /// Replaces the VLANs. The current round starts from the first VLAN again, so that a round is complete only if each
    /// VLAN was probed.
    pub(crate) fn set_vlans(&mut self, vlans: &VlanSet, now: Duration) {
        self.vlans = vlans.iter().collect();
        self.position = 0;
        self.run_fast_rounds(now);
    }

    /// Runs fast rounds from now on.
    pub(crate) fn run_fast_rounds(&mut self, now: Duration) {
        self.fast_rounds = FAST_ROUNDS;
        self.due = self.due.min(now);
    }

    /// Returns the VLANs to probe now, each with its round. `agents` is the number of agents on the segment, with this
    /// one.
    pub(crate) fn take_due(&mut self, now: Duration, agents: u32) -> Vec<(VlanId, u32)> {
        if now.saturating_sub(self.due) > MIN_IDLE_ROUND {
            // The agent was stopped, or had no VLANs. Probes are not made up for.
            self.due = now;
        }
        let mut batch = Vec::new();
        while self.due <= now && batch.len() < MAX_BATCH {
            let Some(vlan) = self.vlans.get(self.position) else { break };
            batch.push((*vlan, self.round));
            let interval = self.interval(agents);
            self.due += interval;
            self.position += 1;
            if self.position == self.vlans.len() {
                self.position = 0;
                self.round = self.round.saturating_add(1);
                self.fast_rounds = self.fast_rounds.saturating_sub(1);
            }
        }
        batch
    }

    /// Returns the time of the next wake-up.
    pub(crate) fn next_wake(&self, now: Duration) -> Duration {
        if self.vlans.is_empty() {
            return now + MAX_ROUND;
        }
        let interval = if self.fast_rounds > 0 { FAST_WAKE_INTERVAL } else { IDLE_WAKE_INTERVAL };
        self.due.max(now + interval)
    }

    /// Returns the time from one probe to the next, with a jitter of up to 10 %, so that the rounds of several agents
    /// do not stay synchronous.
    fn interval(&mut self, agents: u32) -> Duration {
        let count = u32::try_from(self.vlans.len()).unwrap_or(u32::MAX).max(1);
        let (rate, shortest) = if self.fast_rounds > 0 {
            (FAST_FRAMES_PER_SECOND, MIN_FAST_ROUND)
        } else {
            (IDLE_FRAMES_PER_SECOND, MIN_IDLE_ROUND)
        };
        let round = Duration::from_secs(1).saturating_mul(count.saturating_mul(agents)) / rate;
        let interval = round.clamp(shortest, MAX_ROUND) / count;
        interval - interval * self.next_random(100) / 1000
    }

    /// Returns a number below `end` (xorshift64).
    fn next_random(&mut self, end: u32) -> u32 {
        let mut x = self.random | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        u32::try_from(x % u64::from(end.max(1))).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(count: u16) -> Schedule {
        let mut schedule = Schedule::new(9);
        let vlans = (2..2 + count).filter_map(|id| VlanId::try_from(id).ok()).collect();
        schedule.set_vlans(&vlans, Duration::ZERO);
        schedule
    }

    /// Runs a schedule, and returns the numbers of probes and of wake-ups.
    fn run(schedule: &mut Schedule, from: u64, to: u64) -> (usize, usize) {
        let (mut now, mut probes, mut wakes) = (Duration::from_secs(from), 0, 0);
        while now < Duration::from_secs(to) {
            probes += schedule.take_due(now, 2).len();
            now = schedule.next_wake(now);
            wakes += 1;
        }
        (probes, wakes)
    }

    #[test]
    fn fast_rounds_of_4000_vlans_take_less_than_five_seconds() {
        let mut many = schedule(4000);
        run(&mut many, 0, 5);
        assert!(many.round() >= 5, "round {}", many.round());
    }

    #[test]
    fn idle_rate_is_limited_for_any_number_of_vlans() {
        for count in [1, 20, 200, 4000] {
            let mut schedule = schedule(count);
            run(&mut schedule, 0, 10);
            let (probes, wakes) = run(&mut schedule, 10, 1010);
            assert!(probes <= 57_000, "{count}: {probes}");
            assert!(probes >= 400, "{count}: {probes}");
            assert!(wakes <= 2001, "{count}: {wakes}");
        }
    }

    #[test]
    fn a_round_is_complete_only_if_each_vlan_was_probed() {
        let mut many = schedule(1000);
        let vlans: VlanSet = many.vlans.iter().copied().collect();
        for step in 0..50 {
            let now = Duration::from_millis(step * 20);
            many.take_due(now, 2);
            many.set_vlans(&vlans, now);
        }
        assert_eq!(many.round(), 1);
    }
}
