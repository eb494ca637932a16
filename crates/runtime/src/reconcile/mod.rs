//! Runs reconcilers with the scheduler of kube-runtime. Adds a debounce, a backoff for each object whose reconcile
//! fails, one span for each reconcile, and a resync of objects that are in the desired state.

mod backoff;

use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::ready;
use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::Resource;
pub use kube::runtime::controller::{Action, ReconcileRequest};
use kube::runtime::controller::{Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use tracing::Instrument as _;

use backoff::ObjectBackoff;

/// Configuration of a reconciler.
#[derive(Debug, Clone, Copy)]
pub struct ReconcilerOptions {
    /// Name of the reconciler in metrics and logs.
    pub name: &'static str,
    /// Maximum number of objects that are reconciled at the same time.
    pub concurrency: u16,
    /// Time for which a request is delayed, so that further requests for the same object are combined with it to one
    /// reconcile.
    pub debounce: Duration,
}

pub trait ReconcileError: std::error::Error + Send + 'static {
    /// Returns the time for which the API server accepts no further request, according to its `Retry-After`; zero if
    /// there was none.
    fn retry_after(&self) -> Duration;

    /// Returns true if the API server refused a write because another client wrote the object first. Such conflicts are
    /// expected, and the next reconcile reads the new version.
    fn is_conflict(&self) -> bool {
        false
    }
}

/// Receives the result of each reconcile, for metrics.
pub trait ReconcileRecorder: Send + Sync + 'static {
    /// Records a reconcile of `reconciler`: whether it succeeded, and how long it took.
    fn record_reconcile(&self, reconciler: &'static str, succeeded: bool, duration: Duration);
}

/// Reconciles each object in the queue, if the store contains the object, until the future is dropped. An object whose
/// reconcile fails is retried after a backoff that grows with each failure.
pub async fn run_reconciler<K, Q, R, E, F>(
    options: ReconcilerOptions,
    kind: K::DynamicType,
    store: Store<K>,
    queue: Q,
    recorder: Arc<impl ReconcileRecorder>,
    reconcile: R,
) where
    K: Resource<DynamicType: Debug + Hash + Eq + Clone + Unpin + Send + Sync>
        + Clone
        + Debug
        + Send
        + Sync
        + 'static,
    Q: Stream<Item: Into<ReconcileRequest<K>>>,
    R: Fn(Arc<K>) -> F,
    E: ReconcileError,
    F: Future<Output = Result<Action, E>> + Send + 'static,
{
    let backoff = Arc::new(ObjectBackoff::<K>::new(options.name));
    let attempt = |object: Arc<K>, _| {
        let begin = Instant::now();
        let (recorder, backoff) = (Arc::clone(&recorder), Arc::clone(&backoff));
        let reference = ObjectRef::from_obj_with(object.as_ref(), kind.clone());
        // JSON logs contain the name of the span in the field `name`, so the path of the object is a separate field.
        let path = reference.namespace.iter().chain([&reference.name]).map(String::as_str);
        let path = path.collect::<Vec<_>>().join("/");
        let span = tracing::info_span!(
            "reconcile",
            kind = %K::kind(&kind),
            namespace = reference.namespace,
            name = reference.name,
            object = path
        );
        let record_result = move |result: &Result<Action, E>| {
            let succeeded = result.as_ref().err().is_none_or(ReconcileError::is_conflict);
            recorder.record_reconcile(options.name, succeeded, begin.elapsed());
            if result.is_ok() {
                backoff.record_success(&reference);
            }
        };
        reconcile(object).inspect(record_result).instrument(span).boxed()
    };
    let retry = |object: Arc<K>, error: &E, _| {
        let reference = ObjectRef::from_obj_with(object.as_ref(), kind.clone());
        let delay =
            backoff.record_failure(reference, error, error.retry_after(), error.is_conflict());
        Action::requeue(delay)
    };
    let config = Config::default().concurrency(options.concurrency).debounce(options.debounce);
    let queue = queue.map(Ok::<_, Infallible>);
    let results = applier(attempt, retry, Arc::new(()), store, queue, config);
    // Errors are ignored here. Failures have already been logged by the backoff, and an object that no longer exists is
    // not a failure.
    results.for_each(|_| ready(())).await;
}
