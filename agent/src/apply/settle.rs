//! Records outcomes of settings in the rollback ledger.

use super::outcome::Ended;
use crate::plan::{Step, Why};
use berth_host_facts::ledger::Ledger;

/// Records the outcome of a setting: the entry of a restored setting is removed, and a set value counts as drift
/// if it differs later.
pub(super) fn settle(why: Why, step: &Step, ended: &Ended, ledger: &mut Ledger) {
    if !matches!(ended, Ended::Done(_)) {
        return;
    }
    match why {
        Why::Restore => _ = ledger.entries.remove(&step.setting),
        Why::Spec => {
            if let Some(entry) = ledger.entries.get_mut(&step.setting) {
                entry.set = Some(step.desired.clone());
            }
        }
    }
}
