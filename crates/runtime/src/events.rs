//! Events, including those of cluster-scoped objects on old servers.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, Recorder};

use crate::call::{CallError, within};

/// Namespace of the Events of cluster-scoped objects.
const NAMESPACE: &str = "default";
/// Maximum length of the note of an Event, in bytes.
pub const LONGEST: usize = 1024;

/// Writes an Event, or increments its count if the recorder has written the same Event before.
///
/// # Errors
/// If the server refuses the Event.
pub async fn publish(
    recorder: &Recorder,
    event: &Event,
    mut reference: ObjectReference,
) -> Result<(), CallError> {
    let written = within(recorder.publish(event, &reference)).await;
    // Servers before 1.23 accept Events of cluster-scoped objects in `kube-system` only. In other namespaces they
    // require a namespace of the object, but then `kubectl describe` does not find the Event.
    let wants_namespace = |error: &CallError| error.is_invalid("involvedObject.namespace");
    if written.as_ref().is_err_and(wants_namespace) {
        reference.namespace = Some(NAMESPACE.to_owned());
        return within(recorder.publish(event, &reference)).await;
    }
    written
}
