//! Limits of the solicitations of one agent. Each agent of a segment receives the solicitations of all other agents, so
//! the limits depend on the number of agents: together they send about [`MAX_SOLICITED`] solicitations, of two frames each,
//! per [`SOLICITATION_INTERVAL`].

use std::time::Duration;

/// Maximum number of VLANs that all peers together solicit at the same time. With two frames per VLAN and
/// [`SOLICITATION_INTERVAL`], an agent receives about 3,200 such frames per second: a fifth of what it can read.
const MAX_SOLICITED: usize = 96;
/// Minimum time between two solicitations in one VLAN. It is longer than an answer needs: the peer then wakes up every
/// 10 ms, and answers in one VLAN at most every 40 ms.
const SOLICITATION_INTERVAL: Duration = Duration::from_millis(60);
/// Time between two solicitations in missing VLANs of a peer. It is short, so that this agent soon detects that the
/// switches carry a VLAN again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Number of peers above which missing VLANs are solicited less often: an agent sends about four such frames per second.
/// With more agents, one solicitation or its answer shows many agents that the switches carry a VLAN again.
const MAX_RECHECKED_PEERS: usize = 8;

/// Limits of the solicitations of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SolicitationLimits {
    /// Maximum number of solicitations at the same time, for all peers together. One peer counts once for each VLAN.
    pub(crate) max_solicited: usize,
    /// Minimum time between two solicitations of one peer in one VLAN.
    pub(crate) interval: Duration,
    /// Time between two solicitations of one peer in its missing VLANs.
    pub(crate) recheck_interval: Duration,
}

impl SolicitationLimits {
    /// Returns the limits of an agent that has this number of peers.
    pub(crate) fn new(peers: usize) -> Self {
        let peers = peers.max(1);
        let factor = |count: usize| u32::try_from(peers.div_ceil(count)).unwrap_or(u32::MAX);
        Self {
            max_solicited: (MAX_SOLICITED / peers).max(1),
            interval: SOLICITATION_INTERVAL.saturating_mul(factor(MAX_SOLICITED)),
            recheck_interval: RECHECK_INTERVAL.saturating_mul(factor(MAX_RECHECKED_PEERS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_all_peers_is_limited_for_any_number_of_peers() {
        for peers in 1..=512_usize {
            let limits = SolicitationLimits::new(peers);
            let per_minute =
                |count: usize, interval: Duration| count as u128 * 60_000 / interval.as_millis();
            let frames = per_minute(2 * peers * limits.max_solicited, limits.interval);
            assert!(frames <= 3200 * 60, "{peers}: {frames}");
            let rechecks = per_minute(peers, limits.recheck_interval);
            assert!(rechecks <= 4 * 60, "{peers}: {rechecks}");
        }
        let two_hosts = SolicitationLimits::new(1);
        assert_eq!(two_hosts.max_solicited, 96);
        assert_eq!(two_hosts.interval, Duration::from_millis(60));
        assert_eq!(two_hosts.recheck_interval, Duration::from_secs(2));
    }
}
