//! Whether a kubelet that restarts would accept the state its Memory Manager left: `validateState` of
//! memorymanager/policy_static.go.

use super::kubelet::MemoryPolicy;
use super::memory::{put, unused};
use super::state::State;
use super::zones::places;

/// What a kubelet would do that starts with the Memory Manager's state as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// It starts.
    Accepted,
    /// It does not, until the host is drained and the state file is gone.
    Refused(&'static str),
    /// The one or the other: it adds up in the order of a Go map, and here the order tells.
    Chance,
}

/// The one error that a state of its own making can lead to.
const REFUSAL: &str = "[memorymanager] the expected machine state is different from the real one";

impl State {
    /// Whether the Memory Manager of a restarted kubelet accepts its state. It does not where its account of the
    /// zones is not what the pods' memory adds up to. That is so after a pod on one zone was let into a group of zones,
    /// which the policy best-effort allows.
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
                    return Restart::Chance;
                }
                put(&mut expected, block.zones, block.kind, block.size);
            }
        }
        let is_same = (0..host.zones.len()).all(|place| {
            let (mine, theirs) = (&kept[place], &expected[place]);
            // Amounts need only be the same for the whole group.
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
