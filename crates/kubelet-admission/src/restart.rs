//! Predicts whether a restarting kubelet accepts the checkpoint of its Memory Manager: `validateState` of
//! memorymanager/policy_static.go.

use super::kubelet::MemoryPolicy;
use super::memory::{allocate_in_zones, empty_zones};
use super::state::HostState;
use super::zones::bit_indexes;

/// Prediction whether the kubelet would start again with the current state of its Memory Manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPrediction {
    /// The kubelet would start.
    Accepted,
    /// The kubelet would not start until the host is drained and the state file is removed. The value is the kubelet's
    /// error.
    Refused(&'static str),
    /// The result is random, because it depends on the iteration order of a Go map in the kubelet.
    Nondeterministic,
}

/// The kubelet's error message. No other error is possible, because the kubelet itself has written the state.
const REFUSAL_MESSAGE: &str =
    "[memorymanager] the expected machine state is different from the real one";

impl HostState {
    /// Predicts whether a restarted kubelet accepts the state of its Memory Manager. The Memory Manager refuses the
    /// state if its data about the zones differ from the sum of the pods' memory. They differ if a pod has received
    /// memory of a single zone that belongs to a group of zones, which the policy best-effort permits.
    #[must_use]
    pub fn predict_restart(&self) -> RestartPrediction {
        let host = self.host();
        if host.kubelet.memory_policy == MemoryPolicy::None {
            return RestartPrediction::Accepted;
        }
        let actual = self.zones();
        let mut expected = empty_zones(host);
        for grant in self.admissions().flat_map(|admission| &admission.grants) {
            for block in &grant.blocks {
                let block_zones = bit_indexes(block.zones).map(|index| expected[index]);
                if block_zones
                    .into_iter()
                    .any(|zone| zone.assignments > 0 && zone.group != block.zones)
                {
                    return RestartPrediction::Nondeterministic;
                }
                allocate_in_zones(&mut expected, block.zones, block.kind, block.size);
            }
        }
        let is_same = (0..host.zones.len()).all(|index| {
            let (mine, theirs) = (&actual[index], &expected[index]);
            // Zones of the same group are compared together: only the sums over the group must be equal.
            let same_sums = (0..=host.page_sizes.len()).all(|kind| {
                let sums = |zones: &super::memory::ZoneMemories| {
                    bit_indexes(mine.group)
                        .map(|cell| (zones[cell].free[kind], zones[cell].reserved[kind]))
                        .fold((0u64, 0u64), |sum, next| {
                            (sum.0.saturating_add(next.0), sum.1.saturating_add(next.1))
                        })
                };
                sums(&actual) == sums(&expected)
            });
            mine.assignments == theirs.assignments && mine.group == theirs.group && same_sums
        });
        if is_same {
            RestartPrediction::Accepted
        } else {
            RestartPrediction::Refused(REFUSAL_MESSAGE)
        }
    }
}
