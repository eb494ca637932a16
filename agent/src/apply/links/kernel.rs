//! The kernel that applies steps on links: the running kernel, or a model of a kernel in tests.

use std::io;

use berth_api::LinkName;

use super::error::{FilterError, StepError, TrialError};
use crate::plan::network::{FilterAction, LinkAction, LinkOp};
use berth_host_facts::links::Links;

/// A kernel whose links can be changed and observed.
pub trait Kernel {
    /// Applies one step of each of several independent changes, and returns one result for each step. Links that are
    /// created are still down afterwards.
    ///
    /// # Errors
    /// If the kernel does not answer; it is then unknown which steps were applied.
    fn apply_steps(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>>;

    /// Sets the links of these steps up, and returns one result for each step.
    ///
    /// # Errors
    /// If the kernel does not answer; see [`Kernel::apply_steps`].
    fn set_links_up(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>>;

    /// Changes the nftables rules that drop guests' control frames, and compares the rules of the kernel with the
    /// desired rules.
    ///
    /// # Errors
    /// If the kernel refuses the change or does not answer, or if the rules differ from the desired rules.
    fn apply_filter(&mut self, action: &FilterAction) -> Result<(), FilterError>;

    /// Returns the current state of all links.
    ///
    /// # Errors
    /// If the kernel does not answer, or its list of links is incomplete.
    fn links(&mut self) -> io::Result<Links>;

    /// Returns a link, and all links that are stacked on it or on its bridge.
    ///
    /// # Errors
    /// If the kernel does not answer; see [`Kernel::links`].
    fn stacked_links(&mut self, name: &LinkName) -> io::Result<Links>;

    /// Applies a change that may interrupt the host's own traffic, and rolls the change back if the traffic is
    /// interrupted. Returns a message about the outcome.
    ///
    /// # Errors
    /// If the change was not applied, or its rollback began.
    fn run_trial(&mut self, action: &LinkAction) -> Result<Option<String>, TrialError>;
}
