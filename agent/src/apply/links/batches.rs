//! Applies many changes of links that do not depend on each other, in one message.

use std::io;
use std::sync::Arc;

use super::error::StepError;
use super::kernel::Kernel;
use super::transaction::Transaction;
use crate::apply::context::ApplyContext;
use crate::apply::outcome::ApplyResult;
use crate::plan::Change;
use crate::plan::network::LinkOp;

/// Maximum number of changes in one batch. Progress is reported after each batch.
const BATCH_SIZE: usize = 512;

/// Result of a change, and true if the change was a trial that was rolled back.
pub(super) type TransactionOutcome = (ApplyResult, bool);

/// Applies changes that do not depend on each other: the first steps of all changes, then the
/// second steps, and so on.
pub(super) fn apply_batches(
    context: &ApplyContext,
    kernel: &mut dyn Kernel,
    changes: &[&Change],
) -> Vec<TransactionOutcome> {
    let mut transactions: Vec<Transaction> =
        changes.iter().filter_map(|change| Some(Transaction::new(change.link_action()?))).collect();
    // A change that may disrupt VMs is applied alone. So the VMs of a tenant are disconnected only while the links of
    // this tenant change, and not while links of other tenants change.
    let can_batch =
        |a: &Transaction, b: &Transaction| !a.action.may_disrupt && !b.action.may_disrupt;
    let batches =
        transactions.chunk_by_mut(can_batch).flat_map(|batch| batch.chunks_mut(BATCH_SIZE));
    let mut result = Ok(());
    for batch in batches {
        result = run_batch(kernel, batch);
        context.report_progress();
        if result.is_err() {
            break;
        }
    }
    match result.and_then(|()| kernel.links().map_err(Arc::new)) {
        Ok(links) => transactions
            .iter()
            .map(|transaction| (transaction.result(&links), transaction.was_trial_rolled_back()))
            .collect(),
        Err(error) => {
            let failed = |transaction: &Transaction| {
                (
                    ApplyResult::Failed(format!("netlink: {error}")),
                    transaction.was_trial_rolled_back(),
                )
            };
            transactions.iter().map(failed).collect()
        }
    }
}

/// Applies all steps of the transactions. If a step fails, also applies the rollback steps of its transaction.
fn run_batch(
    kernel: &mut dyn Kernel,
    transactions: &mut [Transaction],
) -> Result<(), Arc<io::Error>> {
    // A trial is the only transaction of its batch, and the gateway is probed before and after it.
    if let [transaction] = transactions
        && transaction.action.on_trial
    {
        return transaction.run_trial(kernel).map_err(Arc::new);
    }
    let mut netlink_error = None;
    loop {
        if let Err(error) = check_attached_links(kernel, transactions) {
            let error = Arc::new(error);
            stop_transactions(transactions, &error);
            netlink_error = Some(error);
        }
        let mut open: Vec<&mut Transaction> = transactions
            .iter_mut()
            .filter(|transaction| transaction.next_step().is_some())
            .collect();
        if open.is_empty() {
            set_links_up(kernel, transactions).map_err(Arc::new)?;
            return netlink_error.map_or(Ok(()), Err);
        }
        let steps: Vec<&LinkOp> =
            open.iter().filter_map(|transaction| transaction.next_step()).collect();
        match kernel.apply_steps(&steps) {
            Ok(results) => {
                for (transaction, result) in open.iter_mut().zip(results) {
                    transaction.record_step_result(result);
                }
            }
            // The next iterations of this loop apply the rollback steps. If the kernel does not answer the rollback
            // steps either, the loop ends.
            Err(error) if netlink_error.is_none() => {
                let error = Arc::new(error);
                stop_transactions(transactions, &error);
                netlink_error = Some(error);
            }
            Err(error) => return Err(Arc::new(error)),
        }
    }
}

fn stop_transactions(transactions: &mut [Transaction], error: &Arc<io::Error>) {
    for transaction in transactions
        .iter_mut()
        .filter(|transaction| !transaction.is_stopped() && transaction.next_step().is_some())
    {
        transaction.record_step_result(Err(StepError::Netlink(Arc::clone(error))));
    }
}

/// Reads the links again right before steps that may disconnect links, because a VM may have been attached since the
/// plan was made.
fn check_attached_links(
    kernel: &mut dyn Kernel,
    transactions: &mut [Transaction],
) -> io::Result<()> {
    if transactions.iter().any(Transaction::needs_in_use_check) {
        let links = kernel.links()?;
        transactions.iter_mut().for_each(|transaction| transaction.stop_if_in_use(&links));
    }
    Ok(())
}

/// Sets the links up that the transactions created.
fn set_links_up(kernel: &mut dyn Kernel, transactions: &mut [Transaction]) -> io::Result<()> {
    let indexed = transactions.iter().enumerate();
    let (owners, ops): (Vec<usize>, Vec<&LinkOp>) = indexed
        .flat_map(|(index, transaction)| transaction.created_link_ops().map(move |op| (index, op)))
        .unzip();
    if ops.is_empty() {
        return Ok(());
    }
    for (index, answer) in owners.into_iter().zip(kernel.set_links_up(&ops)?) {
        if let (Some(transaction), Err(error)) = (transactions.get_mut(index), answer) {
            transaction.record_set_up_failure(error);
        }
    }
    Ok(())
}
