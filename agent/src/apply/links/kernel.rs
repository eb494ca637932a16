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

    /// Changes the rules for what guests send, and reads back what became of them.
    ///
    /// # Errors
    /// Why they are not so.
    fn filter(&mut self, work: &FilterWork) -> Result<(), FilterError>;

    /// All links as they are now.
    ///
    /// # Errors
    /// If the kernel does not answer, or not with all of them.
    fn links(&mut self) -> io::Result<Links>;

    /// A link with all that stands on it or on its bridge, as it is now.
    ///
    /// # Errors
    /// As [`Kernel::links`].
    fn nearby(&mut self, name: &LinkName) -> io::Result<Links>;

    /// Makes a change that may cut the host off, and undoes it if it does.
    ///
    /// # Errors
    /// Why it is not in place.
    fn try_out(&mut self, work: &LinkWork) -> Result<Option<String>, TrialError>;
}
