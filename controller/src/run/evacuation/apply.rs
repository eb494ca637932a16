//! Writes of an evacuation: annotations of VirtualMachines, migrations, and the cancellation of an evacuation in
//! KubeVirt.

use berth_api::names::{
    EVACUATING_LABEL, EVACUATION_ANNOTATION, MANAGED_BY_LABEL, REMOVAL_ANNOTATION,
    REMOVAL_SINCE_ANNOTATION, REPLACEMENT_ANNOTATION,
};
use berth_runtime::call::{CallError, with_timeout};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch};
use kube::core::Status;
use kube::core::response::reason::NOT_FOUND;
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};

use super::evacuator::Evacuator;
use super::read::ObservedMachine;
use super::resources::migration_resource;
use crate::api_resource::machine_resource;
use crate::evacuation::decide::Action;
use crate::evacuation::record::EvacuationRecord;
use crate::removal::mark::{RemovalMark, RemovalReason};
use crate::run::api_requests::{patch_params, post_params};
use crate::run::reconcile::ReconcileFailure;

/// Result of a write that may conflict with the write of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Done,
    /// The object has changed since it was read: the host must be reconciled again.
    Conflict,
}

/// Result of the creation of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MigrationCreation {
    Created,
    /// The server refuses the migration, with this message.
    Refused(String),
}

impl Evacuator {
    /// Creates a live migration. If a migration of this name exists (409), an earlier reconcile created it and was
    /// interrupted.
    pub(super) async fn create_migration(
        &self,
        observed: &ObservedMachine,
        name: &str,
    ) -> Result<MigrationCreation, ReconcileFailure> {
        let namespace = &observed.evacuating.namespace;
        let (label, value) = MANAGED_BY_LABEL;
        let migration = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": name, "namespace": namespace, "labels": {label: value}},
            "spec": {"vmiName": observed.evacuating.machine.name},
        });
        let request = format!("create VirtualMachineInstanceMigration {namespace}/{name}");
        // The conversion cannot fail, because the value has the fields of an object.
        let Ok(body) = serde_json::from_value::<DynamicObject>(migration) else {
            return Err(ReconcileFailure::PrerequisiteNotMet(request));
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &migration_resource());
        match with_timeout(api.create(&post_params(), &body)).await {
            Ok(_) => Ok(MigrationCreation::Created),
            Err(error) => match (error.status_code(), error.status()) {
                (Some(409), _) => Ok(MigrationCreation::Created),
                (Some(400 | 403 | 404 | 422), Some(status)) => {
                    Ok(MigrationCreation::Refused(status.message.clone()))
                }
                _ => Err(ReconcileFailure::RequestFailed(request, error)),
            },
        }
    }

    /// Deletes a migration that has not begun to copy the VM.
    pub(super) async fn delete_migration(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<WriteOutcome, ReconcileFailure> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &migration_resource());
        match with_timeout(api.delete(name, &DeleteParams::default())).await {
            Ok(_) => Ok(WriteOutcome::Done),
            Err(error) if error.status_code() == Some(404) => Ok(WriteOutcome::Done),
            Err(error) => {
                let request = format!("delete VirtualMachineInstanceMigration {namespace}/{name}");
                Err(ReconcileFailure::RequestFailed(request, error))
            }
        }
    }

    /// Writes the evacuation record of a machine, and in the same patch the replacement request or the removal mark.
    pub(super) async fn write_record(
        &self,
        observed: &ObservedMachine,
        record: &EvacuationRecord,
        action: &Action,
        now: Timestamp,
    ) -> Result<WriteOutcome, ReconcileFailure> {
        let mut annotations = Map::new();
        if observed.record.as_ref() != Some(record) {
            annotations.insert(EVACUATION_ANNOTATION.to_owned(), record.render().into());
        }
        match action {
            Action::RequestReplacement => {
                annotations.insert(REPLACEMENT_ANNOTATION.to_owned(), now.to_string().into());
            }
            Action::Remove => {
                let mark = RemovalMark::new(RemovalReason::HostDrain, now).patch();
                let mark = mark.pointer("/metadata/annotations").and_then(Value::as_object);
                annotations.extend(mark.cloned().unwrap_or_default());
            }
            Action::Wait | Action::Migrate(_) => {}
        }
        let has_label = observed.object.labels().contains_key(EVACUATING_LABEL);
        if annotations.is_empty() && has_label {
            return Ok(WriteOutcome::Done);
        }
        let metadata = json!({"labels": {EVACUATING_LABEL: "true"}, "annotations": annotations});
        self.patch_machine(&observed.object, metadata).await
    }

    /// Removes the evacuation record and the replacement request from a machine. If `removes_mark` is true, also
    /// removes the removal mark.
    pub(super) async fn clear_machine(
        &self,
        machine: &DynamicObject,
        removes_mark: bool,
    ) -> Result<WriteOutcome, ReconcileFailure> {
        let mut names = vec![EVACUATION_ANNOTATION, REPLACEMENT_ANNOTATION];
        if removes_mark {
            names.extend([REMOVAL_ANNOTATION, REMOVAL_SINCE_ANNOTATION]);
        }
        names.retain(|name| machine.annotations().contains_key(*name));
        if names.is_empty() && !machine.labels().contains_key(EVACUATING_LABEL) {
            return Ok(WriteOutcome::Done);
        }
        let annotations: Map<String, Value> =
            names.into_iter().map(|name| (name.to_owned(), Value::Null)).collect();
        let metadata = json!({"labels": {EVACUATING_LABEL: null}, "annotations": annotations});
        self.patch_machine(machine, metadata).await
    }

    /// Patches the metadata of a VirtualMachine, unless it has changed since it was read.
    async fn patch_machine(
        &self,
        machine: &DynamicObject,
        mut metadata: Value,
    ) -> Result<WriteOutcome, ReconcileFailure> {
        metadata["uid"] = machine.uid().into();
        metadata["resourceVersion"] = machine.resource_version().into();
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &machine_resource());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match with_timeout(api.patch(&name, &patch_params(), &patch)).await {
            Ok(_) => Ok(WriteOutcome::Done),
            Err(error) => match error.status_code() {
                Some(404) => Ok(WriteOutcome::Done),
                Some(409) => Ok(WriteOutcome::Conflict),
                _ => {
                    let request = format!("patch VirtualMachine {namespace}/{name}");
                    Err(ReconcileFailure::RequestFailed(request, error))
                }
            },
        }
    }

    /// Cancels the evacuation of an instance in KubeVirt. Succeeds if the instance no longer exists. Returns false if
    /// KubeVirt is older than v1.8 and does not have the subresource `evacuate/cancel`. A patch of the status is no
    /// alternative: virt-api reverts changes that accounts other than KubeVirt's make to the status.
    pub(super) async fn cancel_evacuation(
        &self,
        namespace: &str,
        name: &str,
        host: &str,
    ) -> Result<bool, ReconcileFailure> {
        let failed = |error| {
            let request = format!("cancel evacuation of VirtualMachineInstance {namespace}/{name}");
            ReconcileFailure::RequestFailed(request, error)
        };
        let uri = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/evacuate/cancel"
        );
        let body = json!({"evacuationNodeName": host}).to_string().into_bytes();
        let request = Request::put(uri)
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| failed(CallError::from(kube::Error::HttpError(error))))?;
        match with_timeout(self.client.request_text(request)).await {
            Ok(_) => Ok(true),
            Err(error)
                if error.status().is_some_and(|status| is_object_not_found(status, name)) =>
            {
                Ok(true)
            }
            Err(error) if matches!(error.status_code(), Some(404 | 405)) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Returns true if an error response states that the object with this name does not exist. If the server does not have
/// the resource at all, its response names no object.
fn is_object_not_found(status: &Status, name: &str) -> bool {
    let details = status.details.as_ref();
    status.code == 404
        && status.reason == NOT_FOUND
        && details.is_some_and(|details| details.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_instance_differs_from_a_missing_subresource() {
        let answer = |details: Value, reason: &str| {
            let status = json!({"status": "Failure", "code": 404, "reason": reason, "message": "x",
                "details": details});
            is_object_not_found(&serde_json::from_value(status).unwrap(), "web-1")
        };
        let instance = json!({"name": "web-1", "kind": "virtualmachineinstance"});
        assert!(answer(instance.clone(), "NotFound"));
        assert!(!answer(instance, "Failed to parse error data"));
        assert!(
            !answer(json!({}), "NotFound"),
            "a NotFound without details is not a missing object"
        );
        assert!(!answer(Value::Null, "NotFound"));
    }
}
