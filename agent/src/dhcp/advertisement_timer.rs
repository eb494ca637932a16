//! Timer for the unsolicited router advertisements of a port.

use std::time::Duration;

use berth_dhcp_responder::ADVERTISEMENT_INTERVAL;
use tokio::time::Instant;

/// Minimum time between two unsolicited router advertisements (`MIN_DELAY_BETWEEN_RAS` of RFC 4861).
const MIN_DELAY: Duration = Duration::from_secs(3);

/// Timer for the unsolicited router advertisements of one port.
#[derive(Debug)]
pub(super) struct AdvertisementTimer {
    next: Instant,
    earliest: Instant,
}

impl AdvertisementTimer {
    /// Returns a timer that is due at once, for a new port.
    pub(super) const fn new(now: Instant) -> Self {
        Self { next: now, earliest: now }
    }

    /// Returns when to send.
    pub(super) const fn due_at(&self) -> Instant {
        self.next
    }

    /// Makes the timer due as soon as possible, because the content of the advertisement changed.
    pub(super) fn expedite(&mut self, now: Instant) {
        self.next = self.next.min(self.earliest.max(now));
    }

    /// Starts the next interval, after an advertisement was sent.
    pub(super) fn restart(&mut self, now: Instant) {
        self.earliest = now + MIN_DELAY;
        self.next = now + ADVERTISEMENT_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_advertised_soon_but_not_faster_than_every_three_seconds() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut timer = AdvertisementTimer::new(begin);
        assert_eq!(timer.due_at(), begin);
        timer.restart(begin);
        assert_eq!(timer.due_at(), begin + ADVERTISEMENT_INTERVAL);
        timer.expedite(after(1));
        timer.expedite(after(2));
        assert_eq!(timer.due_at(), after(3));
        timer.restart(after(3));
        timer.expedite(after(100));
        assert_eq!(timer.due_at(), after(100));
    }
}
