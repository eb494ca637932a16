//! Reasons for which a machine is still on a host that it must leave. `berth-controller plan --drain` reports the same
//! reasons.

use std::fmt;

use serde::{Serialize, Serializer};

use super::migration::MAX_ATTEMPTS;
use crate::removal::report::RemovalReport;

/// Maximum number of different refusals in a message.
const MAX_REFUSALS: usize = 3;

/// Reason why a machine cannot be migrated, and is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplacementCause {
    /// The condition LiveMigratable of the VirtualMachineInstance is not true; the text is its message.
    NotMigratable(String),
    /// No other host fits. Each entry has a reason and the number of hosts that refuse the VM for this reason.
    NoHostFits(Vec<(String, usize)>),
    /// Several migrations have failed.
    MigrationsFailed,
    /// The replacement has already been requested. It is not cancelled while the host is drained.
    AlreadyRequested,
}

/// Reason why a machine waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvacuationReason {
    /// A live migration is in progress; the text is its name.
    Migrating(String),
    /// Other migrations from the same host are in progress.
    MigrationLimit,
    /// A migration has failed; another attempt follows.
    MigrationBackoff,
    /// The API server refuses the migration; the text is its message.
    MigrationRefused(String),
    /// The engine does not know all objects yet.
    EngineNotReady,
    /// A replacement was requested, and is not available yet.
    WaitingForReplacement(ReplacementCause),
    /// Too few machines of the MachineDeployment are available.
    BudgetExhausted(ReplacementCause),
    /// The machine was marked for its removal; the text is the reason of the mark. The second value is the report of
    /// the removal, if it is known.
    BeingRemoved(String, Option<RemovalReport>),
    /// The MachineDeployment is invalid; the text is the problem.
    InvalidDeployment(String),
    /// Berth does not manage the machine.
    NotManaged,
}

impl ReplacementCause {
    /// Returns the name of the cause.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotMigratable(_) => "NotMigratable",
            Self::NoHostFits(_) => "NoHostFits",
            Self::MigrationsFailed => "MigrationsFailed",
            Self::AlreadyRequested => "AlreadyRequested",
        }
    }
}

impl Serialize for ReplacementCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for ReplacementCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMigratable(message) => write!(f, "the VM cannot be migrated: {message}"),
            Self::NoHostFits(refusals) if refusals.is_empty() => {
                f.write_str("there is no other host")
            }
            Self::NoHostFits(refusals) => {
                f.write_str("the VM fits on no other host: ")?;
                for (at, (summary, hosts)) in refusals.iter().take(MAX_REFUSALS).enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}{hosts} {summary}")?;
                }
                Ok(())
            }
            Self::MigrationsFailed => write!(f, "{MAX_ATTEMPTS} live migrations have failed"),
            Self::AlreadyRequested => f.write_str("the replacement has already been requested"),
        }
    }
}

impl EvacuationReason {
    /// Returns the name of the reason.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Migrating(_) => "Migrating",
            Self::MigrationLimit => "MigrationLimit",
            Self::MigrationBackoff => "MigrationBackoff",
            Self::MigrationRefused(_) => "MigrationRefused",
            Self::EngineNotReady => "EngineNotReady",
            Self::WaitingForReplacement(_) => "WaitingForReplacement",
            Self::BudgetExhausted(_) => "BudgetExhausted",
            Self::BeingRemoved(..) => "BeingRemoved",
            Self::InvalidDeployment(_) => "InvalidDeployment",
            Self::NotManaged => "NotManaged",
        }
    }

    /// Returns true if the machine stays on the host until an operator or a user acts.
    #[must_use]
    pub const fn needs_operator(&self) -> bool {
        matches!(self, Self::NotManaged | Self::InvalidDeployment(_) | Self::MigrationRefused(_))
    }

    /// Returns true if the machine needs an operator, or its removal does not proceed.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        match self {
            Self::BeingRemoved(_, report) => report.as_ref().is_some_and(RemovalReport::is_blocked),
            _ => self.needs_operator(),
        }
    }
}

impl fmt::Display for EvacuationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Migrating(name) => write!(f, "live migration {name} is in progress"),
            Self::MigrationLimit => {
                f.write_str("other live migrations from the same host are in progress")
            }
            Self::MigrationBackoff => {
                f.write_str("a live migration has failed; another attempt follows")
            }
            Self::MigrationRefused(message) => {
                write!(f, "the API server refuses the live migration: {message}")
            }
            Self::EngineNotReady => {
                f.write_str("the assignment engine does not know all objects yet")
            }
            Self::WaitingForReplacement(cause) => {
                write!(f, "the replacement is not available yet; {cause}")
            }
            Self::BudgetExhausted(cause) => write!(
                f,
                "the MachineDeployment has too few available machines (maxUnavailable); {cause}"
            ),
            Self::BeingRemoved(reason, None) => {
                write!(f, "the machine is being drained and deleted ({reason})")
            }
            Self::BeingRemoved(reason, Some(report)) => {
                let RemovalReport { reason: state, message, .. } = report;
                write!(f, "the machine is being drained and deleted ({reason}), {state}: {message}")
            }
            Self::InvalidDeployment(problem) => {
                write!(f, "the MachineDeployment is invalid: {problem}")
            }
            Self::NotManaged => f.write_str(
                "no MachineDeployment that Berth reconciles owns the machine: another controller or a user must move it",
            ),
        }
    }
}
