//! Definition of a check: its stable ID, title, explanation and function.

use super::input::Input;
use berth_runtime::check::Outcome;

/// A check of the host.
pub type Check = berth_runtime::check::Check<fn(&Input) -> Outcome>;
