//! Definition of a check: its stable ID, title, explanation and function.

use super::input::Input;
use super::read::Unread;
use berth_runtime::check::Outcome;

/// A check of the cluster. If its function returns an error, because the objects that it examines could not be read,
/// the check is skipped.
pub type Check = berth_runtime::check::Check<fn(&Input) -> Result<Outcome, Unread>>;
