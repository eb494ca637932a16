//! Objects of custom resources that cannot be parsed.
//!
//! The API server refuses most of these objects by the schemas of their CRDs. The remaining objects were written under
//! older schemas or by another version of Berth, or break a rule that a schema cannot express.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::ApiResource;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;

/// Kind, namespace and name of an object. The namespace of a cluster-scoped object is empty.
pub type ObjectKey = (String, String, String);

/// All objects that cannot be parsed.
#[derive(Debug, Default)]
pub struct MalformedObjects {
    objects: Mutex<BTreeMap<ObjectKey, MalformedObject>>,
    change_notify: Notify,
}

/// An object that cannot be parsed.
#[derive(Debug, Clone)]
pub struct MalformedObject {
    /// Kind of the object.
    pub resource: ApiResource,
    pub metadata: ObjectMeta,
    /// Returns the path of the field that cannot be parsed, with the reason; `None` if the whole object can be parsed.
    /// The argument is the object as JSON.
    pub find_problem: fn(Value) -> Option<String>,
}

/// Returns the key of an object of the kind `K`.
pub(super) fn object_key<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> ObjectKey {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (K::kind(&()).into_owned(), text(&metadata.namespace), text(&metadata.name))
}

fn find_problem<K: DeserializeOwned>(object: Value) -> Option<String> {
    let error = serde_path_to_error::deserialize::<_, K>(object).err()?;
    Some(format!("{}: {}", error.path(), error.inner()))
}

impl MalformedObject {
    /// Returns the object of the kind `K` with this metadata.
    #[must_use]
    pub fn new<K>(metadata: &ObjectMeta) -> Self
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        Self {
            resource: ApiResource::erase::<K>(&()),
            metadata: metadata.clone(),
            find_problem: find_problem::<K>,
        }
    }
}

impl MalformedObjects {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, MalformedObject>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of all objects.
    #[must_use]
    pub fn all(&self) -> BTreeMap<ObjectKey, MalformedObject> {
        self.lock().clone()
    }

    /// Returns the names of the objects of a cluster-scoped kind.
    #[must_use]
    pub fn names<K: Resource<DynamicType = ()>>(&self) -> BTreeSet<String> {
        let (kind, all) = (K::kind(&()), self.lock());
        let own = all.keys().filter(|key| key.0 == kind);
        own.map(|(.., name)| name.clone()).collect()
    }

    /// Waits until an object that cannot be parsed is received.
    pub async fn wait_for_change(&self) {
        self.change_notify.notified().await;
    }

    /// Adds an object. Returns true if the object is new, or if its generation has changed. A write of the status does
    /// not change the generation.
    pub(super) fn add<K>(&self, metadata: &ObjectMeta) -> bool
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let object = MalformedObject::new::<K>(metadata);
        let before = self.lock().insert(object_key::<K>(metadata), object);
        self.change_notify.notify_one();
        let version = |of: &ObjectMeta| (of.uid.clone(), of.generation);
        before.is_none_or(|before| version(&before.metadata) != version(metadata))
    }

    /// Removes the objects of a kind that are not in `listed`: they were corrected or deleted while the watch was
    /// interrupted. `listed` are the objects in a complete list that cannot be parsed.
    pub(super) fn retain_listed<K>(&self, listed: &BTreeSet<ObjectKey>)
    where
        K: Resource<DynamicType = ()>,
    {
        let kind = K::kind(&());
        self.lock().retain(|key, _| key.0 != kind || listed.contains(key));
    }

    /// Removes an object, because it can be parsed again or was deleted.
    pub(super) fn remove<K: Resource<DynamicType = ()>>(&self, metadata: &ObjectMeta) {
        let mut all = self.lock();
        if !all.is_empty() {
            all.remove(&object_key::<K>(metadata));
        }
    }
}
