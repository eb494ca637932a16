//! Objects that cannot be understood.
//!
//! The server refuses most of them by their schemas. The rest were written under older schemas, by another version, or
//! break a rule that no schema can express.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::ApiResource;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;

/// Kind, namespace and name of an object.
pub type ObjectKey = (String, String, String);

/// All objects that cannot be understood.
#[derive(Debug, Default)]
pub struct MalformedObjects {
    objects: Mutex<BTreeMap<ObjectKey, MalformedObject>>,
    changed: Notify,
}

/// An object that cannot be understood.
#[derive(Debug, Clone)]
pub struct MalformedObject {
    /// Its kind.
    pub resource: ApiResource,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Returns the path of the field that cannot be understood, and why; `None` if all of the object can.
    pub problem: fn(Value) -> Option<String>,
}

fn key<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> ObjectKey {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (K::kind(&()).into_owned(), text(&metadata.namespace), text(&metadata.name))
}

fn problem<K: DeserializeOwned>(object: Value) -> Option<String> {
    let error = serde_path_to_error::deserialize::<_, K>(object).err()?;
    Some(format!("{}: {}", error.path(), error.inner()))
}

impl MalformedObjects {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, MalformedObject>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of all of them.
    #[must_use]
    pub fn all(&self) -> BTreeMap<ObjectKey, MalformedObject> {
        self.lock().clone()
    }

    /// Waits until an object was added.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Adds an object. Returns true if its spec is new, which it is not after a write of its status alone.
    pub(super) fn add<K>(&self, metadata: &ObjectMeta) -> bool
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());
        let object =
            MalformedObject { resource, metadata: metadata.clone(), problem: problem::<K> };
        let before = self.lock().insert(key::<K>(metadata), object);
        self.changed.notify_one();
        let version = |of: &ObjectMeta| (of.uid.clone(), of.generation);
        before.is_none_or(|before| version(&before.metadata) != version(metadata))
    }

    /// Removes an object that can be understood, or is deleted.
    pub(super) fn remove<K: Resource<DynamicType = ()>>(&self, metadata: &ObjectMeta) {
        let mut all = self.lock();
        if !all.is_empty() {
            all.remove(&key::<K>(metadata));
        }
    }
}
