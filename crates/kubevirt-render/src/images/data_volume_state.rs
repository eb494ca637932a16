//! Observed state of a DataVolume that imports a golden image.

use berth_api::{GoldenImagePhase, Quantity};
use serde_json::Value;

use super::source::ImageSource;

/// Observed state of a DataVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataVolumeState {
    /// Phase of the import.
    pub phase: GoldenImagePhase,
    /// True if the import has failed and CDI does not try again.
    pub has_ended: bool,
    /// Requested size, before CDI adds the overhead of a file system.
    pub size: Option<Quantity>,
    /// Checksum that CDI verifies.
    pub checksum: Option<String>,
    /// Progress of the import, such as `42.00%`.
    pub progress: Option<String>,
    /// Message of CDI while the import is not complete.
    pub message: Option<String>,
}

impl DataVolumeState {
    /// Reads a DataVolume from its JSON.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let text = |pointer: &str| {
            let text = object.pointer(pointer).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let size = ["storage", "pvc"].iter().find_map(|field| {
            object.pointer(&format!("/spec/{field}/resources/requests/storage")).cloned()
        });
        let phase = read_phase(object);
        let is_ready = phase == GoldenImagePhase::Ready;
        Self {
            phase,
            has_ended: text("/status/phase").as_deref() == Some("Failed"),
            size: size.and_then(|size| serde_json::from_value(size).ok()),
            checksum: text("/spec/source/http/checksum"),
            progress: text("/status/progress"),
            message: if is_ready { None } else { read_message(object) },
        }
    }

    /// Returns true if the image has a checksum that CDI does not verify: releases before 1.65 have no such field, so
    /// the API server drops it.
    #[must_use]
    pub fn ignores_checksum(&self, source: &ImageSource) -> bool {
        match source {
            ImageSource::Http(http) => http.checksum.is_some() && self.checksum.is_none(),
            ImageSource::Registry(_) | ImageSource::Volume { .. } => false,
        }
    }
}

/// Returns the phase. CDI restarts the pod of a failed import, and its DataVolume stays in the phase of an import in
/// progress: the import fails if the pod has restarted and is not running.
fn read_phase(object: &Value) -> GoldenImagePhase {
    let phase = object.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    let restarts = object.pointer("/status/restartCount").and_then(Value::as_u64).unwrap_or(0);
    match phase {
        "Succeeded" => GoldenImagePhase::Ready,
        "Failed" => GoldenImagePhase::Failed,
        _ if restarts > 0 && has_status(object, "Running", "False") => GoldenImagePhase::Failed,
        ""
        | "Pending"
        | "Paused"
        | "PVCBound"
        | "Unknown"
        | "WaitForFirstConsumer"
        | "PendingPopulation"
        | "ImportScheduled"
        | "CloneScheduled" => GoldenImagePhase::Pending,
        _ => GoldenImagePhase::Importing,
    }
}

/// Returns the message of the condition that describes why the import is not complete: that of the importer, otherwise
/// that of the PersistentVolumeClaim.
fn read_message(object: &Value) -> Option<String> {
    ["Running", "Bound"].into_iter().find_map(|type_| {
        let condition = find_condition(object, type_)?;
        let message = condition.get("message").and_then(Value::as_str)?;
        let is_problem = condition.get("status").and_then(Value::as_str) != Some("True");
        (is_problem && !message.is_empty()).then(|| message.to_owned())
    })
}

fn has_status(object: &Value, type_: &str, status: &str) -> bool {
    let condition = find_condition(object, type_);
    condition.is_some_and(|condition| condition["status"] == status)
}

fn find_condition<'o>(object: &'o Value, type_: &str) -> Option<&'o Value> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array)?;
    conditions.iter().find(|condition| condition["type"] == type_)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::images::source::HttpSource;

    fn state(phase: &str, restarts: u32, running: &str, message: &str) -> DataVolumeState {
        DataVolumeState::from_object(&json!({
            "spec": {"storage": {"resources": {"requests": {"storage": "10Gi"}}}},
            "status": {
                "phase": phase, "restartCount": restarts, "progress": "N/A",
                "conditions": [
                    {"type": "Bound", "status": "True", "message": "PVC image Bound"},
                    {"type": "Running", "status": running, "message": message},
                ],
            },
        }))
    }

    #[test]
    fn phases_are_those_of_cdi() {
        use GoldenImagePhase::{Failed, Importing, Pending, Ready};
        for (phase, restarts, running, expected) in [
            ("", 0, "False", Pending),
            ("PendingPopulation", 0, "False", Pending),
            ("ImportScheduled", 0, "False", Pending),
            ("ImportInProgress", 0, "True", Importing),
            ("ImportInProgress", 2, "True", Importing),
            ("ImportInProgress", 2, "False", Failed),
            ("CSICloneInProgress", 0, "True", Importing),
            ("SomeNewPhase", 0, "True", Importing),
            ("Failed", 0, "False", Failed),
            ("Succeeded", 2, "False", Ready),
        ] {
            assert_eq!(state(phase, restarts, running, "").phase, expected, "{phase}");
        }
        assert_eq!(DataVolumeState::from_object(&json!({})), DataVolumeState::default());
        assert!(state("Failed", 0, "False", "").has_ended);
        assert!(!state("ImportInProgress", 2, "False", "").has_ended, "CDI tries again");
    }

    #[test]
    fn the_message_is_that_of_the_importer() {
        let wrong = "Unable to process data: checksum mismatch";
        let failed = state("ImportInProgress", 1, "False", wrong);
        assert_eq!(failed.message.as_deref(), Some(wrong));
        assert_eq!(failed.size, Some("10Gi".parse().unwrap()));
        assert_eq!(state("Succeeded", 1, "False", wrong).message, None);
        let unbound = json!({"status": {"conditions": [
            {"type": "Bound", "status": "False", "message": "exceeded quota"},
            {"type": "Running", "status": "False", "message": ""},
        ]}});
        let unbound = DataVolumeState::from_object(&unbound);
        assert_eq!(unbound.message.as_deref(), Some("exceeded quota"));
    }

    #[test]
    fn a_dropped_checksum_is_detected() {
        let source = |checksum: Option<&str>| {
            let checksum = checksum.map(str::to_owned);
            ImageSource::Http(HttpSource { checksum, ..HttpSource::default() })
        };
        let stored = |http: Value| {
            DataVolumeState::from_object(&json!({"spec": {"source": {"http": http}}}))
        };
        let (old, new) = (stored(json!({})), stored(json!({"checksum": "sha256:00"})));
        assert!(old.ignores_checksum(&source(Some("sha256:00"))));
        assert!(!new.ignores_checksum(&source(Some("sha256:00"))));
        assert!(!old.ignores_checksum(&source(None)));
    }
}
