//! Writes objects by server-side apply. The client refuses writes while this process is not the leader.

use std::sync::Arc;

use berth_api::names::{CONTROLLER_FIELD_MANAGER, CONTROLLER_STATUS_FIELD_MANAGER};
use berth_runtime::call::{CallError, with_timeout};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

use super::metrics::Metrics;

/// Behavior of an apply for fields that another field manager owns with a different value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldConflictPolicy {
    /// The server refuses the apply with a conflict (409) that names the fields.
    Fail,
    /// The apply takes over the fields (`force`).
    Force,
}

/// Writes objects by server-side apply, and counts the writes.
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

/// Object to which a write applies fields.
#[derive(Debug, Clone)]
pub struct ApplyTarget {
    resource: ApiResource,
    namespace: Option<String>,
    name: String,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl ApplyTarget {
    /// Returns the target for an existing object. If the object was deleted, an apply does not create it again,
    /// because the target contains its UID.
    #[must_use]
    pub fn from_object<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let metadata = object.meta();
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
            resource_version: None,
        }
    }

    /// Returns the target for an object that an apply creates if it does not exist.
    #[must_use]
    pub fn new_target(resource: ApiResource, namespace: Option<&str>, name: &str) -> Self {
        Self {
            resource,
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            uid: None,
            resource_version: None,
        }
    }

    /// Sets the resource version of `object`. The server then refuses a write with a conflict (409) if the object has
    /// changed.
    #[must_use]
    pub fn with_version_of<K: Resource<DynamicType = ()>>(mut self, object: &K) -> Self {
        self.resource_version.clone_from(&object.meta().resource_version);
        self
    }

    /// Adds apiVersion, kind, name, UID and resource version of the target to the body of a write.
    fn add_identity(&self, mut body: Value) -> Value {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("apiVersion".to_owned(), self.resource.api_version.clone().into());
            fields.insert("kind".to_owned(), self.resource.kind.clone().into());
            let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
            metadata["name"] = self.name.clone().into();
            if let Some(uid) = &self.uid {
                metadata["uid"] = uid.clone().into();
            }
            if let Some(version) = &self.resource_version {
                metadata["resourceVersion"] = version.clone().into();
            }
        }
        body
    }
}

impl Writer {
    pub(super) const fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self { client, metrics }
    }

    /// Applies the fields of an object outside of its status (`spec`, `metadata.labels`, ...). `body` must contain
    /// all such fields that the controller owns.
    ///
    /// # Errors
    /// Returns the error of the server, or [`CallError::NotSent`] if this process is not the leader.
    pub async fn apply(
        &self,
        target: &ApplyTarget,
        body: Value,
        conflict_policy: FieldConflictPolicy,
    ) -> Result<DynamicObject, CallError> {
        self.patch(
            target,
            &Self::params(CONTROLLER_FIELD_MANAGER, conflict_policy),
            body,
            PatchEndpoint::Object,
        )
        .await
    }

    /// Applies the status of an object. `status` must contain all fields that the controller owns.
    ///
    /// # Errors
    /// Returns the errors of [`Self::apply`].
    pub async fn apply_status(
        &self,
        target: &ApplyTarget,
        status: Value,
    ) -> Result<DynamicObject, CallError> {
        self.apply_status_as(CONTROLLER_STATUS_FIELD_MANAGER, target, status).await
    }

    /// Applies the status of an object as the field manager `manager`. `status` must contain all fields that this
    /// manager owns.
    ///
    /// # Errors
    /// Returns the errors of [`Self::apply`].
    pub async fn apply_status_as(
        &self,
        manager: &str,
        target: &ApplyTarget,
        status: Value,
    ) -> Result<DynamicObject, CallError> {
        // The apply is forced: the fields belong to the controller, or to an agent that is unresponsive.
        let params = Self::params(manager, FieldConflictPolicy::Force);
        self.patch(target, &params, json!({"status": status}), PatchEndpoint::Status).await
    }

    fn params(manager: &str, conflict_policy: FieldConflictPolicy) -> PatchParams {
        let params = PatchParams::apply(manager);
        if conflict_policy == FieldConflictPolicy::Force { params.force() } else { params }
    }

    async fn patch(
        &self,
        target: &ApplyTarget,
        params: &PatchParams,
        body: Value,
        endpoint: PatchEndpoint,
    ) -> Result<DynamicObject, CallError> {
        let (client, resource) = (self.client.clone(), &target.resource);
        let api: Api<DynamicObject> = match &target.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let patch = Patch::Apply(target.add_identity(body));
        let written = match endpoint {
            PatchEndpoint::Object => with_timeout(api.patch(&target.name, params, &patch)).await?,
            PatchEndpoint::Status => {
                with_timeout(api.patch_status(&target.name, params, &patch)).await?
            }
        };
        self.metrics.count_write(&resource.kind);
        Ok(written)
    }
}

#[derive(Clone, Copy)]
enum PatchEndpoint {
    Object,
    Status,
}
