//! Runs a reconciler: kube-runtime's scheduler, with pauses that grow while an object fails, and what came of it counted
//! and said once.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_runtime::client::{CallError, jittered};
use futures::channel::mpsc::UnboundedReceiver;
use futures::{FutureExt as _, StreamExt as _};
use kube::Resource;
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};

use super::Context;
use super::backoff::Backoff;

/// Why an object could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The server, or the way to it.
    #[error("{0}: {1}")]
    Call(String, CallError),
    /// Something that time may mend.
    #[error("{0}")]
    Wait(String),
}

impl Failed {
    /// What was tried.
    pub fn to(what: impl Into<String>) -> impl FnOnce(CallError) -> Self {
        let what = what.into();
        move |error| Self::Call(what, error)
    }

    fn rest(&self) -> Duration {
        match self {
            Self::Call(_, error) => error.rest(),
            Self::Wait(_) => Duration::ZERO,
        }
    }
}

/// How a reconciler is run.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Its name in metrics and messages.
    pub name: &'static str,
    /// Objects at once.
    pub at_once: u16,
    /// A burst of changes is one look.
    pub settle: Duration,
}

/// Looks at each object of the queue that is in the store, until dropped. An object that is fine is looked at again
/// after the time of `--resync`, give or take a quarter.
pub async fn reconcile<K, F, Looking>(
    manner: Manner,
    context: Arc<Context>,
    store: Store<K>,
    queue: UnboundedReceiver<ObjectRef<K>>,
    look: F,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    F: Fn(Arc<K>, Arc<Context>) -> Looking,
    Looking: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let backoff = Arc::new(Backoff::new(manner.name));
    let (metrics, resync) = (Arc::clone(&context.metrics), context.resync);
    let reconciler = |object: Arc<K>, context: Arc<Context>| {
        let begin = Instant::now();
        let (metrics, backoff) = (Arc::clone(&metrics), Arc::clone(&backoff));
        let reference = ObjectRef::from_obj(object.as_ref());
        look(object, context)
            .map(move |result| {
                metrics.reconciled(manner.name, result.is_ok(), begin.elapsed());
                if result.is_ok() {
                    backoff.succeeded(&reference);
                }
                result.map(|()| Action::requeue(jittered(resync)))
            })
            .boxed()
    };
    let policy = |object: Arc<K>, error: &Failed, _| {
        backoff.failed(ObjectRef::from_obj(object.as_ref()), error, error.rest(), false)
    };
    let config = Config::default().concurrency(manner.at_once).debounce(manner.settle);
    let queue = queue.map(Ok::<_, Infallible>);
    let done = applier(reconciler, policy, Arc::clone(&context), store, queue, config);
    // What failed was said by the policy; an object that is gone is no failure.
    done.for_each(|_| std::future::ready(())).await;
}
