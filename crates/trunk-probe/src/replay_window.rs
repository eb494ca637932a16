//! Protection against replayed frames, as in RFC 4303: each counter is accepted only once. Counters may arrive out of
//! order, within a window.

/// Number of counters in the window, including the highest counter.
const WINDOW_SIZE: u64 = 128;

/// The counters that were received in a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReplayWindow {
    /// The highest counter that was received.
    highest: u64,
    /// Bit `n` is set if the counter `highest - n` was received.
    received: u128,
}

impl ReplayWindow {
    /// Accepts a counter. Returns `false` if the counter was received before, or is below the window.
    pub(crate) fn accept(&mut self, counter: u64) -> bool {
        if counter > self.highest || self.received == 0 {
            let shift = counter.saturating_sub(self.highest);
            let kept = u32::try_from(shift).ok().and_then(|shift| self.received.checked_shl(shift));
            self.received = kept.unwrap_or(0) | 1;
            self.highest = counter;
            return true;
        }
        let age = self.highest - counter;
        let bit = if age < WINDOW_SIZE { 1_u128 << age } else { return false };
        let is_new = self.received & bit == 0;
        self.received |= bit;
        is_new
    }

    /// Returns true if `counter` is the highest counter that was received.
    pub(crate) const fn is_highest(&self, counter: u64) -> bool {
        counter == self.highest
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_counter_is_accepted_twice(counters in proptest::collection::vec(0_u64..400, 0..100)) {
            let (mut window, mut accepted) = (ReplayWindow::default(), BTreeSet::new());
            let mut highest = 0;
            for counter in counters {
                let is_accepted = window.accept(counter);
                let is_recent = accepted.is_empty() || counter + WINDOW_SIZE > highest;
                prop_assert_eq!(is_accepted, is_recent && !accepted.contains(&counter));
                if is_accepted {
                    accepted.insert(counter);
                    highest = highest.max(counter);
                }
            }
        }
    }
}
