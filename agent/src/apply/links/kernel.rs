//! The kernel that steps on links are carried out by: the running one, or a model of it in tests.

use std::io;

use berth_api::LinkName;

use super::error::{FilterError, StepError, TrialError};
use crate::plan::network::{FilterWork, LinkOp, LinkWork};
use berth_host_facts::links::Links;

/// A kernel whose links are changed and observed.
pub trait Kernel {
    /// One step of each of many changes, with an answer for each. Links that are made are not up after it.
    ///
    /// # Errors
    /// If the kernel does not answer; what was done then is not known.
    fn step(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>>;

    /// Raises the links that these steps work on, with an answer for each.
    ///
    /// # Errors
    /// As [`Kernel::step`].
    fn raise(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>>;

    /// Changes the rules that drop guests' control frames, and reads them back.
    ///
    /// # Errors
    /// If the rules differ from the desired ones.
    fn filter(&mut self, work: &FilterWork) -> Result<(), FilterError>;

    /// Returns all links as they are now.
    ///
    /// # Errors
    /// If the kernel does not answer, or not with all of them.
    fn links(&mut self) -> io::Result<Links>;

    /// Returns a link with all links that are stacked on it or on its bridge.
    ///
    /// # Errors
    /// As [`Kernel::links`].
    fn nearby(&mut self, name: &LinkName) -> io::Result<Links>;

    /// Makes a change that may cut the host off, and rolls it back if it does.
    ///
    /// # Errors
    /// If the change is not in place.
    fn run_trial(&mut self, work: &LinkWork) -> Result<Option<String>, TrialError>;
}
