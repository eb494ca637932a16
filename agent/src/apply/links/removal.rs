//! Removes links, one after the other. A removal holds the kernel's lock for all links (RTNL) while every CPU
//! releases the link (about 20 ms for a bridge), and a pod that starts needs that lock. So each removal is
//! followed by a wait of the same duration.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::StepError;
use super::kernel::Kernel;
use super::transaction::Transaction;
use crate::apply::context::ApplyContext;
use crate::apply::outcome::ApplyResult;
use crate::plan::Change;
use crate::plan::network::LinkOp;

/// Maximum wait after a removal, even if the removal took longer.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// Removes as many links as the time limit allows, and passes each outcome to `on_result`.
pub(super) fn remove_links(
    context: &ApplyContext,
    kernel: &mut dyn Kernel,
    changes: &[&Change],
    on_result: &mut dyn FnMut(&Change, ApplyResult),
) {
    let begin = Instant::now();
    for change in changes {
        if context.removal_time_limit.is_some_and(|budget| begin.elapsed() > budget) {
            return;
        }
        let failed = |error: io::Error| ApplyResult::Failed(format!("netlink: {error}"));
        let Some(action) = change.link_action() else { continue };
        on_result(change, apply_removal(kernel, Transaction::new(action)).unwrap_or_else(failed));
        context.report_progress();
    }
}

fn apply_removal(kernel: &mut dyn Kernel, mut transaction: Transaction) -> io::Result<ApplyResult> {
    while let Some(op) = transaction.next_step() {
        // A VM may have been attached since the plan was made, or since the last step. The kernel removes a link even
        // if a VM is attached to it.
        if transaction.needs_in_use_check() {
            let target = match op {
                LinkOp::Leave { port, .. } => port,
                other => other.link(),
            };
            let stacked_links = match kernel.stacked_links(target) {
                Ok(near) => near,
                Err(error) => {
                    let (link, source) = (target.clone(), Arc::new(error));
                    transaction
                        .record_step_result(Err(StepError::AttachedLinksUnknown { link, source }));
                    continue;
                }
            };
            transaction.stop_if_in_use(&stacked_links);
            if transaction.next_step() != Some(op) {
                continue;
            }
            // The port may belong to another bridge by now.
            if let LinkOp::Leave { port, bridge } = op
                && stacked_links.find_by_name(port).and_then(|port| port.master.as_ref())
                    != Some(bridge)
            {
                transaction.skip_step();
                continue;
            }
        }
        let begin = Instant::now();
        let result = kernel.apply_steps(&[op]).map(|mut results| results.pop().unwrap_or(Ok(())));
        transaction.record_step_result(
            result.unwrap_or_else(|error| Err(StepError::netlink_error(error))),
        );
        std::thread::sleep(begin.elapsed().min(MAX_WAIT));
    }
    if transaction.is_stopped() {
        Ok(transaction.result(&kernel.links()?))
    } else {
        Ok(ApplyResult::Done(None))
    }
}
