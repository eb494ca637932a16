//! Events, also of objects without a namespace on old servers.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, Recorder};

use crate::client::{CallError, within};

/// Where Events of objects without a namespace lie.
const NAMESPACE: &str = "default";
/// Longest note of an Event, in bytes.
pub const LONGEST: usize = 1024;

/// Writes an Event, or counts it again if the recorder has written one of that kind before.
///
/// # Errors
/// If the server does not take it.
pub async fn publish(
    recorder: &Recorder,
    event: &Event,
    mut reference: ObjectReference,
) -> Result<(), CallError> {
    let written = within(recorder.publish(event, &reference)).await;
    // Servers before 1.23 take Events of objects without a namespace in `kube-system` only; elsewhere they want
    // one named, although `kubectl describe` then does not find the Event.
    let wants_namespace = |error: &CallError| error.is_invalid("involvedObject.namespace");
    if written.as_ref().is_err_and(wants_namespace) {
        reference.namespace = Some(NAMESPACE.to_owned());
        return within(recorder.publish(event, &reference)).await;
    }
    written
}
