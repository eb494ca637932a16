//! A change of links as a transaction: its steps, its phase, and the steps that restore the previous links if a
//! step is refused.

use std::io;

use berth_api::LinkName;

use crate::apply::outcome::ApplyResult;
use crate::plan::network::{LinkAction, LinkOp, disconnected_links, verify_step};
use berth_host_facts::links::Links;

use super::error::{StepError, TrialError};
use super::kernel::Kernel;

/// A change of links that is being applied.
pub(super) struct Transaction<'a> {
    pub(super) action: &'a LinkAction,
    phase: Phase,
}

enum Phase {
    /// The steps of the change are being applied, in order.
    Applying {
        /// Index of the next step.
        next: usize,
    },
    /// A trial of the change succeeded.
    TrialSucceeded {
        /// Message of the trial.
        message: Option<String>,
    },
    /// The change was stopped, and no rollback follows.
    Stopped {
        cause: StopCause,
        /// Number of steps that were applied.
        applied: usize,
    },
    /// The change was stopped, and rollback steps are restoring the previous links.
    RollingBack {
        cause: StopCause,
        /// Number of steps that were applied.
        applied: usize,
        /// Index of the next rollback step.
        next: usize,
    },
    /// The kernel refused a rollback step, and the rollback steps after it must not be applied.
    RollbackRefused {
        cause: StopCause,
        /// Number of steps that were applied.
        applied: usize,
        /// Number of rollback steps that were applied.
        restored: usize,
    },
}

/// Reason why a change was stopped.
enum StopCause {
    Failed(StepOrTrialError),
    /// VMs or other links were attached after the change was planned, and the next step would disconnect them.
    InUse(String),
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum StepOrTrialError {
    Step(#[from] StepError),
    Trial(#[from] TrialError),
}

impl<'a> Transaction<'a> {
    pub(super) const fn new(action: &'a LinkAction) -> Self {
        Self { action, phase: Phase::Applying { next: 0 } }
    }

    /// Returns the next step, if there is one.
    pub(super) fn next_step(&self) -> Option<&'a LinkOp> {
        match self.phase {
            Phase::Applying { next } => self.action.ops.get(next),
            Phase::RollingBack { next, .. } => self.action.rollback_ops.get(next),
            Phase::TrialSucceeded { .. }
            | Phase::Stopped { .. }
            | Phase::RollbackRefused { .. } => None,
        }
    }

    /// Records the result of the step that [`Self::next_step`] returned.
    pub(super) fn record_step_result(&mut self, result: Result<(), StepError>) {
        match result {
            Ok(()) => self.skip_step(),
            Err(error) if self.is_applying() => self.stop(StopCause::Failed(error.into())),
            // The refused rollback step was to remove a link, which therefore still exists. The rollback steps that
            // follow would add the previous link, and the bridge would then have two uplinks.
            Err(_) if self.next_step().is_some_and(LinkOp::may_disconnect_links) => {
                self.stop_rollback()
            }
            Err(_) => self.skip_step(),
        }
    }

    /// Skips the next step, which need not be applied.
    pub(super) const fn skip_step(&mut self) {
        if let Phase::Applying { next } | Phase::RollingBack { next, .. } = &mut self.phase {
            *next += 1;
        }
    }

    /// Returns true if the next step may disconnect links, and the change must not disconnect links that are in use.
    /// The caller then has to call [`Self::stop_if_in_use`] before the step.
    pub(super) fn needs_in_use_check(&self) -> bool {
        self.is_applying()
            && !self.action.may_disrupt
            && self.next_step().is_some_and(LinkOp::may_disconnect_links)
    }

    /// Stops the change if its next step would disconnect links that were attached after the change was planned.
    pub(super) fn stop_if_in_use(&mut self, links: &Links) {
        let op = self.next_step().filter(|_| self.needs_in_use_check());
        if let Some(reason) = op.and_then(|op| self.in_use_reason(op, links)) {
            self.stop(StopCause::InUse(reason));
        }
    }

    fn in_use_reason(&self, op: &LinkOp, links: &Links) -> Option<String> {
        let users: Vec<String> =
            disconnected_links(op, links, &self.action.ops).into_iter().collect();
        (!users.is_empty()).then(|| {
            format!(
                "{}: links were attached after the plan was made: {}",
                op.link(),
                users.join(", ")
            )
        })
    }

    const fn is_applying(&self) -> bool {
        matches!(self.phase, Phase::Applying { .. })
    }

    /// Returns true if the change was stopped.
    pub(super) const fn is_stopped(&self) -> bool {
        self.stop_cause().is_some()
    }

    const fn stop_cause(&self) -> Option<&StopCause> {
        match &self.phase {
            Phase::Applying { .. } | Phase::TrialSucceeded { .. } => None,
            Phase::Stopped { cause, .. }
            | Phase::RollingBack { cause, .. }
            | Phase::RollbackRefused { cause, .. } => Some(cause),
        }
    }

    /// Returns true if the rollback began, even if the kernel refused a rollback step.
    const fn is_rolling_back(&self) -> bool {
        matches!(self.phase, Phase::RollingBack { .. } | Phase::RollbackRefused { .. })
    }

    /// Returns true if a trial of the change began and failed, so that it was rolled back.
    pub(super) const fn was_trial_rolled_back(&self) -> bool {
        matches!(
            self.stop_cause(),
            Some(StopCause::Failed(StepOrTrialError::Trial(TrialError::RollbackResult(_))))
        )
    }

    /// Stops the change, and begins the rollback if an applied step removed something and the change has rollback
    /// steps.
    fn stop(&mut self, cause: StopCause) {
        let Phase::Applying { next: applied } = self.phase else { return };
        let mut done = self.action.ops.iter().take(applied);
        self.phase =
            if done.any(LinkOp::may_disconnect_links) && !self.action.rollback_ops.is_empty() {
                Phase::RollingBack { cause, applied, next: 0 }
            } else {
                Phase::Stopped { cause, applied }
            };
    }

    fn stop_rollback(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Applying { next: 0 });
        self.phase = match phase {
            Phase::RollingBack { cause, applied, next } => {
                Phase::RollbackRefused { cause, applied, restored: next }
            }
            other => other,
        };
    }

    /// Applies a change that may interrupt the host's own traffic, as a trial.
    pub(super) fn run_trial(&mut self, kernel: &mut dyn Kernel) -> io::Result<()> {
        if !self.action.may_disrupt {
            let links = kernel.links()?;
            let reason = self.action.ops.iter().find_map(|op| self.in_use_reason(op, &links));
            if let Some(reason) = reason {
                self.phase = Phase::Stopped { cause: StopCause::InUse(reason), applied: 0 };
                return Ok(());
            }
        }
        self.phase = match kernel.run_trial(self.action) {
            Ok(message) => Phase::TrialSucceeded { message },
            Err(error) => Phase::Stopped { cause: StopCause::Failed(error.into()), applied: 0 },
        };
        Ok(())
    }

    /// Returns the applied steps that create links or set their properties, the last first, so that ports are set up
    /// before their bridges. A bridge that is up without a port has no carrier, and the kernel stops and starts it
    /// again when a port is added.
    pub(super) fn created_link_ops(&self) -> impl Iterator<Item = &'a LinkOp> + use<'a> {
        let (done, restored) = match self.phase {
            Phase::Applying { next } => (next, 0),
            Phase::TrialSucceeded { .. } => (self.action.ops.len(), 0),
            Phase::Stopped { applied, .. } => (applied, 0),
            Phase::RollingBack { applied, next, .. } => (applied, next),
            Phase::RollbackRefused { applied, restored, .. } => (applied, restored),
        };
        let action = self.action;
        let steps = action.ops.iter().take(done).chain(action.rollback_ops.iter().take(restored));
        steps.rev().filter(|op| matches!(op, LinkOp::Create(_) | LinkOp::SetProperties(_)))
    }

    /// Records that a link of the change could not be set up.
    pub(super) fn record_set_up_failure(&mut self, error: StepError) {
        if let Phase::Applying { next: applied } = self.phase {
            self.phase = Phase::Stopped { cause: StopCause::Failed(error.into()), applied };
        }
    }

    /// Returns the result of the change, after a comparison of each step with the links that were read after the
    /// change.
    pub(super) fn result(&self, links: &Links) -> ApplyResult {
        // A link that the change removes and creates again exists afterwards, so its removal is not verified.
        let is_created = |name: &LinkName| {
            self.action
                .ops
                .iter()
                .any(|op| matches!(op, LinkOp::Create(desired) if desired.name == *name))
        };
        let is_verified = |op: &&LinkOp| !matches!(op, LinkOp::Remove(name) if is_created(name));
        let find_mismatch = |ops: &'a [LinkOp]| {
            ops.iter().filter(is_verified).find_map(|op| Some((op, verify_step(op, links).err()?)))
        };
        let rollback_note = || match find_mismatch(&self.action.rollback_ops) {
            _ if !self.is_rolling_back() => String::new(),
            None => "; the previous links were restored".to_owned(),
            Some((_, mismatch)) => {
                format!("; and the previous links could not be restored: {mismatch}")
            }
        };
        match (self.stop_cause(), find_mismatch(&self.action.ops)) {
            (None, None) => ApplyResult::Done(match &self.phase {
                Phase::TrialSucceeded { message } => message.clone(),
                _ => None,
            }),
            (Some(StopCause::InUse(reason)), _) => {
                ApplyResult::Blocked(format!("{reason}{}", rollback_note()))
            }
            (Some(StopCause::Failed(error)), Some((LinkOp::AddVlans { port, vlans }, _)))
                if !self.is_rolling_back() =>
            {
                let now = links
                    .find_by_name(port)
                    .and_then(|link| link.vlans.clone())
                    .unwrap_or_default();
                let missing = vlans.difference(&now.all);
                let carried = vlans.len() - missing.len();
                if carried == 0 {
                    return ApplyResult::Failed(error.to_string());
                }
                ApplyResult::Partial(format!(
                    "{carried} of {} VLANs added, VLANs {missing} refused: {error}",
                    vlans.len()
                ))
            }
            (Some(StopCause::Failed(error)), _) => {
                ApplyResult::Failed(format!("{error}{}", rollback_note()))
            }
            (None, Some((_, mismatch))) => ApplyResult::Failed(format!(
                "the change was applied, but: {mismatch}; another program changes the link"
            )),
        }
    }
}
