//! The running kernel.

use std::io;

use berth_api::LinkName;

use super::error::{FilterError, StepError, TrialError, TrialNotStarted};
use super::kernel::Kernel;
use super::steps::{apply_steps, link_indexes};
use super::{filter, messages, trial};
use crate::apply::context::ApplyContext;
use crate::netlink::Netlink;
use crate::plan::network::{FilterAction, LinkAction, LinkOp};
use berth_host_facts::links::{Links, observe_live, read_stacked_links};

/// The running kernel, which is accessed through a netlink socket. The socket is opened when it is first needed.
pub(super) struct LiveKernel<'h, 'a> {
    context: &'h ApplyContext<'a>,
    netlink: Option<Netlink>,
}

impl<'h, 'a> LiveKernel<'h, 'a> {
    pub(super) const fn new(context: &'h ApplyContext<'a>) -> Self {
        Self { context, netlink: None }
    }

    /// Calls `request` with the netlink socket. If `request` fails, answers may still arrive on the socket, so the next
    /// call opens another socket.
    fn with_netlink<T>(
        &mut self,
        request: impl FnOnce(&ApplyContext<'a>, &mut Netlink) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut netlink = self.netlink.take().map_or_else(Netlink::open, Ok)?;
        let result = request(self.context, &mut netlink)?;
        self.netlink = Some(netlink);
        Ok(result)
    }
}

impl Kernel for LiveKernel<'_, '_> {
    fn apply_steps(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>> {
        self.with_netlink(|context, netlink| {
            let indexes = link_indexes(netlink, ops)?;
            apply_steps(context, netlink, &indexes, ops)
        })
    }

    fn set_links_up(&mut self, ops: &[&LinkOp]) -> io::Result<Vec<Result<(), StepError>>> {
        let messages = ops.iter().map(|op| messages::set_state_message(op.link(), true)).collect();
        let answers = self.with_netlink(|_, netlink| netlink.send_changes(messages))?;
        let answers = ops.iter().zip(answers);
        Ok(answers
            .map(|(op, answer)| answer.map_err(|refused| StepError::from_refusal(op, refused)))
            .collect())
    }

    fn apply_filter(&mut self, action: &FilterAction) -> Result<(), FilterError> {
        filter::apply_filter(action)
    }

    fn links(&mut self) -> io::Result<Links> {
        observe_live()
    }

    fn stacked_links(&mut self, name: &LinkName) -> io::Result<Links> {
        self.with_netlink(|context, netlink| {
            read_stacked_links(&mut netlink.reader, context.root, name)
        })
    }

    fn run_trial(&mut self, action: &LinkAction) -> Result<Option<String>, TrialError> {
        let mut netlink = Netlink::open().map_err(TrialNotStarted::Open)?;
        trial::run_trial(self.context, &mut netlink, action).map(Some)
    }
}
