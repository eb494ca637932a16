//! Applies many changes of links that do not depend on each other, in one message.

use std::io;
use std::sync::Arc;

use super::error::StepError;
use super::kernel::Kernel;
use super::task::Task;
use crate::apply::hands::Hands;
use crate::apply::outcome::Ended;
use crate::plan::Change;
use crate::plan::network::LinkOp;

/// Number of changes between two reports of progress.
const WAVE: usize = 512;

/// Result of a change, and true if it was on trial and rolled back.
pub(super) type Done = (Ended, bool);

/// Applies changes that do not depend on each other: the first steps of all changes, then the
/// second steps, and so on.
pub(super) fn all_at_once(
    hands: &Hands,
    kernel: &mut dyn Kernel,
    changes: &[&Change],
) -> Vec<Done> {
    let mut tasks: Vec<Task> =
        changes.iter().filter_map(|change| Some(Task::new(change.links()?))).collect();
    // If VMs lose the network by a change, they lose it only for the links of their tenant, and not for those
    // of other tenants.
    let together = |a: &Task, b: &Task| !a.work.may_disrupt && !b.work.may_disrupt;
    let waves = tasks.chunk_by_mut(together).flat_map(|wave| wave.chunks_mut(WAVE));
    let mut result = Ok(());
    for wave in waves {
        result = run(kernel, wave);
        hands.alive();
        if result.is_err() {
            break;
        }
    }
    match result.and_then(|()| kernel.links().map_err(Arc::new)) {
        Ok(links) => tasks.iter().map(|task| (task.judge(&links), task.taken_back)).collect(),
        Err(error) => {
            let failed =
                |task: &Task| (Ended::Failed(format!("netlink: {error}")), task.taken_back);
            tasks.iter().map(failed).collect()
        }
    }
}

/// Applies all steps of the tasks.
fn run(kernel: &mut dyn Kernel, tasks: &mut [Task]) -> Result<(), Arc<io::Error>> {
    // A change on trial is the only task, with a probe before and after it.
    if let [task] = tasks
        && task.work.trial
    {
        return task.run_trial(kernel).map_err(Arc::new);
    }
    let mut broken = None;
    loop {
        if let Err(error) = check(kernel, tasks) {
            let error = Arc::new(error);
            stop_all(tasks, &error);
            broken = Some(error);
        }
        let mut open: Vec<&mut Task> =
            tasks.iter_mut().filter(|task| task.op().is_some()).collect();
        if open.is_empty() {
            raise(kernel, tasks).map_err(Arc::new)?;
            return broken.map_or(Ok(()), Err);
        }
        let steps: Vec<&LinkOp> = open.iter().filter_map(|task| task.op()).collect();
        match kernel.step(&steps) {
            Ok(results) => {
                for (task, result) in open.iter_mut().zip(results) {
                    task.took(result);
                }
            }
            // The previous links are restored, if the kernel answers these requests.
            Err(error) if broken.is_none() => {
                let error = Arc::new(error);
                stop_all(tasks, &error);
                broken = Some(error);
            }
            Err(error) => return Err(Arc::new(error)),
        }
    }
}

fn stop_all(tasks: &mut [Task], error: &Arc<io::Error>) {
    for task in tasks.iter_mut().filter(|task| !task.is_stopped() && task.op().is_some()) {
        task.took(Err(StepError::Netlink(Arc::clone(error))));
    }
}

/// Reads the links again right before steps that remove something: a VM may have been attached since the plan was
/// made.
fn check(kernel: &mut dyn Kernel, tasks: &mut [Task]) -> io::Result<()> {
    if tasks.iter().any(Task::needs_check) {
        let links = kernel.links()?;
        tasks.iter_mut().for_each(|task| task.check(&links));
    }
    Ok(())
}

/// Sets the created links up.
fn raise(kernel: &mut dyn Kernel, tasks: &mut [Task]) -> io::Result<()> {
    let made = tasks.iter().enumerate();
    let (owners, ops): (Vec<usize>, Vec<&LinkOp>) =
        made.flat_map(|(place, task)| task.made().map(move |op| (place, op))).unzip();
    if ops.is_empty() {
        return Ok(());
    }
    for (place, answer) in owners.into_iter().zip(kernel.raise(&ops)?) {
        if let (Some(task), Err(why)) = (tasks.get_mut(place), answer) {
            task.not_raised(why);
        }
    }
    Ok(())
}
