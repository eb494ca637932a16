//! Applies changes of links: independent changes in one message, removals one after the other. Afterwards all
//! links are read once.

mod batches;
pub mod error;
mod expressions;
mod filter;
mod guard;
pub(super) mod kernel;
pub(super) mod ledger_updates;
mod live_kernel;
mod messages;
mod removal;
mod source_expressions;
mod stages;
mod steps;
mod transaction;
pub mod trial;

use super::context::ApplyContext;
use super::outcome::Outcome;
use crate::plan::Change;
use berth_host_facts::ledger::Ledger;
use live_kernel::LiveKernel;
use stages::apply_link_changes_on;
pub use steps::apply_single_step;

/// Applies changes of links, in the order of their stages, and returns their outcomes. If there are fewer outcomes than
/// changes, the time limit expired before the last changes, which are removals.
pub(super) fn apply_link_changes(
    context: &ApplyContext,
    changes: &[&Change],
    ledger: &mut Ledger,
    report: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    match context.kernel {
        Some(kernel) => {
            apply_link_changes_on(&mut *kernel.borrow_mut(), context, changes, ledger, report)
        }
        None => {
            apply_link_changes_on(&mut LiveKernel::new(context), context, changes, ledger, report)
        }
    }
}
