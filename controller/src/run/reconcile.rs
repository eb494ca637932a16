//! Code that the reconcilers of cluster-scoped objects share, in addition to that in the crate `berth-runtime`.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use berth_runtime::backoff::add_jitter;
use berth_runtime::call::CallError;
use berth_runtime::reconcile::{Action, ReconcileError, ReconcilerOptions, run_reconciler};
use futures::channel::mpsc::UnboundedReceiver;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};

use super::context::Context;

/// Reason why an object could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileFailure {
    /// Description of a request that failed, and its error.
    #[error("{0}: {1}")]
    RequestFailed(String, CallError),
    /// A prerequisite that is not met yet.
    #[error("{0}")]
    PrerequisiteNotMet(String),
}

impl ReconcileFailure {
    /// Returns a function that adds the description of a request to its error.
    pub fn with_request(request: impl Into<String>) -> impl FnOnce(CallError) -> Self {
        let request = request.into();
        move |error| Self::RequestFailed(request, error)
    }
}

impl ReconcileError for ReconcileFailure {
    fn retry_after(&self) -> Duration {
        match self {
            Self::RequestFailed(_, error) => error.retry_after(),
            Self::PrerequisiteNotMet(_) => Duration::ZERO,
        }
    }
}

/// Reconciles each object whose name arrives in the queue, if the store contains the object, until this future is
/// dropped. An object in the desired state is reconciled again after the time of `--resync`, plus or minus a quarter of
/// this time.
pub async fn reconcile<K, F, R>(
    options: ReconcilerOptions,
    context: Arc<Context>,
    store: Store<K>,
    queue: UnboundedReceiver<ObjectRef<K>>,
    reconcile: R,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    R: Fn(Arc<K>, Arc<Context>) -> F,
    F: Future<Output = Result<(), ReconcileFailure>> + Send + 'static,
{
    let (metrics, resync) = (Arc::clone(&context.metrics), context.resync);
    let reconcile = |object: Arc<K>| {
        let reconciled = reconcile(object, Arc::clone(&context));
        async move { reconciled.await.map(|()| Action::requeue(add_jitter(resync))) }
    };
    run_reconciler(options, (), store, queue, metrics, reconcile).await;
}
