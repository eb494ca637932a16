//! Follows all objects of a kind: one watch, shared by all that look at them.
//!
//! The store is kube-runtime's. Beside it whoever asks is told of each change with the object before and after, so that
//! it can tell whether it matters. A kind that the server does not know is waited for and said; an object that cannot be
//! understood is said, and what was known of it before stays.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::malformed::Malformed;

/// What happened.
#[derive(Debug)]
pub enum Change<K> {
    /// All were listed anew; some may have gone.
    All,
    /// One object, before and after.
    One(Option<Arc<K>>, Option<Arc<K>>),
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::All => Self::All,
            Self::One(before, after) => Self::One(before.clone(), after.clone()),
        }
    }
}

/// All objects of a kind.
pub struct Followed<K: Resource<DynamicType = ()> + 'static> {
    store: Store<K>,
    listeners: Arc<Mutex<Vec<UnboundedSender<Change<K>>>>>,
    listed: Arc<watch::Sender<bool>>,
}

impl<K: Resource<DynamicType = ()> + 'static> Debug for Followed<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Followed").field("kind", &K::plural(&())).finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Clone for Followed<K> {
    fn clone(&self) -> Self {
        let (listeners, listed) = (Arc::clone(&self.listeners), Arc::clone(&self.listed));
        Self { store: self.store.clone(), listeners, listed }
    }
}

/// What is not known: kinds that are waited for, and why; and objects that cannot be understood.
#[derive(Debug, Default)]
pub struct Waiting {
    kinds: Mutex<BTreeMap<String, String>>,
    malformed: Malformed,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects that cannot be understood.
    pub(super) const fn malformed(&self) -> &Malformed {
        &self.malformed
    }

    /// One sentence, if any kind is waited for.
    pub(super) fn sentence(&self) -> Option<String> {
        let all = self.lock();
        (!all.is_empty()).then(|| all.values().cloned().collect::<Vec<_>>().join("; "))
    }
}

impl<K> Followed<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Begins. `trim` takes away what nobody looks at.
    pub(super) fn begin(
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        waiting: &Arc<Waiting>,
        trim: fn(&mut K),
    ) -> Self {
        let (store, writer) = reflector::store();
        let listeners: Arc<Mutex<Vec<UnboundedSender<Change<K>>>>> = Arc::default();
        let followed = Self { store, listeners, listed: Arc::new(watch::Sender::new(false)) };
        let kind = K::plural(&()).into_owned();
        waiting.lock().insert(kind.clone(), format!("{kind} are not listed yet"));
        let api = Api::all(client.clone());
        let follower =
            Follower { kind, followed: followed.clone(), waiting: Arc::clone(waiting), trim };
        tasks.spawn(follower.follow(api, writer));
        followed
    }

    /// Told of all changes from now on.
    pub fn changes(&self) -> UnboundedReceiver<Change<K>> {
        let (tell, changes) = unbounded_channel();
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(tell);
        changes
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &Store<K> {
        &self.store
    }

    /// An object without a namespace.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// Until all were listed for the first time. Not the store's own `wait_until_ready`, which wakes one task alone, the
    /// last that asked (kube-runtime 5.0, `utils/delayed_init.rs`).
    pub async fn ready(&self) {
        // An error means that the follower is gone, and with it the program.
        if self.listed.subscribe().wait_for(|listed| *listed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn tell(&self, change: &Change<K>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|tell| tell.send(change.clone()).is_ok());
    }
}

struct Follower<K: Resource<DynamicType = ()> + 'static> {
    kind: String,
    followed: Followed<K>,
    waiting: Arc<Waiting>,
    trim: fn(&mut K),
}

impl<K> Follower<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    async fn follow(self, api: Api<DeserializeGuard<K>>, mut writer: reflector::store::Writer<K>) {
        let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
        let mut said = String::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that is begun may still be refused.
                    if !said.is_empty() && !matches!(event, Event::Init) {
                        tracing::info!("{}: followed again", self.kind);
                        said.clear();
                    }
                    self.see(event, &mut writer);
                }
                Err(error) => {
                    let sentence = self.meaning(&error);
                    if said != sentence {
                        tracing::warn!("{sentence}");
                        if let Some(why) = self.waiting.lock().get_mut(&self.kind) {
                            why.clone_from(&sentence);
                        }
                        said = sentence;
                    }
                }
            }
        }
    }

    fn meaning(&self, error: &watcher::Error) -> String {
        use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
        let kind = &self.kind;
        match error {
            InitialListFailed(kube::Error::Api(status)) if status.code == 404 => format!(
                "{kind}: the server does not know them; waiting for their CustomResourceDefinition \
                 (berth-controller crds | kubectl apply -f -)"
            ),
            InitialListFailed(kube::Error::Api(status))
            | WatchStartFailed(kube::Error::Api(status)) => {
                format!(
                    "{kind} cannot be followed: {} ({}); trying again",
                    status.message, status.code
                )
            }
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
                format!(
                    "{kind} cannot be followed: {}; trying again",
                    berth_runtime::cli::text::chain(error)
                )
            }
            other => format!("{kind} cannot be followed: {other}; trying again"),
        }
    }

    fn see(&self, event: Event<DeserializeGuard<K>>, writer: &mut reflector::store::Writer<K>) {
        let store = &self.followed.store;
        let (event, change) = match event {
            Event::Init => (Event::Init, None),
            Event::InitApply(object) => match self.understood(object) {
                Ok(object) => (Event::InitApply(object), None),
                // What was known of it.
                Err(Some(known)) => (Event::InitApply((*known).clone()), None),
                Err(None) => return,
            },
            Event::InitDone => {
                self.waiting.lock().remove(&self.kind);
                (Event::InitDone, Some(Change::All))
            }
            Event::Apply(object) => {
                let Ok(object) = self.understood(object) else { return };
                let before = store.get(&ObjectRef::from_obj(&object));
                let after = Some(Arc::new(object.clone()));
                (Event::Apply(object), Some(Change::One(before, after)))
            }
            Event::Delete(object) => {
                // One that is gone needs no understanding, but the store wants an object.
                let known = match object.0 {
                    Ok(object) => {
                        self.waiting.malformed.remove::<K>(object.meta());
                        Arc::new(object)
                    }
                    Err(invalid) => {
                        self.waiting.malformed.remove::<K>(&invalid.metadata);
                        let name = invalid.metadata.name.unwrap_or_default();
                        let mut reference = ObjectRef::new(&name);
                        reference.namespace = invalid.metadata.namespace;
                        let Some(known) = store.get(&reference) else { return };
                        known
                    }
                };
                (Event::Delete((*known).clone()), Some(Change::One(Some(known), None)))
            }
        };
        writer.apply_watcher_event(&event);
        // Told first: whoever waits for the list and then looks at everything knows what the first telling was about.
        if let Some(change) = change {
            self.followed.tell(&change);
        }
        if matches!(event, Event::InitDone) {
            self.followed.listed.send_replace(true);
        }
    }

    /// An object that is being deleted, with what was known of it before: what is left to do follows from its metadata, and
    /// would never be done if it had to be understood first.
    fn deleted(&self, metadata: &ObjectMeta) -> Option<K> {
        metadata.deletion_timestamp.as_ref()?;
        self.waiting.malformed.remove::<K>(metadata);
        let mut reference = ObjectRef::new(metadata.name.as_deref()?);
        reference.namespace.clone_from(&metadata.namespace);
        if let Some(known) = self.followed.store.get(&reference) {
            let mut object = (*known).clone();
            metadata.clone_into(object.meta_mut());
            return Some(object);
        }
        let (version, kind) = (K::api_version(&()), K::kind(&()));
        let bare = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}});
        serde_json::from_value(bare).ok()
    }

    /// The object; else what was known of it before.
    fn understood(&self, object: DeserializeGuard<K>) -> Result<K, Option<Arc<K>>> {
        match object.0 {
            Ok(mut object) => {
                self.waiting.malformed.remove::<K>(object.meta());
                (self.trim)(&mut object);
                Ok(object)
            }
            Err(invalid) => {
                if let Some(object) = self.deleted(&invalid.metadata) {
                    return Ok(object);
                }
                let name = invalid.metadata.name.clone().unwrap_or_default();
                if self.waiting.malformed.add::<K>(&invalid.metadata) {
                    tracing::warn!(
                        "{} {name} cannot be understood, and is left as it was: {invalid}",
                        self.kind
                    );
                }
                let mut reference = ObjectRef::new(&name);
                reference.namespace = invalid.metadata.namespace;
                Err(self.followed.store.get(&reference))
            }
        }
    }
}
