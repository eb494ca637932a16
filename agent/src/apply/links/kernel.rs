//! What carries out steps on links: the running kernel, or a model of it in tests.

use std::io;

use berth_api::LinkName;

use super::super::Hands;
use super::error::{FilterError, NotTried, StepError, TrialError};
use super::{filter, messages, numbers, step, trial};
use crate::netlink::Netlink;
use crate::plan::network::{FilterWork, LinkOp, LinkWork};
use berth_host_facts::links::{Links, live, nearby};

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

/// The running kernel.
pub(super) struct Live<'h, 'a> {
    hands: &'h Hands<'a>,
    netlink: Option<Netlink>,
}

impl<'h, 'a> Live<'h, 'a> {
    pub(super) const fn new(hands: &'h Hands<'a>) -> Self {
        Self { hands, netlink: None }
    }

    /// After an error late answers may come, so the socket is used no more.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&Hands<'a>, &mut Netlink) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut netlink = self.netlink.take().map_or_else(Netlink::open, Ok)?;
        let result = work(self.hands, &mut netlink)?;
        self.netlink = Some(netlink);
        Ok(result)
    }
}

impl Kernel for Live<'_, '_> {
    fn step(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>> {
        self.with(|hands, netlink| {
            let indexes = numbers(netlink, ops)?;
            step(hands, netlink, &indexes, ops)
        })
    }

    fn raise(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>> {
        let messages = ops.iter().map(|op| messages::up(op.link(), true)).collect();
        let answers = self.with(|_, netlink| netlink.change(messages))?;
        let answers = ops.iter().zip(answers);
        Ok(answers
            .map(|(op, answer)| answer.map_err(|refused| StepError::refused(op, refused)))
            .collect())
    }

    fn filter(&mut self, work: &FilterWork) -> Result<(), FilterError> {
        filter::carry_out(work)
    }

    fn links(&mut self) -> io::Result<Links> {
        live()
    }

    fn nearby(&mut self, name: &LinkName) -> io::Result<Links> {
        self.with(|hands, netlink| nearby(&mut netlink.reader, hands.root, name))
    }

    fn try_out(&mut self, work: &LinkWork) -> Result<Option<String>, TrialError> {
        let mut netlink = Netlink::open().map_err(NotTried::Open)?;
        trial::run(self.hands, &mut netlink, work).map(Some)
    }
}
