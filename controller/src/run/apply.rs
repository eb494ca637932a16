//! Writes by server-side apply. The client refuses writes of a process that is not the leader.

use std::sync::Arc;

use berth_api::names::{CONTROLLER, CONTROLLER_STATUS};
use berth_runtime::call::{CallError, within};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

use super::metrics::Metrics;

/// Policy for fields that another field manager owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldConflictPolicy {
    /// The fields keep their owner: the server refuses the apply with a conflict (409) that names them.
    Win,
    /// The apply takes over the fields.
    Lose,
}

/// Writes objects, and counts the writes.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Object that a write applies.
#[derive(Debug, Clone)]
pub struct Target {
    resource: ApiResource,
    namespace: Option<String>,
    name: String,
    uid: Option<String>,
}

impl Target {
    /// Returns the target for an existing object; an apply does not create the object again if it was deleted.
    #[must_use]
    pub fn from_object<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let metadata = object.meta();
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
        }
    }

    /// Returns the target for an object that an apply creates if the object does not exist.
    #[must_use]
    pub fn named(resource: ApiResource, namespace: Option<&str>, name: &str) -> Self {
        Self { resource, namespace: namespace.map(str::to_owned), name: name.to_owned(), uid: None }
    }

    /// Adds kind, name and UID to the body.
    fn complete(&self, mut body: Value) -> Value {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("apiVersion".to_owned(), self.resource.api_version.clone().into());
            fields.insert("kind".to_owned(), self.resource.kind.clone().into());
            let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
            metadata["name"] = self.name.clone().into();
            if let Some(uid) = &self.uid {
                metadata["uid"] = uid.clone().into();
            }
        }
        body
    }
}

impl Writer {
    pub(super) const fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self { client, metrics }
    }

    /// Applies all fields of an object that the controller owns (`spec`, `metadata.labels`, ...).
    ///
    /// # Errors
    /// Returns the error of the server, or [`CallError::NotSent`] if this process is not the leader.
    pub async fn apply(
        &self,
        target: &Target,
        body: Value,
        others: FieldConflictPolicy,
    ) -> Result<DynamicObject, CallError> {
        self.patch(target, &Self::params(CONTROLLER, others), body, Part::Main).await
    }

    /// Applies all fields of the status that the controller owns.
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub async fn apply_status(
        &self,
        target: &Target,
        status: Value,
    ) -> Result<DynamicObject, CallError> {
        self.apply_status_as(CONTROLLER_STATUS, target, status).await
    }

    /// Applies all fields of the status that `manager` owns.
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub async fn apply_status_as(
        &self,
        manager: &str,
        target: &Target,
        status: Value,
    ) -> Result<DynamicObject, CallError> {
        // The fields belong to the controller, or to an agent that is unresponsive.
        let params = Self::params(manager, FieldConflictPolicy::Lose);
        self.patch(target, &params, json!({"status": status}), Part::Status).await
    }

    fn params(manager: &str, others: FieldConflictPolicy) -> PatchParams {
        let params = PatchParams::apply(manager);
        if others == FieldConflictPolicy::Lose { params.force() } else { params }
    }

    async fn patch(
        &self,
        target: &Target,
        params: &PatchParams,
        body: Value,
        part: Part,
    ) -> Result<DynamicObject, CallError> {
        let (client, resource) = (self.client.clone(), &target.resource);
        let api: Api<DynamicObject> = match &target.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let patch = Patch::Apply(target.complete(body));
        let written = match part {
            Part::Main => within(api.patch(&target.name, params, &patch)).await?,
            Part::Status => within(api.patch_status(&target.name, params, &patch)).await?,
        };
        self.metrics.wrote(&resource.kind);
        Ok(written)
    }
}

#[derive(Clone, Copy)]
enum Part {
    Main,
    Status,
}
