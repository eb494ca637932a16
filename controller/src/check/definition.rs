//! Definition of a check: its stable ID, title, explanation and function.

use super::input::Input;
use super::read::Unread;
use berth_runtime::check::Outcome;

/// A check of the cluster. If the function of the check cannot read the objects that it examines, it returns
/// `Unread`, and the check is skipped.
pub type Check = berth_runtime::check::Check<fn(&Input) -> Result<Outcome, Unread>>;
