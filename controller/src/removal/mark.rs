//! Mark of a machine that Berth wants to remove: two annotations of its VirtualMachine.

use berth_api::Time;
use berth_api::names::{REMOVAL_ANNOTATION, REMOVAL_SINCE_ANNOTATION};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Reason why a machine is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// The MachineDeployment has more machines than desired.
    ScaleDown,
    /// The machine has an older template.
    Rollout,
    /// The MachineDeployment is deleted.
    Deleted,
    /// The host of the machine is drained.
    HostDrain,
    /// The host of the machine is lost.
    HostLost,
}

impl RemovalReason {
    const ALL: [Self; 5] =
        [Self::ScaleDown, Self::Rollout, Self::Deleted, Self::HostDrain, Self::HostLost];

    const fn as_str(self) -> &'static str {
        match self {
            Self::ScaleDown => "ScaleDown",
            Self::Rollout => "Rollout",
            Self::Deleted => "Deleted",
            Self::HostDrain => "HostDrain",
            Self::HostLost => "HostLost",
        }
    }
}

/// Mark of a machine that Berth wants to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Reason of the removal.
    pub reason: RemovalReason,
    /// Time of the mark.
    pub since: Timestamp,
}

impl Removal {
    /// Returns the mark of a VirtualMachine; `None` if it has no mark, or a malformed one.
    #[must_use]
    pub fn of(machine: &DynamicObject) -> Option<Self> {
        let annotations = machine.annotations();
        let text = annotations.get(REMOVAL_ANNOTATION)?;
        let reason = RemovalReason::ALL.into_iter().find(|one| one.as_str() == text)?;
        let since = annotations.get(REMOVAL_SINCE_ANNOTATION)?.parse().ok()?;
        Some(Self { reason, since })
    }

    /// Returns the merge patch that marks a VirtualMachine.
    #[must_use]
    pub fn patch(&self) -> Value {
        json!({"metadata": {"annotations": {
            REMOVAL_ANNOTATION: self.reason.as_str(),
            REMOVAL_SINCE_ANNOTATION: Time(self.since),
        }}})
    }
}
