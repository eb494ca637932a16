//! Creates the objects that import golden images.

use berth_api::names::GOLDEN_IMAGE_LABEL;
use berth_runtime::call::{CallError, with_timeout};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::memory::ImageMemory;
use super::reconcile::ImageReconciler;
use super::stores::{cron_resource, source_resource, volume_resource};
use crate::images::desired::DesiredImages;
use crate::images::key::ImageKey;
use crate::images::plan::ImageChange;
use crate::managed_by::is_created_by_berth;
use crate::run::api_requests::post_params;
use crate::run::apply::{ApplyTarget, FieldConflictPolicy};
use crate::run::reconcile::ReconcileFailure;

impl ImageReconciler {
    /// Makes the changes of images that are needed. A refused change of one image does not prevent those of others, and is
    /// reported.
    ///
    /// # Errors
    /// Returns the first failure that does not concern a single image.
    pub(super) async fn apply_changes(
        &self,
        changes: &[(ImageKey, ImageChange)],
        desired: &DesiredImages,
        memory: &mut ImageMemory,
    ) -> Result<(), ReconcileFailure> {
        for (key, change) in changes {
            let result = match change {
                ImageChange::CreateImport(object) if memory.may_create(key) => {
                    self.create_import(key, object).await
                }
                ImageChange::ApplyDataSource(object) if memory.may_create(key) => {
                    self.apply_source(key, object).await
                }
                ImageChange::DeleteCron(uid) => {
                    self.delete_object(&cron_resource(), key, Some(uid)).await
                }
                // Deletions of DataVolumes and of images need checks of their own.
                _ => continue,
            };
            let Err(error) = result else {
                match change {
                    ImageChange::CreateImport(_) => {
                        let image = desired.get(key).map(|one| one.image.source.to_string());
                        tracing::info!(namespace = %key.namespace, name = %key.name, image, "importing golden image");
                        memory.record_attempt(key);
                    }
                    ImageChange::DeleteCron(uid) => {
                        memory.deleted.insert(uid.clone());
                    }
                    _ => {}
                }
                continue;
            };
            let Some(message) = refusal(&error) else {
                return Err(ReconcileFailure::with_request(format!("write golden image {key}"))(
                    error,
                ));
            };
            tracing::warn!(namespace = %key.namespace, name = %key.name, %error, "the API server refuses an object of a golden image");
            memory.record_refusal(key, message);
        }
        Ok(())
    }

    /// Creates a DataVolume or DataImportCron. CDI permits no later change.
    async fn create_import(&self, key: &ImageKey, object: &Value) -> Result<(), CallError> {
        let resource =
            if object["kind"] == "DataImportCron" { cron_resource() } else { volume_resource() };
        let api = self.api(&resource, &key.namespace);
        let body: DynamicObject = serde_json::from_value(object.clone())
            .map_err(|error| CallError::from(kube::Error::SerdeError(error)))?;
        match with_timeout(api.create(&post_params(), &body)).await {
            Ok(_) => {
                self.context.metrics.count_image_import();
                Ok(())
            }
            // The store may lack an object that was created a moment ago.
            Err(error) if error.status_code() == Some(409) => {
                let existing = with_timeout(api.get_metadata(&key.name)).await?;
                let labels = existing.labels();
                let is_own = is_created_by_berth(labels) && labels.contains_key(GOLDEN_IMAGE_LABEL);
                if is_own { Ok(()) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    async fn apply_source(&self, key: &ImageKey, object: &Value) -> Result<(), CallError> {
        let target = ApplyTarget::new_target(source_resource(), Some(&key.namespace), &key.name);
        let writer = &self.context.writer;
        writer.apply(&target, object.clone(), FieldConflictPolicy::Force).await.map(drop)
    }

    /// Deletes an object with the name of an image; with a UID, only the object with this UID. An object that does not
    /// exist is no error.
    pub(super) async fn delete_object(
        &self,
        resource: &ApiResource,
        key: &ImageKey,
        uid: Option<&str>,
    ) -> Result<(), CallError> {
        let preconditions =
            uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        match with_timeout(self.api(resource, &key.namespace).delete(&key.name, &params)).await {
            Err(error) if error.status_code() == Some(404) => Ok(()),
            // Another object has the name now.
            Err(error) if error.is_conflict() => Ok(()),
            result => result.map(drop),
        }
    }

    pub(super) fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, resource)
    }
}

/// Returns the message of the API server if it refused the object of one image; `None` for failures that concern all
/// requests, such as an invalid credential (401) or an overload (429).
pub(super) fn refusal(error: &CallError) -> Option<String> {
    let is_refusal = |code: u16| code != 401 && (400..=422).contains(&code);
    let status = error.status().filter(|status| is_refusal(status.code))?;
    Some(format!("{} ({})", status.message, status.code))
}
