//! Schedule of probes: one probe in each VLAN per round, in ascending order, several per wake-up, at a limited rate.
//!
//! After a change the schedule runs some fast rounds, so that all agents soon have complete evidence. Otherwise a round
//! takes so long that all agents of a segment together send about [`IDLE_FRAMES_PER_SECOND`] frames, and the agents
//! keep equal distances from each other in the list of VLANs:
//!
//! ```text
//! VLANs       2 ........ 1000 ........ 2000 ........ 3000 ........ 4000
//! rack1-a            ────►
//! rack1-b                                ────►
//! ```
//!
//! An agent that misses a probe in a VLAN reports this to the sender, so each probe tests the VLAN for both agents.
//!
//! An idle agent sends the probes of [`IDLE_INTERVAL`] at once, because a wake-up costs as much as a hundred frames. Each
//! group of probes ends with a probe of the next group's first VLAN, so that a receiver needs no second group to detect
//! that the last VLAN of this group was missed.

use std::time::Duration;

use berth_api::{VlanId, VlanSet};

/// Total frame rate of all agents of a segment while nothing changes, independent of the number of agents. Every agent
/// sends or receives each of these frames, so the rate determines the cost of an idle agent: 0.1 % of a core if the
/// agent sends or receives a frame in 2 microseconds, wake-ups included. It also determines how soon a removed VLAN is
/// detected: each of 4,000 VLANs is probed at least every eight seconds, and a removed VLAN is reported at most 1.5
/// seconds later.
const IDLE_FRAMES_PER_SECOND: u32 = 512;
/// Time between two wake-ups of an idle agent. A longer interval costs less CPU time, but delays both the detection of a
/// missed probe and the first answer to a solicitation.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time until the next probes for which an idle agent waits without another wake-up. It includes the largest
/// reduction of the probe rate by [`MAX_CORRECTION`].
const MAX_IDLE_WAIT: Duration = Duration::from_millis(625);
/// Total frame rate of all agents of a segment in fast rounds.
const FAST_FRAMES_PER_SECOND: u32 = 8192;
/// Minimum duration of a fast round.
const MIN_FAST_ROUND: Duration = Duration::from_millis(250);
/// Minimum duration of an idle round.
const MIN_IDLE_ROUND: Duration = Duration::from_secs(2);
/// Maximum duration of any round.
const MAX_ROUND: Duration = Duration::from_secs(3600);
/// Maximum duration of a fast round. If a fast round would take longer, the schedule runs no fast rounds: with so many
/// agents, every VLAN is soon probed by some agent anyway.
const MAX_FAST_ROUND: Duration = Duration::from_secs(10);
/// Number of fast rounds after a change, including the current round, which may have begun before the change.
const FAST_ROUNDS: u32 = 3;
/// Maximum number of probes that one wake-up sends.
const MAX_BATCH: usize = 256;
/// Jitter of the time between two probes, in thousandths.
const JITTER: u32 = 100;
/// Maximum change of an agent's probe rate, in thousandths, by which the agent moves to its place in the list of VLANs.
const MAX_CORRECTION: i64 = 200;

/// Place of this agent in the list of VLANs, relative to the first agent of the segment by name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// VLAN that the first agent probed last.
    pub(crate) first_agent_vlan: VlanId,
    /// Time since the first agent probed that VLAN.
    pub(crate) first_agent_age: Duration,
    /// Number of agents of the segment with a lower name than this agent, at least one.
    pub(crate) rank: u32,
}

/// Schedule of one agent on one network.
#[derive(Debug)]
pub(crate) struct Schedule {
    vlans: Vec<VlanId>,
    /// Index in `vlans` of the next probe.
    position: usize,
    round: u32,
    fast_rounds: u32,
    /// Time when the next probe is due.
    due: Duration,
    /// Number of agents on the segment, including this agent.
    agent_count: u32,
    /// Change of this agent's probe rate, in thousandths; positive if the agent must probe faster.
    correction: i64,
    /// State of the random number generator for the jitter.
    random_state: u64,
}

impl Schedule {
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            vlans: Vec::new(),
            position: 0,
            round: 1,
            fast_rounds: 0,
            due: Duration::ZERO,
            agent_count: 1,
            correction: 0,
            random_state: seed,
        }
    }

    /// Returns the number of the current round.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    /// Replaces the VLANs. The current round begins again with the first VLAN, because a round is complete only if each
    /// VLAN was probed.
    pub(crate) fn set_vlans(&mut self, vlans: &VlanSet, now: Duration) {
        self.vlans = vlans.iter().collect();
        self.position = 0;
        self.run_fast_rounds(now);
    }

    /// Begins fast rounds.
    pub(crate) fn run_fast_rounds(&mut self, now: Duration) {
        self.fast_rounds = FAST_ROUNDS;
        self.due = self.due.min(now);
    }

    /// Returns true if the schedule runs a fast round now.
    pub(crate) fn is_fast(&self) -> bool {
        let can_be_fast = self.duration_at(FAST_FRAMES_PER_SECOND) <= MAX_FAST_ROUND;
        self.fast_rounds > 0 && !self.vlans.is_empty() && can_be_fast
    }

    /// Sets the number of agents on the segment, and changes the probe rate so that this agent moves to its place and
    /// stays there. If `place` is `None`, the rate is the normal rate.
    pub(crate) fn set_agents(&mut self, agents: u32, place: Option<Place>, now: Duration) {
        self.agent_count = agents;
        self.correction = place.and_then(|place| self.distance(place, now)).unwrap_or(0);
    }

    /// Returns the time for which an idle agent waits after [`Self::take_due`]: until the next group of probes is due, or
    /// [`IDLE_INTERVAL`] if that is much later.
    pub(crate) fn idle_wait(&self, now: Duration) -> Duration {
        let wait = self.due.saturating_sub(now);
        if wait <= MAX_IDLE_WAIT && !self.vlans.is_empty() { wait } else { IDLE_INTERVAL }
    }

    /// Returns the distance from the current position to the place, in thousandths of a round, limited to
    /// [`MAX_CORRECTION`]. It is negative if the way backwards is shorter.
    ///
    /// Both positions are those of agents that send each probe when it is due. This agent has sent the probes of a group
    /// before they are due. The first agent has too, but at an unknown time before its group was received here: on average,
    /// half of the group was due then.
    fn distance(&self, place: Place, now: Duration) -> Option<i64> {
        let count = u128::try_from(self.vlans.len()).ok().filter(|count| *count > 0)?;
        let thousandths = |index: usize| u128::try_from(index).ok().map(|i| i * 1000 / count);
        let leader =
            thousandths(self.vlans.partition_point(|vlan| *vlan < place.first_agent_vlan))?;
        let round = self.round_duration().as_micros().max(1);
        let since = place.first_agent_age.as_micros() * 1000 / round;
        let offset = u128::from(place.rank) * 1000 / u128::from(self.agent_count.max(1));
        let half_group = thousandths(self.group_size() / 2)?.min(1000);
        let target = leader + since + offset + 1000 - half_group;
        let early = (self.due.saturating_sub(now).as_micros() * 1000 / round).min(1000);
        let own = thousandths(self.position)? + 1000 - early;
        let ahead = (target + 2000 - own) % 1000;
        let ahead = i64::try_from(ahead).ok()?;
        let distance = if ahead > 500 { ahead - 1000 } else { ahead };
        Some(distance.clamp(-MAX_CORRECTION, MAX_CORRECTION))
    }

    /// Returns the VLANs to probe now, each with the round of the probe. If any probe of a group is due, the other probes
    /// of the group are sent before they are due.
    pub(crate) fn take_due(&mut self, now: Duration) -> Vec<(VlanId, u32)> {
        if now.saturating_sub(self.due) > MIN_IDLE_ROUND {
            // The agent was stopped, or had no VLANs. Probes that were due meanwhile are not sent later.
            self.due = now;
        }
        let group_size = self.group_size();
        let mut batch = Vec::new();
        while batch.len() < MAX_BATCH {
            let is_in_group = !batch.is_empty() && !self.position.is_multiple_of(group_size);
            if self.due > now && !is_in_group {
                break;
            }
            let Some(vlan) = self.vlans.get(self.position) else { break };
            batch.push((*vlan, self.round));
            let interval = self.interval();
            self.due += interval;
            self.position += 1;
            if self.position == self.vlans.len() {
                self.position = 0;
                self.round = self.round.saturating_add(1);
                self.fast_rounds = self.fast_rounds.saturating_sub(1);
            }
        }
        if group_size > 1
            && !batch.is_empty()
            && let Some(vlan) = self.vlans.get(self.position)
        {
            batch.push((*vlan, self.round));
        }
        batch
    }

    /// Returns the number of probes that are sent at once.
    fn group_size(&self) -> usize {
        if self.is_fast() {
            return 1;
        }
        let interval = (self.round_duration() / self.vlan_count()).as_micros().max(1);
        let size = usize::try_from(IDLE_INTERVAL.as_micros() / interval).unwrap_or(MAX_BATCH);
        size.clamp(1, MAX_BATCH)
    }

    /// Returns the duration of a round at the normal rate.
    fn round_duration(&self) -> Duration {
        if self.is_fast() {
            self.duration_at(FAST_FRAMES_PER_SECOND).max(MIN_FAST_ROUND)
        } else {
            self.duration_at(IDLE_FRAMES_PER_SECOND).clamp(MIN_IDLE_ROUND, MAX_ROUND)
        }
    }

    /// Returns the duration of a round if all agents together send at this rate. A single agent calculates with two
    /// agents.
    fn duration_at(&self, frames_per_second: u32) -> Duration {
        let frames = self.vlan_count().saturating_mul(self.agent_count.max(2));
        Duration::from_secs(1).saturating_mul(frames) / frames_per_second
    }

    /// Returns the number of VLANs, at least one, to avoid a duration of zero.
    fn vlan_count(&self) -> u32 {
        u32::try_from(self.vlans.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the time from one probe to the next. The jitter prevents the probes of several agents from staying
    /// synchronous.
    fn interval(&mut self) -> Duration {
        let interval = self.round_duration() / self.vlan_count();
        let correction = if self.is_fast() { 0 } else { self.correction };
        let thousandths = u32::try_from(1000 - correction).unwrap_or(1000);
        interval * (thousandths + JITTER / 2 - self.next_random(JITTER)) / 1000
    }

    /// Returns a random number below `end` (xorshift64).
    fn next_random(&mut self, end: u32) -> u32 {
        let mut x = self.random_state | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random_state = x;
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

    /// Runs a schedule with wake-ups when probes are due, or every 10 ms in fast rounds, and returns the number of probes.
    fn run(schedule: &mut Schedule, from: u64, to: u64, agents: u32) -> usize {
        let (mut now, mut probes) = (Duration::from_secs(from), 0);
        schedule.set_agents(agents, None, now);
        while now < Duration::from_secs(to) {
            probes += schedule.take_due(now).len();
            let fast = Duration::from_millis(10);
            now += if schedule.is_fast() { fast } else { schedule.idle_wait(now).max(fast) };
        }
        probes
    }

    #[test]
    fn fast_rounds_of_4000_vlans_take_less_than_four_seconds() {
        let mut many = schedule(4000);
        run(&mut many, 0, 4, 2);
        assert!(!many.is_fast(), "round {}", many.round());
    }

    #[test]
    fn idle_rate_is_limited_for_any_number_of_vlans_and_agents() {
        for (count, agents) in [(1, 1), (20, 2), (200, 2), (4000, 2), (4000, 50), (100, 512)] {
            let mut schedule = schedule(count);
            let begin = 40;
            run(&mut schedule, 0, begin, agents);
            let probes = run(&mut schedule, begin, begin + 1000, agents);
            // All agents together may send 512 frames per second. The tolerance of 25 % is for the jitter, and for the
            // second probe of the first VLAN of each group.
            let total = probes * usize::try_from(agents.max(2)).unwrap();
            assert!(total <= 640_000, "{count}, {agents}: {total}");
            assert!(probes >= 490, "{count}, {agents}: {probes}");
        }
    }

    /// A receiver that has a whole group knows which of its VLANs were missed.
    #[test]
    fn a_group_ends_with_the_first_vlan_of_the_next_group() {
        let mut many = schedule(4000);
        run(&mut many, 0, 10, 2);
        let mut now = Duration::from_secs(10);
        let (mut wake_ups, mut last) = (0, None);
        while now < Duration::from_secs(110) {
            let batch = many.take_due(now);
            if let (Some(last), Some(first)) = (last, batch.first()) {
                assert_eq!(*first, last, "the first VLAN of a group");
            }
            last = batch.last().copied().or(last);
            wake_ups += 1;
            now += many.idle_wait(now);
        }
        // A round takes 15.6 s: 31 groups of 128 VLANs, and a shorter group.
        assert!((190..=215).contains(&wake_ups), "{wake_ups}");
    }

    #[test]
    fn agents_keep_equal_distances() {
        let mut agents: Vec<Schedule> = (0..3).map(|_| schedule(3000)).collect();
        let mut last = VlanId::try_from(2).unwrap();
        let mut sent = Duration::ZERO;
        let mut now = Duration::ZERO;
        for _ in 0..4 * 150 {
            now += Duration::from_millis(250);
            for (agent, rank) in agents.iter_mut().zip(0..) {
                let place = Place { first_agent_vlan: last, first_agent_age: now - sent, rank };
                agent.set_agents(3, (rank > 0).then_some(place), now);
                let probes = agent.take_due(now);
                if let (0, Some((vlan, _))) = (rank, probes.last()) {
                    (last, sent) = (*vlan, now);
                }
            }
        }
        let [first, second, third] = agents.as_slice() else { unreachable!() };
        for (agent, wanted) in [(second, 1000), (third, 2000)] {
            let distance = (agent.position + 3000 - first.position) % 3000;
            // Each agent is within a group of 85 probes, and half a group is unknown.
            assert!(distance.abs_diff(wanted) < 200, "{distance}, wanted {wanted}");
        }
    }

    #[test]
    fn a_round_is_complete_only_if_each_vlan_was_probed() {
        let mut many = schedule(1000);
        let vlans: VlanSet = many.vlans.iter().copied().collect();
        for step in 0..50 {
            let now = Duration::from_millis(step * 20);
            many.take_due(now);
            many.set_vlans(&vlans, now);
        }
        assert_eq!(many.round(), 1);
    }
}
