//! Solicitations in a VLAN in which a peer's probes do not arrive: the VLAN is missing only if the peer does not answer
//! either. Lost frames alone thus cause no alarm.

use std::time::Duration;

/// Number of solicitations without an answer after which a VLAN is missing.
const MAX_SOLICITATIONS: u32 = 8;
/// Time between two solicitations.
pub(crate) const SOLICITATION_INTERVAL: Duration = Duration::from_millis(150);

/// Solicitations to one peer in one VLAN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Solicitation {
    sent: u32,
    last: Duration,
}

/// Next step of a solicitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send one more.
    Send,
    /// Wait for an answer, or for any frame of the peer.
    Wait,
    /// The peer is alive, but did not answer in this VLAN.
    Missing,
}

impl Solicitation {
    /// Returns the next step. `last_heard` is the time of the last frame of the peer in any VLAN: a peer that stopped
    /// in the meantime cannot answer.
    pub(crate) fn step(&mut self, now: Duration, last_heard: Duration) -> Step {
        if self.sent > 0 && now.saturating_sub(self.last) < SOLICITATION_INTERVAL {
            return Step::Wait;
        }
        if self.sent < MAX_SOLICITATIONS {
            self.sent += 1;
            self.last = now;
            return Step::Send;
        }
        if last_heard > self.last { Step::Missing } else { Step::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_is_missing_only_if_the_peer_is_alive_and_does_not_answer() {
        let (mut solicitation, mut now, mut sent) = (Solicitation::default(), Duration::ZERO, 0);
        for _ in 0..100 {
            match solicitation.step(now, Duration::ZERO) {
                Step::Send => sent += 1,
                Step::Wait => {}
                Step::Missing => panic!("the peer may have stopped"),
            }
            now += Duration::from_millis(100);
        }
        assert_eq!(sent, MAX_SOLICITATIONS);
        assert_eq!(solicitation.step(now, now), Step::Missing);
    }
}
