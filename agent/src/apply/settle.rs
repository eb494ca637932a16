//! Records outcomes of settings in the rollback ledger.

use super::outcome::ApplyResult;
use crate::plan::{ChangeReason, Step};
use berth_host_facts::ledger::Ledger;

/// Records the outcome of a setting: the entry of a restored setting is removed, and a set value counts as drift
/// if it differs later.
pub(super) fn record_setting_outcome(
    why: ChangeReason,
    step: &Step,
    ended: &ApplyResult,
    ledger: &mut Ledger,
) {
    if !matches!(ended, ApplyResult::Done(_)) {
        return;
    }
    match why {
        ChangeReason::Restore => _ = ledger.entries.remove(&step.setting),
        ChangeReason::Spec => {
            if let Some(entry) = ledger.entries.get_mut(&step.setting) {
                entry.set = Some(step.desired.clone());
            }
        }
    }
}
