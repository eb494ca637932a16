//! Limit for the case that many hosts are away at once: then the cause is more likely a network, a rack or the control
//! plane than the hosts, and the remaining hosts would have no room for all replacements.
//!
//! With two hosts, one away is already more than 40 %, so no machine is ever replaced. With three or four hosts,
//! machines of one lost host are replaced.

/// Percentage of hosts above which no machine is replaced.
pub const MAX_AWAY_PERCENT: usize = 40;
/// Percentage of hosts up to which machines are replaced again after the limit was exceeded. The difference from
/// [`MAX_AWAY_PERCENT`] is the hysteresis.
const MAX_AWAY_PERCENT_AFTER: usize = 35;

/// State of the limit: whether too many hosts are away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AwayHostLimit {
    is_exceeded: bool,
}

impl AwayHostLimit {
    /// Restores the state of the limit from the previous leader.
    #[must_use]
    pub const fn resume(is_exceeded: bool) -> Self {
        Self { is_exceeded }
    }

    /// Returns true if no machine may be replaced.
    #[must_use]
    pub const fn is_exceeded(self) -> bool {
        self.is_exceeded
    }

    /// Updates the state from the number of away hosts and of all hosts. Returns true if the state has changed.
    pub const fn update(&mut self, away: usize, all: usize) -> bool {
        let percent = if self.is_exceeded { MAX_AWAY_PERCENT_AFTER } else { MAX_AWAY_PERCENT };
        let is_exceeded = away.saturating_mul(100) > all.saturating_mul(percent);
        let has_changed = is_exceeded != self.is_exceeded;
        self.is_exceeded = is_exceeded;
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn more_than_40_percent_of_hosts_exceed_the_limit() {
        for (away, all, is_exceeded) in [
            (0, 0, false),
            (1, 1, true),
            (1, 2, true),
            (1, 3, false),
            (2, 3, true),
            (1, 4, false),
            (2, 4, true),
            (2, 5, false),
            (3, 5, true),
        ] {
            let mut limit = AwayHostLimit::default();
            limit.update(away, all);
            assert_eq!(limit.is_exceeded(), is_exceeded, "{away} of {all}");
        }
    }

    #[test]
    fn the_limit_has_a_hysteresis() {
        let mut limit = AwayHostLimit::default();
        assert!(limit.update(41, 100));
        assert!(!limit.update(36, 100), "still exceeded");
        assert!(limit.update(35, 100));
        assert!(!limit.update(40, 100), "not exceeded again");
        let mut resumed = AwayHostLimit::resume(true);
        assert!(!resumed.update(36, 100));
    }

    proptest! {
        #[test]
        fn machines_are_never_replaced_above_the_limit(
            counts in prop::collection::vec((0_usize..60, 0_usize..60), 1..50),
        ) {
            let mut limit = AwayHostLimit::default();
            for (away, here) in counts {
                let all = away + here;
                limit.update(away, all);
                if away * 100 > all * MAX_AWAY_PERCENT {
                    prop_assert!(limit.is_exceeded());
                }
                if away * 100 <= all * MAX_AWAY_PERCENT_AFTER {
                    prop_assert!(!limit.is_exceeded());
                }
            }
        }
    }
}
