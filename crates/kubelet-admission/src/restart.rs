//! Predicts if a restarting kubelet accepts the state of its Memory Manager: `validateState` of
//! memorymanager/policy_static.go.

use super::kubelet::MemoryPolicy;
use super::memory::{put, unused};
use super::state::State;
use super::zones::places;

/// Reaction of a starting kubelet to the current state of the Memory Manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The kubelet starts.
    Accepted,
    /// The kubelet does not start until the host is drained and the state file is removed.
    Refused(&'static str),
    /// The result is random: the kubelet sums in the order of a Go map, and the result depends on this order.
    Nondeterministic,
}

/// The only error that a state written by the kubelet itself can cause.
const REFUSAL: &str = "[memorymanager] the expected machine state is different from the real one";

impl State {
    /// Predicts if the Memory Manager of a restarted kubelet accepts its state. The Memory Manager refuses the state
    /// if its accounting of the zones differs from the sum of the pods' memory. The sums differ after a pod on one
    /// zone was admitted into a group of zones, which the policy best-effort allows.
    #[must_use]
    pub fn check_restart(&self) -> Restart {
        let host = self.host();
        if host.kubelet.memory_policy == MemoryPolicy::None {
            return Restart::Accepted;
        }
        let kept = self.zones();
        let mut expected = unused(host);
        for grant in self.admissions().flat_map(|admission| &admission.grants) {
            for block in &grant.blocks {
                let mine = places(block.zones).map(|place| expected[place]);
                if mine.into_iter().any(|zone| zone.assignments > 0 && zone.cells != block.zones) {
                    return Restart::Nondeterministic;
                }
                put(&mut expected, block.zones, block.kind, block.size);
            }
        }
        let is_same = (0..host.zones.len()).all(|place| {
            let (mine, theirs) = (&kept[place], &expected[place]);
            // Only the sums over the whole group must be equal.
            let same_sums = (0..=host.pages.len()).all(|kind| {
                let sums = |zones: &super::memory::Zones| {
                    places(mine.cells)
                        .map(|cell| (zones[cell].free[kind], zones[cell].reserved[kind]))
                        .fold((0u64, 0u64), |sum, next| {
                            (sum.0.saturating_add(next.0), sum.1.saturating_add(next.1))
                        })
                };
                sums(&kept) == sums(&expected)
            });
            mine.assignments == theirs.assignments && mine.cells == theirs.cells && same_sums
        });
        if is_same { Restart::Accepted } else { Restart::Refused(REFUSAL) }
    }
}
