//! The removal mark: annotations of a VirtualMachine that Berth removes. The mark and the record of
//! [`super::progress`] are the only state of a removal; all other facts are read again after a restart.

use std::fmt;
use std::str::FromStr;

use berth_api::Time;
use berth_api::names::{
    HOST_LOST_AGAIN_ANNOTATION, HOST_LOST_REMOVAL, HOST_RETURNED_ANNOTATION, REMOVAL_ANNOTATION,
    REMOVAL_SINCE_ANNOTATION,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Longest time for which a mark may be in the future, because clocks of controllers differ.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_mins(5);

/// Reason why a machine is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemovalReason {
    /// The MachineDeployment has more machines than desired.
    ScaleDown,
    /// The machine was created from another template, or has failed.
    Rollout,
    /// The MachineDeployment is being deleted.
    Deleted,
    /// The host of the machine is being drained.
    HostDrain,
    /// The host of the machine is lost.
    HostLost,
}

impl RemovalReason {
    const ALL: [Self; 5] =
        [Self::ScaleDown, Self::Rollout, Self::Deleted, Self::HostDrain, Self::HostLost];

    /// Returns the value of the annotation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScaleDown => "ScaleDown",
            Self::Rollout => "Rollout",
            Self::Deleted => "Deleted",
            Self::HostDrain => "HostDrain",
            Self::HostLost => HOST_LOST_REMOVAL,
        }
    }
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Error for a text that is not a reason of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not ScaleDown, Rollout, Deleted, HostDrain or HostLost")]
pub struct UnknownRemovalReason;

impl FromStr for RemovalReason {
    type Err = UnknownRemovalReason;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or(UnknownRemovalReason)
    }
}

/// Mark of a machine that Berth removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalMark {
    pub reason: RemovalReason,
    /// Time of the mark, in whole seconds.
    pub since: Timestamp,
}

/// Result of reading the mark of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedMark {
    /// The machine has no mark.
    Absent,
    /// The machine has a mark.
    Valid(RemovalMark),
    /// The annotations of the mark are malformed. The value is the mark to write in their place.
    Malformed(RemovalMark),
}

impl RemovalMark {
    /// Returns a mark. The time is truncated to whole seconds.
    #[must_use]
    pub fn new(reason: RemovalReason, since: Timestamp) -> Self {
        let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
        Self { reason, since }
    }

    /// Returns the mark of a machine; `None` if it has none, or if its annotations are malformed.
    #[must_use]
    pub fn from_machine(machine: &DynamicObject) -> Option<Self> {
        let annotations = machine.annotations();
        let reason = annotations.get(REMOVAL_ANNOTATION)?.parse().ok()?;
        let since: Timestamp = annotations.get(REMOVAL_SINCE_ANNOTATION)?.parse().ok()?;
        Some(Self::new(reason, since))
    }

    /// Returns the merge patch that writes the mark.
    #[must_use]
    pub fn patch(&self) -> Value {
        let (reason, since) = (self.reason.as_str(), Time(self.since));
        let annotations = json!({REMOVAL_ANNOTATION: reason, REMOVAL_SINCE_ANNOTATION: since});
        json!({"metadata": {"annotations": annotations}})
    }

    /// Returns the merge patch that writes the mark. The API server refuses it if the machine has changed since it was
    /// read.
    #[must_use]
    pub fn patch_of(&self, machine: &DynamicObject) -> Value {
        let mut patch = self.patch();
        patch["metadata"]["uid"] = machine.uid().into();
        patch["metadata"]["resourceVersion"] = machine.resource_version().into();
        patch
    }

    /// Returns the merge patch that removes a mark, which cancels the removal: the Node is uncordoned, and the
    /// machine stays.
    #[must_use]
    pub fn cancellation_patch() -> Value {
        let annotations = json!({
            REMOVAL_ANNOTATION: null, REMOVAL_SINCE_ANNOTATION: null, HOST_RETURNED_ANNOTATION: null,
            HOST_LOST_AGAIN_ANNOTATION: null,
        });
        json!({"metadata": {"annotations": annotations}})
    }
}

impl ParsedMark {
    /// Reads the mark of a machine. A machine has a mark if it has the annotation of the reason, even with a malformed
    /// value.
    #[must_use]
    pub fn read(machine: &DynamicObject, now: Timestamp) -> Self {
        let Some(reason) = machine.annotations().get(REMOVAL_ANNOTATION) else {
            return Self::Absent;
        };
        let is_plausible = |removal: &RemovalMark| {
            now.checked_add(MAX_CLOCK_DIFFERENCE).is_ok_and(|latest| removal.since <= latest)
        };
        match RemovalMark::from_machine(machine).filter(is_plausible) {
            Some(removal) => Self::Valid(removal),
            None => {
                let reason = reason.parse().unwrap_or(RemovalReason::Rollout);
                Self::Malformed(RemovalMark::new(reason, now))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn machine(annotations: &Value) -> DynamicObject {
        let metadata = json!({"name": "web-1", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn now() -> Timestamp {
        "2026-05-01T12:00:00.7Z".parse().unwrap()
    }

    #[test]
    fn a_written_mark_is_read_again() {
        for reason in RemovalReason::ALL {
            let removal = RemovalMark::new(reason, now());
            let patch = removal.patch();
            assert_eq!(patch["metadata"]["annotations"][REMOVAL_ANNOTATION], reason.as_str());
            let machine = machine(&patch["metadata"]["annotations"]);
            assert_eq!(RemovalMark::from_machine(&machine), Some(removal));
            assert_eq!(ParsedMark::read(&machine, now()), ParsedMark::Valid(removal));
        }
        assert_eq!(ParsedMark::read(&machine(&json!({})), now()), ParsedMark::Absent);
        assert_eq!(
            RemovalMark::cancellation_patch()["metadata"]["annotations"][REMOVAL_ANNOTATION],
            json!(null)
        );
    }

    #[test]
    fn a_mark_is_written_to_the_read_machine_only() {
        let metadata = json!({"name": "web-1", "uid": "u", "resourceVersion": "7"});
        let machine = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let patch = RemovalMark::new(RemovalReason::Rollout, now()).patch_of(&machine);
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["annotations"][REMOVAL_ANNOTATION], "Rollout");
    }

    #[test]
    fn a_malformed_mark_begins_now() {
        let read = |reason: &str, since: &str| {
            ParsedMark::read(
                &machine(&json!({REMOVAL_ANNOTATION: reason, REMOVAL_SINCE_ANNOTATION: since})),
                now(),
            )
        };
        let expected = |reason| ParsedMark::Malformed(RemovalMark::new(reason, now()));
        assert_eq!(read("HostDrain", "yesterday"), expected(RemovalReason::HostDrain));
        assert_eq!(read("why", "2026-05-01T11:00:00Z"), expected(RemovalReason::Rollout));
        // A mark with a time in the far future would delay the deletion.
        assert_eq!(read("ScaleDown", "2036-05-01T11:00:00Z"), expected(RemovalReason::ScaleDown));
        let without_time = machine(&json!({REMOVAL_ANNOTATION: "Rollout"}));
        assert_eq!(ParsedMark::read(&without_time, now()), expected(RemovalReason::Rollout));
        assert_eq!(RemovalMark::from_machine(&without_time), None);
    }

    proptest! {
        #[test]
        fn any_annotation_gives_a_mark(reason in "\\PC{0,20}", since in "\\PC{0,40}") {
            let object = machine(&json!({REMOVAL_ANNOTATION: reason, REMOVAL_SINCE_ANNOTATION: since}));
            prop_assert_ne!(ParsedMark::read(&object, now()), ParsedMark::Absent);
        }
    }
}
