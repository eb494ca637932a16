//! A store of all objects of a kind, which one watch updates for all users.
//!
//! The store is the reflector store of kube-runtime. In addition, subscribers receive each change with the object
//! before and after the change, so that they can decide whether the change matters. If the API server does not know the
//! kind, the informer reports this, and waits until the kind exists. If an object cannot be parsed, the informer
//! reports this, and the store retains the object's last version that could be parsed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::health::WatchHealth;
use super::malformed::{ObjectKey, object_key};
use super::stream::{error_message, is_kind_unknown, watch_events};

/// A change of a store.
#[derive(Debug)]
pub enum Change<K> {
    /// All objects were listed again. Any object may have changed or been deleted.
    Relisted,
    /// The object before the change (`None` if the object was created), and the object after the change (`None` if it
    /// was deleted).
    Object(Option<Arc<K>>, Option<Arc<K>>),
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Relisted => Self::Relisted,
            Self::Object(before, after) => Self::Object(before.clone(), after.clone()),
        }
    }
}

/// Store of all objects of a kind, with its subscribers.
pub struct Informer<K: Resource<DynamicType = ()> + 'static> {
    store: Store<K>,
    subscribers: Arc<Mutex<Vec<UnboundedSender<Change<K>>>>>,
    listed_sender: Arc<tokio::sync::watch::Sender<bool>>,
}

impl<K: Resource<DynamicType = ()> + 'static> Debug for Informer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer").field("kind", &K::plural(&())).finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Clone for Informer<K> {
    fn clone(&self) -> Self {
        let (subscribers, listed) =
            (Arc::clone(&self.subscribers), Arc::clone(&self.listed_sender));
        Self { store: self.store.clone(), subscribers, listed_sender: listed }
    }
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Starts the watch as one of `tasks`. `trim` removes the fields that no user of the store reads.
    pub fn start(
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        health: &Arc<WatchHealth>,
        trim: fn(&mut K),
    ) -> Self {
        let (store, writer) = reflector::store();
        let (subscribers, listed) =
            (Arc::default(), Arc::new(tokio::sync::watch::Sender::new(false)));
        let informer = Self { store, subscribers, listed_sender: listed };
        let kind = K::plural(&()).into_owned();
        health.record_start(&kind);
        let api = Api::all(client.clone());
        let watcher = Watcher {
            kind,
            informer: informer.clone(),
            health: Arc::clone(health),
            trim,
            writer,
            malformed_in_list: BTreeSet::new(),
        };
        tasks.spawn(watcher.run(api));
        informer
    }

    /// Subscribes to all later changes.
    pub fn subscribe(&self) -> UnboundedReceiver<Change<K>> {
        let (sender, changes) = unbounded_channel();
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        changes
    }

    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &Store<K> {
        &self.store
    }

    /// Returns a cluster-scoped object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    /// Returns all objects.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }

    /// Waits until the kind has been listed. The store's own `wait_until_ready` cannot be used, because it wakes only
    /// the task that called it last (kube-runtime 5.0, `utils/delayed_init.rs`).
    pub async fn wait_until_ready(&self) {
        // An error means that the watch has ended, and in this case the program ends, too.
        if self.listed_sender.subscribe().wait_for(|listed| *listed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn publish_change(&self, change: &Change<K>) {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }
}

struct Watcher<K: Resource<DynamicType = ()> + Clone + 'static> {
    kind: String,
    informer: Informer<K>,
    health: Arc<WatchHealth>,
    trim: fn(&mut K),
    writer: Writer<K>,
    /// Objects in the current list that cannot be parsed.
    malformed_in_list: BTreeSet<ObjectKey>,
}

impl<K> Watcher<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    async fn run(mut self, api: Api<DeserializeGuard<K>>) {
        let (kind, health) = (self.kind.clone(), Arc::clone(&self.health));
        let retry = |error: &kube::runtime::watcher::Error| {
            let reason = if is_kind_unknown(error) {
                format!(
                    "{kind}: the API server does not serve this kind; waiting for its \
                     CustomResourceDefinition (berth-controller crds | kubectl apply -f -)"
                )
            } else {
                format!("{kind} cannot be watched: {}; trying again", error_message(error))
            };
            health.record_failure(&kind, reason);
            std::future::ready(true)
        };
        watch_events(api, Config::default(), &kind, |event| self.handle_event(event), retry).await;
    }

    fn handle_event(&mut self, event: Event<DeserializeGuard<K>>) {
        let store = &self.informer.store;
        let (event, change) = match event {
            Event::Init => {
                self.malformed_in_list.clear();
                (Event::Init, None)
            }
            Event::InitApply(object) => {
                let key = object.0.as_ref().err();
                let key = key.map(|invalid| object_key::<K>(&invalid.metadata));
                match self.parse_object(object) {
                    Ok(object) => (Event::InitApply(object), None),
                    Err(known) => {
                        self.malformed_in_list.extend(key);
                        let Some(known) = known else { return };
                        (Event::InitApply((*known).clone()), None)
                    }
                }
            }
            Event::InitDone => {
                self.health.record_list(&self.kind);
                (Event::InitDone, Some(Change::Relisted))
            }
            Event::Apply(object) => {
                let Ok(object) = self.parse_object(object) else { return };
                let before = store.get(&ObjectRef::from_obj(&object));
                let after = Some(Arc::new(object.clone()));
                (Event::Apply(object), Some(Change::Object(before, after)))
            }
            Event::Delete(object) => {
                // A deletion must be handled even if the deleted object cannot be parsed. The store needs an object to
                // delete, so the object's last version that could be parsed is used.
                let known = match object.0 {
                    Ok(object) => {
                        self.health.malformed_objects().remove::<K>(object.meta());
                        Arc::new(object)
                    }
                    Err(invalid) => {
                        self.health.malformed_objects().remove::<K>(&invalid.metadata);
                        let Some(known) = self.last_valid_version(&invalid.metadata) else {
                            // Subscribers may have retained data of the unknown object.
                            self.informer.publish_change(&Change::Relisted);
                            return;
                        };
                        known
                    }
                };
                (Event::Delete((*known).clone()), Some(Change::Object(Some(known), None)))
            }
        };
        self.writer.apply_watcher_event(&event);
        // An object leaves the malformed objects after its valid version is in the store: otherwise a reader might find
        // it in neither, and assume that it was deleted.
        let malformed = self.health.malformed_objects();
        match &event {
            Event::Apply(object) => malformed.remove::<K>(object.meta()),
            Event::InitDone => malformed.retain_listed::<K>(&self.malformed_in_list),
            Event::Init | Event::InitApply(_) | Event::Delete(_) => {}
        }
        // The change is published before the list counts as complete: when a subscriber that has waited for the list
        // reads the store, the change is already in the subscriber's queue.
        if let Some(change) = change {
            self.informer.publish_change(&change);
        }
        if matches!(event, Event::InitDone) {
            self.informer.listed_sender.send_replace(true);
        }
    }

    /// Returns the object's last version that could be parsed, from the store; `None` if there is none.
    fn last_valid_version(&self, metadata: &ObjectMeta) -> Option<Arc<K>> {
        let mut reference = ObjectRef::new(metadata.name.as_deref().unwrap_or_default());
        reference.namespace.clone_from(&metadata.namespace);
        self.informer.store.get(&reference)
    }

    /// Returns a substitute for an object that is being deleted and cannot be parsed: its current metadata, with the
    /// other fields of its last version that could be parsed. `None` if the object is not being deleted. The metadata
    /// is sufficient to finalize the object; without the substitute, the object would never be finalized.
    fn terminating_object(&self, metadata: &ObjectMeta) -> Option<K> {
        metadata.deletion_timestamp.as_ref()?;
        if let Some(known) = self.last_valid_version(metadata) {
            let mut object = (*known).clone();
            metadata.clone_into(object.meta_mut());
            return Some(object);
        }
        let (version, kind) = (K::api_version(&()), K::kind(&()));
        let bare = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}});
        serde_json::from_value(bare).ok()
    }

    /// Returns the object after `trim`. If the object cannot be parsed, returns its last version that could be parsed
    /// as the error.
    fn parse_object(&self, object: DeserializeGuard<K>) -> Result<K, Option<Arc<K>>> {
        match object.0 {
            Ok(mut object) => {
                (self.trim)(&mut object);
                Ok(object)
            }
            Err(invalid) => {
                if let Some(object) = self.terminating_object(&invalid.metadata) {
                    return Ok(object);
                }
                if self.health.malformed_objects().add::<K>(&invalid.metadata) {
                    let (kind, metadata) = (&self.kind, &invalid.metadata);
                    tracing::warn!(
                        kind,
                        namespace = metadata.namespace,
                        name = metadata.name,
                        error = %invalid,
                        "failed to parse an object; its last valid version stays in use"
                    );
                }
                Err(self.last_valid_version(&invalid.metadata))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::Value;

    use super::*;

    fn test_watcher() -> Watcher<ConfigMap> {
        let (store, writer) = reflector::store();
        let (subscribers, listed) =
            (Arc::default(), Arc::new(tokio::sync::watch::Sender::new(false)));
        Watcher {
            kind: "configmaps".to_owned(),
            informer: Informer { store, subscribers, listed_sender: listed },
            health: Arc::default(),
            trim: |object| object.metadata.managed_fields = None,
            writer,
            malformed_in_list: BTreeSet::new(),
        }
    }

    fn test_object(fields: Value) -> DeserializeGuard<ConfigMap> {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "managedFields": []}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn stored_data(watcher: &Watcher<ConfigMap>) -> Option<String> {
        let object = watcher.informer.store.get(&ObjectRef::new("a").within("b"))?;
        assert_eq!(object.metadata.managed_fields, None, "the object is trimmed");
        Some(object.data.as_ref()?.get("x")?.clone())
    }

    #[test]
    fn malformed_object_keeps_its_last_valid_version_until_deletion() {
        let mut watcher = test_watcher();
        let health = Arc::clone(&watcher.health);
        let mut changes = watcher.informer.subscribe();
        watcher.handle_event(Event::Init);
        watcher.handle_event(Event::InitApply(test_object(json!({"data": {"x": "1"}}))));
        assert_eq!(stored_data(&watcher), None, "the list is not complete");
        watcher.handle_event(Event::InitDone);
        assert!(matches!(changes.try_recv(), Ok(Change::Relisted)));
        assert_eq!(stored_data(&watcher).as_deref(), Some("1"));

        watcher.handle_event(Event::Apply(test_object(json!({"data": "wrong"}))));
        assert_eq!(stored_data(&watcher).as_deref(), Some("1"));
        assert!(changes.try_recv().is_err(), "nothing has changed in the store");
        let malformed: Vec<_> = health.malformed_objects().all().into_values().collect();
        let [malformed] = malformed.as_slice() else { panic!("{malformed:?}") };
        let problem = (malformed.find_problem)(json!({"data": "wrong"}));
        assert!(problem.is_some_and(|problem| problem.starts_with("data: ")));

        // The object cannot be parsed when it is listed, either.
        watcher.handle_event(Event::Init);
        watcher.handle_event(Event::InitApply(test_object(json!({"data": "wrong"}))));
        watcher.handle_event(Event::InitDone);
        assert!(matches!(changes.try_recv(), Ok(Change::Relisted)));
        assert_eq!(stored_data(&watcher).as_deref(), Some("1"));

        watcher.handle_event(Event::Delete(test_object(json!({"data": "wrong"}))));
        assert_eq!(stored_data(&watcher), None);
        let change = changes.try_recv().unwrap();
        assert!(matches!(change, Change::Object(Some(before), None) if before.data.is_some()));
        assert!(health.malformed_objects().all().is_empty());
    }

    #[test]
    fn malformed_object_is_known_until_its_correction_or_deletion() {
        let mut watcher = test_watcher();
        let health = Arc::clone(&watcher.health);
        let mut changes = watcher.informer.subscribe();
        let names =
            || health.malformed_objects().names::<ConfigMap>().into_iter().collect::<Vec<_>>();
        let wrong = || test_object(json!({"data": "wrong"}));
        let list = |watcher: &mut Watcher<ConfigMap>,
                    object: Option<DeserializeGuard<ConfigMap>>| {
            watcher.handle_event(Event::Init);
            if let Some(object) = object {
                watcher.handle_event(Event::InitApply(object));
            }
            assert_eq!(names(), ["a"], "the list is not complete");
            watcher.handle_event(Event::InitDone);
        };
        list(&mut watcher, Some(wrong()));
        assert_eq!(names(), ["a"]);
        // A deletion is published even if no version of the object could be parsed.
        assert!(matches!(changes.try_recv(), Ok(Change::Relisted)));
        watcher.handle_event(Event::Delete(wrong()));
        assert!(matches!(changes.try_recv(), Ok(Change::Relisted)) && names().is_empty());

        // The watch misses the deletion, and later the correction.
        watcher.handle_event(Event::Apply(wrong()));
        list(&mut watcher, None);
        assert!(names().is_empty());
        watcher.handle_event(Event::Apply(wrong()));
        list(&mut watcher, Some(test_object(json!({"data": {"x": "1"}}))));
        assert!(names().is_empty());
        assert_eq!(stored_data(&watcher).as_deref(), Some("1"));

        watcher.handle_event(Event::Apply(wrong()));
        assert_eq!(names(), ["a"]);
        watcher.handle_event(Event::Apply(test_object(json!({"data": {"x": "2"}}))));
        assert!(names().is_empty());

        // The substitute for a terminating object is stored when the list is complete.
        watcher.handle_event(Event::Apply(wrong()));
        let metadata = json!({"name": "a", "namespace": "b", "uid": "u",
            "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let terminating = || test_object(json!({"data": "wrong", "metadata": metadata}));
        list(&mut watcher, Some(terminating()));
        assert!(names().is_empty());
        watcher.handle_event(Event::Apply(wrong()));
        assert_eq!(names(), ["a"]);
        watcher.handle_event(Event::Apply(terminating()));
        assert!(names().is_empty());
    }

    #[test]
    fn kind_is_unlisted_until_its_first_list_is_complete() {
        let mut watcher = test_watcher();
        let health = Arc::clone(&watcher.health);
        health.record_start("configmaps");
        assert_eq!(health.unlisted_reasons().as_deref(), Some("configmaps are not listed yet"));
        health.record_failure("configmaps", "configmaps: refused".to_owned());
        assert_eq!(health.unlisted_reasons().as_deref(), Some("configmaps: refused"));
        watcher.handle_event(Event::Init);
        watcher.handle_event(Event::InitDone);
        assert_eq!(health.unlisted_reasons(), None);
        health.record_failure("configmaps", "refused later".to_owned());
        assert_eq!(health.unlisted_reasons(), None);
    }
}
