//! The mark of a machine that is to be removed: two annotations of its VirtualMachine.

use std::str::FromStr;

use berth_api::names::{REMOVAL_ANNOTATION, REMOVAL_SINCE_ANNOTATION};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Reason why a machine is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// The MachineDeployment has too many machines.
    ScaleDown,
    /// The template of the MachineDeployment has changed.
    Rollout,
    /// The MachineDeployment is being deleted.
    Deleted,
    /// The host is being drained.
    HostDrain,
    /// The host is lost.
    HostLost,
}

/// Mark of a machine that is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Reason of the removal.
    pub reason: RemovalReason,
    /// Time from which deadlines count.
    pub since: Timestamp,
}

/// Error about an unknown reason of a removal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown reason of a removal: {0}")]
pub struct UnknownRemovalReason(String);

impl RemovalReason {
    /// Returns the value of the annotation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScaleDown => "ScaleDown",
            Self::Rollout => "Rollout",
            Self::Deleted => "Deleted",
            Self::HostDrain => "HostDrain",
            Self::HostLost => "HostLost",
        }
    }
}

impl FromStr for RemovalReason {
    type Err = UnknownRemovalReason;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::ScaleDown, Self::Rollout, Self::Deleted, Self::HostDrain, Self::HostLost];
        let found = all.into_iter().find(|reason| reason.as_str() == text);
        found.ok_or_else(|| UnknownRemovalReason(text.to_owned()))
    }
}

impl Removal {
    /// Returns the mark of a VirtualMachine; `None` if it has none.
    #[must_use]
    pub fn of(machine: &DynamicObject) -> Option<Self> {
        let annotations = machine.annotations();
        let reason = annotations.get(REMOVAL_ANNOTATION)?;
        let since = annotations.get(REMOVAL_SINCE_ANNOTATION);
        Some(Self {
            reason: reason.parse().unwrap_or(RemovalReason::Rollout),
            since: since.and_then(|since| since.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH),
        })
    }

    /// Returns the merge patch that marks a VirtualMachine.
    #[must_use]
    pub fn patch(&self) -> Value {
        json!({"metadata": {"annotations": {
            REMOVAL_ANNOTATION: self.reason.as_str(),
            REMOVAL_SINCE_ANNOTATION: self.since.to_string(),
        }}})
    }
}
