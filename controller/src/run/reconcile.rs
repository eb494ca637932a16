//! Runs a reconciler: kube-runtime's scheduler, with pauses that grow while an object fails, and what came of it counted
//! and said once.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_kit::client::{CallError, jittered};
use futures::channel::mpsc::UnboundedReceiver;
use futures::{FutureExt as _, StreamExt as _};
use kube::Resource;
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};

use super::Context;

/// Longest pause between tries.
const LONGEST: Duration = Duration::from_secs(120);
/// The first one.
const FIRST: Duration = Duration::from_secs(1);

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
    let failing: Failing<K> = Mutex::default();
    let (failing, resync) = (Arc::new(failing), context.resync);
    let (metrics, failures) = (Arc::clone(&context.metrics), Arc::clone(&failing));
    let reconciler = |object: Arc<K>, context: Arc<Context>| {
        let begin = Instant::now();
        let (metrics, failing) = (Arc::clone(&metrics), Arc::clone(&failures));
        let reference = ObjectRef::from_obj(object.as_ref());
        look(object, context)
            .map(move |result| {
                metrics.reconciled(manner.name, result.is_ok(), begin.elapsed());
                let mut failing = failing.lock().unwrap_or_else(PoisonError::into_inner);
                if result.is_ok() && failing.remove(&reference).is_some() {
                    tracing::info!("{}: {} goes again", manner.name, reference.name);
                }
                result.map(|()| Action::requeue(jittered(resync)))
            })
            .boxed()
    };
    let policy = |object: Arc<K>, error: &Failed, _| {
        let reference = ObjectRef::from_obj(object.as_ref());
        let mut failing = failing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = failing.entry(reference).or_insert_with(|| (0, String::new()));
        let sentence = error.to_string();
        if known.1 != sentence {
            tracing::warn!("{}: {sentence}; trying again", manner.name);
            known.1 = sentence;
        }
        known.0 = known.0.saturating_add(1).min(8);
        let pause = FIRST.saturating_mul(1_u32 << (known.0.saturating_sub(1))).min(LONGEST);
        Action::requeue(jittered(pause.max(error.rest() * 4 / 3)))
    };
    let config = Config::default().concurrency(manner.at_once).debounce(manner.settle);
    let queue = queue.map(Ok::<_, Infallible>);
    let done = applier(reconciler, policy, Arc::clone(&context), store, queue, config);
    // What failed was said by the policy; an object that is gone is no failure.
    done.for_each(|_| std::future::ready(())).await;
}

/// Objects that fail: how often in a row, and what was said of it.
type Failing<K> = Mutex<HashMap<ObjectRef<K>, (u32, String)>>;
