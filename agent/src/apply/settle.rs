//! Outcomes of settings in the rollback ledger.

use super::outcome::Ended;
use crate::plan::{Step, Why};
use berth_host_facts::ledger::Ledger;

/// Records the outcome of a setting: an entry that was restored is removed, and a value that was set counts as drift
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
