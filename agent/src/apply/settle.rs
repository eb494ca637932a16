//! Outcomes of settings in the rollback ledger.

use super::outcome::Ended;
use crate::plan::{Step, Why};
use berth_host_facts::ledger::Ledger;

/// Notes what became of a setting: what was put back need not be remembered, and what was set is drift if
/// it is ever otherwise.
pub(super) fn settle(why: Why, step: &Step, ended: &Ended, ledger: &mut Ledger) {
    if !matches!(ended, Ended::Done(_)) {
        return;
    }
    match why {
        Why::PutBack => _ = ledger.entries.remove(&step.setting),
        Why::Asked => {
            if let Some(entry) = ledger.entries.get_mut(&step.setting) {
                entry.set = Some(step.asked.clone());
            }
        }
    }
}
