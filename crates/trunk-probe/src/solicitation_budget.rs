//! Number of solicitations that one agent may send: an equal share of the rate of all agents of the segment.

use std::time::Duration;

/// Maximum number of solicitations that all agents of a segment send in any second. Every agent receives them, and at
/// most as many answers: together with the probes of fast rounds less than the 16,000 frames per second that an agent can
/// read.
const MAX_FRAMES_PER_SECOND: u32 = 3200;
/// Maximum number of solicitations that are sent together: one in the VLAN to decide, and one in another VLAN.
const MAX_GROUP: u32 = 2;
/// Part of an agent's share of one second that it may send at once, in addition to one group. It is more than the share
/// of 10 ms, the time between two wake-ups.
const BUCKET_DIVISOR: u32 = 64;

/// Token bucket of one agent. The rate is lower than the agent's share by the size of the bucket, so that the share is
/// also the limit of a second that begins with a full bucket.
#[derive(Debug)]
pub(crate) struct SolicitationBudget {
    /// Size of the bucket in frames.
    size: u32,
    /// Time after which one more frame may be sent.
    interval: Duration,
    /// Time when the bucket is full.
    full_at: Duration,
}

impl SolicitationBudget {
    pub(crate) fn new() -> Self {
        let mut budget =
            Self { size: MAX_GROUP, interval: Duration::ZERO, full_at: Duration::ZERO };
        budget.set_agents(1);
        budget
    }

    /// Sets the number of agents on the segment, including this agent.
    pub(crate) fn set_agents(&mut self, agents: usize) {
        let agents = u32::try_from(agents).unwrap_or(u32::MAX).max(1);
        self.size = MAX_GROUP + MAX_FRAMES_PER_SECOND / agents / BUCKET_DIVISOR;
        let rate = MAX_FRAMES_PER_SECOND.saturating_sub(self.size.saturating_mul(agents)).max(1);
        self.interval = Duration::from_secs(1).saturating_mul(agents) / rate;
    }

    /// Returns the time until [`MAX_GROUP`] frames may be sent; zero if they may be sent now.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        let permitted_at = self.full_at + self.interval * MAX_GROUP;
        permitted_at.saturating_sub(now + self.interval * self.size)
    }

    /// Records that frames are sent now.
    pub(crate) fn spend(&mut self, frames: usize, now: Duration) {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        self.full_at = self.full_at.max(now) + self.interval.saturating_mul(frames);
    }

    /// Returns the number of groups that may be sent in `time`.
    pub(crate) fn groups_in(&self, time: Duration) -> usize {
        let group = (self.interval * MAX_GROUP).as_micros().max(1);
        usize::try_from(time.as_micros() / group).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends groups of `frames` frames as often as the budget permits, with wake-ups every 10 ms after one second without
    /// solicitations, and returns the number of frames in each wake-up.
    fn run(agents: usize, frames: usize, wake_ups: u32) -> Vec<usize> {
        let mut budget = SolicitationBudget::new();
        budget.set_agents(agents);
        let wake_up = |index: u32| {
            let now = Duration::from_millis(1000 + 10 * u64::from(index));
            let mut sent = 0;
            while budget.wait(now).is_zero() {
                budget.spend(frames, now);
                sent += frames;
            }
            sent
        };
        (0..wake_ups).map(wake_up).collect()
    }

    #[test]
    fn no_second_exceeds_the_rate_of_the_segment() {
        for agents in 2..=513_usize {
            for frames in [1, 2] {
                let sent = run(agents, frames, 1000);
                let largest = sent.windows(100).map(|second| second.iter().sum::<usize>()).max();
                let largest = largest.unwrap() * agents;
                assert!(largest <= 3200, "{agents} agents: {largest}");
                // The rate is not much lower either.
                let mean = sent.iter().sum::<usize>() * agents / 10;
                assert!(mean >= 1600, "{agents} agents: {mean}");
            }
        }
    }

    #[test]
    fn two_agents_share_the_rate_equally() {
        let sent: usize = run(2, 2, 1000).iter().sum();
        assert!((15_500..=16_000).contains(&sent), "{sent}");
        let mut budget = SolicitationBudget::new();
        budget.set_agents(2);
        assert_eq!(budget.groups_in(Duration::from_millis(60)), 47);
        budget.set_agents(100);
        assert_eq!(budget.groups_in(Duration::from_millis(60)), 0);
        assert_eq!(budget.groups_in(Duration::from_secs(1)), 15);
    }
}
