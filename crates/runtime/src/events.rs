//! Creates Events. On old API servers, Events about cluster-scoped objects need a special case.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, Recorder};

use crate::call::{CallError, with_timeout};

/// Namespace of Events about cluster-scoped objects.
pub(crate) const CLUSTER_EVENT_NAMESPACE: &str = "default";
/// Maximum length of an Event's note, in bytes.
pub const MAX_NOTE_BYTES: usize = 1024;

/// Creates an Event, or increments its count if the recorder has created the same Event before.
///
/// # Errors
/// Returns an error if the API server refuses the Event.
pub async fn publish_event(
    recorder: &Recorder,
    event: &Event,
    mut reference: ObjectReference,
) -> Result<(), CallError> {
    let result = with_timeout(recorder.publish(event, &reference)).await;
    // API servers before 1.23 accept an Event about a cluster-scoped object outside of `kube-system` only if
    // `involvedObject.namespace` is set. It is not set for newer servers, because `kubectl describe` would then not
    // show the Event.
    let requires_namespace = |error: &CallError| error.is_invalid("involvedObject.namespace");
    if result.as_ref().is_err_and(requires_namespace) {
        reference.namespace = Some(CLUSTER_EVENT_NAMESPACE.to_owned());
        return with_timeout(recorder.publish(event, &reference)).await;
    }
    result
}
