//! Records outcomes of settings in the rollback ledger.

use super::outcome::ApplyResult;
use crate::plan::{ChangeReason, Step};
use berth_host_facts::ledger::Ledger;

/// Records a successful outcome of a setting: removes the entry of a restored setting; for other settings, records the
/// new value, so that a later difference counts as drift. Other outcomes are not recorded.
pub(super) fn record_setting_outcome(
    reason: ChangeReason,
    step: &Step,
    result: &ApplyResult,
    ledger: &mut Ledger,
) {
    if !matches!(result, ApplyResult::Done(_)) {
        return;
    }
    match reason {
        ChangeReason::Restore => _ = ledger.entries.remove(&step.setting),
        ChangeReason::Spec => {
            if let Some(entry) = ledger.entries.get_mut(&step.setting) {
                entry.applied = Some(step.desired_value.clone());
            }
        }
    }
}
