//! Solicitations in a VLAN in which a peer's probes do not arrive. The VLAN counts as missing only if the peer does not
//! answer the solicitations, either, so that lost frames alone cause no false alarm.

use std::time::Duration;

/// Number of unanswered solicitations after which a VLAN counts as missing.
const MAX_SOLICITATIONS: u32 = 8;
/// Number of consecutive solicitations without any frame of the peer after which other solicitations take precedence. It
/// takes longer than an idle peer needs to wake up.
const MAX_UNRECEIVED: u32 = 16;

/// Solicitations to one peer in one VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solicitation {
    unanswered: u32,
    /// Number of solicitations since the last frame of the peer in any VLAN.
    unreceived: u32,
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
    /// The peer is not received in any VLAN, so nothing can be concluded. Solicit again later.
    Postpone,
}

impl Solicitation {
    pub(crate) const fn new(is_reported: bool) -> Self {
        Self { unanswered: 0, unreceived: 0, last_sent: None, is_reported }
    }

    /// Returns true if more than one solicitation was sent.
    pub(crate) const fn is_repeated(&self) -> bool {
        self.unanswered > 0 || self.unreceived > 0
    }

    /// Returns the next step. `last_received` is the time of the last frame of the peer in any VLAN. A solicitation
    /// counts as unanswered only if a frame of the peer was received after the solicitation was sent: a peer that
    /// stopped, or whose link is down, cannot answer. `interval` is the minimum time between two solicitations.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        last_received: Duration,
        interval: Duration,
    ) -> SolicitationStep {
        if let Some(last_sent) = self.last_sent {
            if now.saturating_sub(last_sent) < interval {
                return SolicitationStep::Wait;
            }
            if last_received > last_sent {
                self.unanswered += 1;
                self.unreceived = 0;
            } else {
                self.unreceived += 1;
            }
        }
        if self.unanswered >= MAX_SOLICITATIONS {
            return SolicitationStep::Missing;
        }
        if self.unreceived >= MAX_UNRECEIVED {
            return SolicitationStep::Postpone;
        }
        self.last_sent = Some(now);
        SolicitationStep::Send
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(60);

    #[test]
    fn vlan_is_missing_only_if_the_peer_is_alive_and_does_not_answer() {
        let (mut solicitation, mut now) = (Solicitation::new(true), Duration::ZERO);
        let mut last_received = Duration::ZERO;
        let mut run = |is_alive: bool, steps: u32| {
            let mut last = SolicitationStep::Wait;
            for _ in 0..steps {
                last = solicitation.step(now, last_received, INTERVAL);
                now += INTERVAL;
                if is_alive {
                    last_received = now;
                }
            }
            last
        };
        assert_eq!(run(true, 3), SolicitationStep::Send);
        // The link of the peer is down, so its unanswered solicitations do not count.
        assert_eq!(run(false, 10), SolicitationStep::Send);
        assert_eq!(run(true, 5), SolicitationStep::Send);
        assert_eq!(run(true, 1), SolicitationStep::Missing);
    }

    #[test]
    fn a_peer_that_is_not_received_for_a_second_is_solicited_later() {
        let mut solicitation = Solicitation::new(true);
        let steps: Vec<SolicitationStep> = (0..17_u32)
            .map(|count| solicitation.step(INTERVAL * count, Duration::ZERO, INTERVAL))
            .collect();
        let mut expected = vec![SolicitationStep::Send; 16];
        expected.push(SolicitationStep::Postpone);
        assert_eq!(steps, expected);
    }
}
