//! Logs problems of the host and of its desired state: each problem once when it appears, and once when it is
//! resolved.

use std::collections::BTreeSet;
use std::fmt;

use crate::manifest::Fault;

/// A problem that exists until a cycle no longer finds it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Problem {
    /// A fault in the desired state.
    Fault(Fault),
    /// The desired state is not applied, for this reason.
    NotApplied(String),
    /// No change can be applied, for this reason.
    ChangesBlocked(String),
    /// A warning about the host.
    Warning(String),
    Blocked {
        change: String,
        reason: String,
    },
    /// The client certificate expires soon, or has expired.
    Certificate(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::NotApplied(text)
            | Self::ChangesBlocked(text)
            | Self::Warning(text)
            | Self::Certificate(text) => f.write_str(text),
            Self::Blocked { change, reason } => write!(f, "{change}: {reason}"),
        }
    }
}

impl Problem {
    fn log_warning(&self) {
        match self {
            Self::Fault(Fault { field, value, message }) => {
                tracing::warn!(%field, %value, error = %message, "fault in the desired state");
            }
            Self::NotApplied(reason) => {
                tracing::warn!(%reason, "the desired state is not applied");
            }
            Self::ChangesBlocked(reason) => tracing::warn!(%reason, "no change can be applied"),
            Self::Warning(warning) => tracing::warn!(%warning, "unexpected state of the host"),
            Self::Blocked { change, reason } => {
                tracing::warn!(%change, %reason, "a change is blocked");
            }
            Self::Certificate(certificate) => {
                tracing::warn!(%certificate, "the client certificate must be renewed");
            }
        }
    }
}

/// Problems that the last cycle found.
#[derive(Debug, Default)]
pub(super) struct ProblemLog(BTreeSet<Problem>);

impl ProblemLog {
    /// Logs new and resolved problems.
    pub(super) fn update(&mut self, current: BTreeSet<Problem>) {
        for problem in current.difference(&self.0) {
            problem.log_warning();
        }
        for problem in self.0.difference(&current) {
            tracing::info!(%problem, "problem resolved");
        }
        self.0 = current;
    }
}
