//! Solicitations in a VLAN in which a peer's probes do not arrive. The VLAN counts as missing only if the peer does not
//! answer the solicitations, either, so that lost frames alone cause no false alarm.

use std::time::Duration;

/// Number of unanswered solicitations after which a VLAN counts as missing.
const MAX_SOLICITATIONS: u32 = 8;
/// Minimum time between two solicitations in one VLAN. It is longer than an answer needs: the peer then wakes up every
/// 10 ms, and answers in one VLAN every 40 ms.
pub(crate) const SOLICITATION_INTERVAL: Duration = Duration::from_millis(60);
/// Time after which a solicitation is repeated if no frame of the peer has arrived since.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Number of consecutive solicitations without any frame of the peer after which other VLANs take precedence. Together
/// with [`RETRY_INTERVAL`], it is more time than an idle peer needs to wake up.
const MAX_UNRECEIVED: u32 = 8;

/// Solicitations to one peer in one VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solicitation {
    pub(crate) begun: Duration,
    /// True if the solicitations also report to the peer that its probes do not arrive.
    pub(crate) is_reported: bool,
    unanswered: u32,
    /// Number of solicitations since the last frame of the peer in any VLAN.
    unreceived: u32,
    /// Time of the solicitation that may still be answered; `None` if the next one is due.
    last_sent: Option<Duration>,
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
    pub(crate) const fn new(is_reported: bool, now: Duration) -> Self {
        Self { begun: now, is_reported, unanswered: 0, unreceived: 0, last_sent: None }
    }

    /// Returns true if another solicitation is due.
    pub(crate) const fn is_due(&self) -> bool {
        self.last_sent.is_none()
    }

    /// Records that a solicitation is sent.
    pub(crate) const fn record_sent(&mut self, now: Duration) {
        self.last_sent = Some(now);
    }

    /// Returns the next step. `last_received` is the time of the last frame of the peer in any VLAN. A solicitation
    /// counts as unanswered only if a frame of the peer was received after the solicitation was sent: a peer that
    /// stopped, or whose link is down, cannot answer.
    pub(crate) fn step(&mut self, now: Duration, last_received: Duration) -> SolicitationStep {
        if let Some(last_sent) = self.last_sent {
            let is_received = last_received > last_sent;
            let interval = if is_received { SOLICITATION_INTERVAL } else { RETRY_INTERVAL };
            if now.saturating_sub(last_sent) < interval {
                return SolicitationStep::Wait;
            }
            self.last_sent = None;
            self.unanswered += u32::from(is_received);
            self.unreceived = if is_received { 0 } else { self.unreceived + 1 };
        }
        if self.unanswered >= MAX_SOLICITATIONS {
            SolicitationStep::Missing
        } else if self.unreceived >= MAX_UNRECEIVED {
            SolicitationStep::Postpone
        } else {
            SolicitationStep::Send
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as many solicitations as are due within `time`, in steps of 10 ms, and returns the last step and the number of
    /// solicitations.
    fn run(
        solicitation: &mut Solicitation,
        now: &mut Duration,
        time: u64,
        is_alive: bool,
    ) -> (SolicitationStep, usize) {
        let (end, mut sent) = (*now + Duration::from_millis(time), 0);
        let mut last_received = Duration::ZERO;
        while *now < end {
            let step = solicitation.step(*now, last_received);
            match step {
                SolicitationStep::Send => {
                    solicitation.record_sent(*now);
                    sent += 1;
                }
                SolicitationStep::Wait => {}
                SolicitationStep::Missing | SolicitationStep::Postpone => return (step, sent),
            }
            *now += Duration::from_millis(10);
            if is_alive {
                last_received = *now;
            }
        }
        (SolicitationStep::Wait, sent)
    }

    #[test]
    fn vlan_is_missing_only_if_the_peer_is_alive_and_does_not_answer() {
        let (mut solicitation, mut now) =
            (Solicitation::new(true, Duration::ZERO), Duration::from_secs(1));
        assert_eq!(run(&mut solicitation, &mut now, 180, true), (SolicitationStep::Wait, 3));
        // The link of the peer is down, so its unanswered solicitations do not count.
        assert_eq!(run(&mut solicitation, &mut now, 1000, false), (SolicitationStep::Wait, 5));
        assert_eq!(run(&mut solicitation, &mut now, 1000, true), (SolicitationStep::Missing, 5));
    }

    #[test]
    fn a_peer_that_is_not_received_is_solicited_later() {
        let (mut solicitation, mut now) =
            (Solicitation::new(true, Duration::ZERO), Duration::from_secs(1));
        assert_eq!(run(&mut solicitation, &mut now, 3000, false), (SolicitationStep::Postpone, 8));
        assert_eq!(now, Duration::from_millis(2600));
    }
}
