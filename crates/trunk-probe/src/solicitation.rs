//! Solicitations in a VLAN in which a peer's probes do not arrive. The VLAN counts as missing only if the peer does not
//! answer the solicitations, either, so that lost frames alone cause no false alarm.

use std::time::Duration;

/// Number of unanswered solicitations after which a VLAN counts as missing.
const MAX_SOLICITATIONS: u32 = 8;
/// Minimum time between two solicitations in one VLAN. It is longer than an answer needs: the peer then wakes up every
/// 10 ms, and answers in one VLAN at most every 40 ms.
const SOLICITATION_INTERVAL: Duration = Duration::from_millis(60);

/// Solicitations to one peer in one VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solicitation {
    unanswered: u32,
    last_sent: Option<Duration>,
    /// True if the solicitations also report to the peer that its probes do not arrive.
    pub(crate) is_reported: bool,
}

/// Next step of a solicitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SolicitationStep {
    /// Send another solicitation.
    Send,
    /// Wait for an answer, or for any other frame of the peer in this VLAN.
    Wait,
    /// The VLAN is missing: the peer is alive, but did not answer in this VLAN.
    Missing,
}

impl Solicitation {
    pub(crate) const fn new(is_reported: bool) -> Self {
        Self { unanswered: 0, last_sent: None, is_reported }
    }

    /// Returns the next step. `last_received` is the time of the last frame of the peer in any VLAN. A solicitation
    /// counts as unanswered only if a frame of the peer was received after the solicitation was sent: a peer that
    /// stopped, or whose link is down, cannot answer.
    pub(crate) fn step(&mut self, now: Duration, last_received: Duration) -> SolicitationStep {
        if let Some(last_sent) = self.last_sent {
            if now.saturating_sub(last_sent) < SOLICITATION_INTERVAL {
                return SolicitationStep::Wait;
            }
            self.unanswered += u32::from(last_received > last_sent);
        }
        if self.unanswered >= MAX_SOLICITATIONS {
            return SolicitationStep::Missing;
        }
        self.last_sent = Some(now);
        SolicitationStep::Send
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_is_missing_only_if_the_peer_is_alive_and_does_not_answer() {
        let (mut solicitation, mut now) = (Solicitation::new(true), Duration::ZERO);
        let mut last_received = Duration::ZERO;
        let mut run = |is_alive: bool, steps: u32| {
            let mut last = SolicitationStep::Wait;
            for _ in 0..steps {
                last = solicitation.step(now, last_received);
                now += SOLICITATION_INTERVAL;
                if is_alive {
                    last_received = now;
                }
            }
            last
        };
        assert_eq!(run(true, 3), SolicitationStep::Send);
        // The link of the peer is down, so its unanswered solicitations do not count.
        assert_eq!(run(false, 100), SolicitationStep::Send);
        assert_eq!(run(true, 5), SolicitationStep::Send);
        assert_eq!(run(true, 1), SolicitationStep::Missing);
    }
}
