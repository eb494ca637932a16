//! State of one change that is being applied: its steps, the reason why they stopped, and the steps
//! that restore the previous links.

use std::io;

use berth_api::LinkName;

use crate::apply::outcome::Ended;
use crate::plan::network::{LinkOp, LinkWork, holds, users};
use berth_host_facts::links::Links;

use super::error::{StepError, TrialError};
use super::kernel::Kernel;

/// A change that is being applied.
pub(super) struct Task<'a> {
    pub(super) work: &'a LinkWork,
    /// Index of its next step.
    next: usize,
    /// Number of steps that were done when it stopped.
    done: usize,
    /// The reason why its steps ended early.
    stopped: Option<Stopped>,
    /// True if its current steps are those that restore the previous links.
    undoing: bool,
    /// True if one of the restoring steps was refused, so that the other steps must not be done.
    cut_short: bool,
    /// True if it was tried, and rolled back because the gateway no longer answered.
    pub(super) taken_back: bool,
    /// Message of a trial that succeeded.
    tried: Option<String>,
}

enum Stopped {
    /// A step or a trial failed.
    Failed(Failure),
    /// Links are attached now that were not attached when the change was planned.
    InUse(String),
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Failure {
    Step(#[from] StepError),
    Trial(#[from] TrialError),
}

impl<'a> Task<'a> {
    pub(super) const fn new(work: &'a LinkWork) -> Self {
        Self {
            work,
            next: 0,
            done: 0,
            stopped: None,
            undoing: false,
            cut_short: false,
            taken_back: false,
            tried: None,
        }
    }

    /// Returns the next step, if there is one.
    pub(super) fn op(&self) -> Option<&'a LinkOp> {
        match (self.undoing, &self.stopped) {
            (true, _) if self.cut_short => None,
            (true, _) => self.work.undo.get(self.next),
            (false, None) => self.work.ops.get(self.next),
            (false, Some(_)) => None,
        }
    }

    /// Records the result of the next step.
    pub(super) fn took(&mut self, result: Result<(), StepError>) {
        match result {
            Err(why) if !self.undoing => self.stop(Stopped::Failed(why.into())),
            // The steps that follow would restore the link that the refused step was to replace: the bridge would
            // then have two uplinks.
            Err(_) if self.op().is_some_and(LinkOp::takes_away) => self.cut_short = true,
            _ => self.next += 1,
        }
    }

    /// Skips the next step, which has no work left.
    pub(super) const fn skip(&mut self) {
        self.next += 1;
    }

    /// Returns true if the next step might remove a link that is in use, which it must not.
    pub(super) fn needs_check(&self) -> bool {
        !self.undoing && !self.work.may_disrupt && self.op().is_some_and(LinkOp::takes_away)
    }

    /// Stops the change if its next step would take the network from attached links.
    pub(super) fn check(&mut self, links: &Links) {
        let op = self.op().filter(|_| self.needs_check());
        if let Some(why) = op.and_then(|op| self.in_use(op, links)) {
            self.stop(Stopped::InUse(why));
        }
    }

    fn in_use(&self, op: &LinkOp, links: &Links) -> Option<String> {
        let users: Vec<String> = users(op, links, &self.work.ops).into_iter().collect();
        (!users.is_empty()).then(|| format!("{}: {} came meanwhile", op.link(), users.join(", ")))
    }

    /// Returns true if a step was refused, or would have taken the network from a link.
    pub(super) const fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    fn stop(&mut self, why: Stopped) {
        self.stopped = Some(why);
        self.done = self.next;
        let mut done = self.work.ops.iter().take(self.done);
        if done.any(LinkOp::takes_away) && !self.work.undo.is_empty() {
            self.undoing = true;
            self.next = 0;
        }
    }

    /// Makes a change that may interrupt the host's own traffic.
    pub(super) fn run_trial(&mut self, kernel: &mut dyn Kernel) -> io::Result<()> {
        if !self.work.may_disrupt {
            let links = kernel.links()?;
            let why = self.work.ops.iter().find_map(|op| self.in_use(op, &links));
            self.stopped = why.map(Stopped::InUse);
        }
        if self.stopped.is_some() {
            return Ok(());
        }
        self.next = self.work.ops.len();
        match kernel.run_trial(self.work) {
            Ok(said) => self.tried = said,
            Err(error) => {
                self.taken_back = matches!(error, TrialError::RolledBack(_));
                self.stopped = Some(Stopped::Failed(error.into()));
            }
        }
        Ok(())
    }

    /// Returns the steps that created links, the last first, so that ports are set up before their bridges. A
    /// bridge that is up without a port has no carrier, and the kernel stops and starts it again when a port is
    /// added.
    pub(super) fn made(&self) -> impl Iterator<Item = &'a LinkOp> + use<'a> {
        let (done, restored) = match (&self.stopped, self.undoing) {
            (None, _) => (self.next, 0),
            (Some(_), false) => (self.done, 0),
            (Some(_), true) => (self.done, self.next),
        };
        let work = self.work;
        let steps = work.ops.iter().take(done).chain(work.undo.iter().take(restored));
        steps.rev().filter(|op| matches!(op, LinkOp::Make(_) | LinkOp::Settle(_)))
    }

    /// Records that a link that the change created could not be set up.
    pub(super) fn not_raised(&mut self, why: StepError) {
        self.stopped.get_or_insert_with(|| Stopped::Failed(why.into()));
    }

    /// Returns the result of the change, from the links that were read after it.
    pub(super) fn judge(&self, links: &Links) -> Ended {
        // A link that is created again was removed first, and exists again.
        let made = |name: &LinkName| {
            self.work
                .ops
                .iter()
                .any(|op| matches!(op, LinkOp::Make(desired) if desired.name == *name))
        };
        let lasting = |op: &&LinkOp| !matches!(op, LinkOp::Remove(name) if made(name));
        let unlike = |ops: &'a [LinkOp]| {
            ops.iter().filter(lasting).find_map(|op| Some((op, holds(op, links).err()?)))
        };
        let restored = || match unlike(&self.work.undo) {
            _ if !self.undoing => String::new(),
            None => "; what was there before is in place again".to_owned(),
            Some((_, why)) => format!("; and what was there before could not be restored: {why}"),
        };
        match (&self.stopped, unlike(&self.work.ops)) {
            (None, None) => Ended::Done(self.tried.clone()),
            (Some(Stopped::InUse(why)), _) => Ended::Blocked(format!("{why}{}", restored())),
            (Some(Stopped::Failed(why)), Some((LinkOp::AddVlans { port, vlans }, _)))
                if !self.undoing =>
            {
                let now = links.named(port).and_then(|link| link.vlans.clone()).unwrap_or_default();
                let missing = vlans.difference(&now.all);
                let carried = vlans.len() - missing.len();
                if carried == 0 {
                    return Ended::Failed(why.to_string());
                }
                Ended::Partial(format!("{carried} of {}; not {missing}: {why}", vlans.len()))
            }
            (Some(Stopped::Failed(why)), _) => Ended::Failed(format!("{why}{}", restored())),
            (None, Some((_, why))) => Ended::Failed(format!(
                "done, and reads back otherwise: {why}; something else changes it"
            )),
        }
    }
}
