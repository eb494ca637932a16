//! Deletes golden images that nothing uses, and imports that have failed.
//!
//! The stores select the candidates. Before a deletion, all objects that may depend on the candidates are listed from the
//! API server. If the controller stops between two deletions, the next plan deletes the remaining objects.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_api::names::CLONED_FROM_LABEL_PREFIX;
use berth_runtime::call::{CallError, with_timeout};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};

use super::memory::ImageMemory;
use super::reconcile::ImageReconciler;
use super::stores::{
    claim_resource, cron_resource, snapshot_resource, source_resource, volume_resource,
};
use crate::api_resource::machine_resource;
use crate::images::key::ImageKey;
use crate::images::plan::ImageChange;
use crate::images::usage::{IMPORT_CRON_LABEL, images_of};
use crate::run::reconcile::ReconcileFailure;

/// Minimum interval between checks of images that cannot be deleted because of objects that the stores do not contain.
const CHECK_INTERVAL: Duration = Duration::from_secs(300);
/// Number of objects in one page of a list.
const PAGE_SIZE: u32 = 250;

impl ImageReconciler {
    /// Makes the deletions of a plan for which no dependent object exists. `are_needs_known` is true if it is known which
    /// images the MachineDeployments need; otherwise only failed imports are deleted.
    ///
    /// # Errors
    /// Returns the first failure. Then some images may not have been deleted.
    pub(super) async fn delete_unused(
        &self,
        changes: &[(ImageKey, ImageChange)],
        are_needs_known: bool,
        memory: &mut ImageMemory,
    ) -> Result<(), ReconcileFailure> {
        let may_check =
            are_needs_known && memory.next_deletion.is_none_or(|next| next <= Instant::now());
        let mut candidates: Vec<(&ImageKey, &ImageChange)> = Vec::new();
        for (key, change) in changes {
            let is_due = match change {
                ImageChange::DeleteImage => may_check && self.context.images.begin_deletion(key),
                ImageChange::DeleteFailedImport(_) => memory.may_retry(key),
                _ => false,
            };
            if is_due {
                candidates.push((key, change));
            }
        }
        if candidates.is_empty() {
            return Ok(());
        }
        let result = self.delete_candidates(&candidates, memory).await;
        for (key, change) in candidates {
            if *change == ImageChange::DeleteImage {
                self.context.images.end_deletion(key);
            }
        }
        result
    }

    async fn delete_candidates(
        &self,
        candidates: &[(&ImageKey, &ImageChange)],
        memory: &mut ImageMemory,
    ) -> Result<(), ReconcileFailure> {
        let keys: Vec<&ImageKey> = candidates.iter().map(|(key, _)| *key).collect();
        let in_use = self
            .read_images_in_use(&keys)
            .await
            .map_err(ReconcileFailure::with_request("list the users of golden images"))?;
        for (key, change) in candidates {
            if in_use.contains(&key.name) {
                // Reading all volumes is expensive, so it is not repeated soon.
                memory.next_deletion = Instant::now().checked_add(CHECK_INTERVAL);
                tracing::info!(namespace = %key.namespace, name = %key.name, "an unused golden image is not deleted, because objects depend on it");
                memory.record_attempt(key);
                continue;
            }
            let deleted = match change {
                ImageChange::DeleteFailedImport(uid) => {
                    let deleted = self.delete_object(&volume_resource(), key, Some(uid)).await;
                    deleted.map(|()| {
                        memory.record_attempt(key);
                        memory.deleted.insert(uid.clone());
                    })
                }
                _ => self.delete_image(key, memory).await,
            };
            let request = format!("delete golden image {key}");
            deleted.map_err(ReconcileFailure::with_request(request))?;
            tracing::info!(namespace = %key.namespace, name = %key.name, "deleted golden image");
            self.context.metrics.count_image_deletion();
        }
        Ok(())
    }

    /// Deletes all objects of an image. The DataImportCron is the first, because CDI would create deleted imports again.
    async fn delete_image(
        &self,
        key: &ImageKey,
        memory: &mut ImageMemory,
    ) -> Result<(), CallError> {
        let stores = [
            (&self.stores.crons, cron_resource()),
            (&self.stores.volumes, volume_resource()),
            (&self.stores.sources, source_resource()),
        ];
        for (store, resource) in stores {
            let stored = store.get(&key.namespace, &key.name);
            let uid = stored.as_ref().and_then(|object| object.uid());
            let is_cdi_source = resource.kind == "DataSource" && self.has_imports(key);
            // CDI created the DataSource of a DataImportCron.
            if stored.is_some() || is_cdi_source {
                self.delete_object(&resource, key, uid.as_deref()).await?;
            }
            memory.deleted.extend(uid);
        }
        let label = format!("{IMPORT_CRON_LABEL}={}", key.name);
        for resource in [volume_resource(), snapshot_resource()] {
            let objects = self.list(&resource, Some(&key.namespace), Some(&label)).await?;
            for object in objects {
                let import = ImageKey::of_object(&object);
                let uid = object.uid();
                self.delete_object(&resource, &import, uid.as_deref()).await?;
                memory.deleted.extend(uid);
            }
        }
        Ok(())
    }

    fn has_imports(&self, key: &ImageKey) -> bool {
        let label = |object: &DynamicObject| object.labels().get(IMPORT_CRON_LABEL).cloned();
        let is_of_image = |object: &DynamicObject| {
            object.namespace().as_deref() == Some(key.namespace.as_str())
                && label(object).as_deref() == Some(key.name.as_str())
        };
        !self.stores.imports.filter(is_of_image).is_empty()
            || self.stores.crons.get(&key.namespace, &key.name).is_some()
    }

    /// Returns the names of the images that objects in the cluster depend on.
    async fn read_images_in_use(&self, keys: &[&ImageKey]) -> Result<BTreeSet<String>, CallError> {
        let mut in_use = BTreeSet::new();
        for key in keys {
            let label = format!("{CLONED_FROM_LABEL_PREFIX}{}", key.name);
            let machines: Api<DynamicObject> =
                Api::all_with(self.context.client.clone(), &machine_resource());
            let params = ListParams::default().labels(&label).limit(1);
            match with_timeout(machines.list_metadata(&params)).await {
                Ok(found) if found.items.is_empty() => {}
                Ok(_) => {
                    in_use.insert(key.name.clone());
                }
                Err(error) if error.status_code() == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        for resource in [volume_resource(), claim_resource()] {
            for object in self.list(&resource, None, None).await? {
                in_use.extend(images_of(&serde_json::to_value(&object).unwrap_or_default()));
            }
        }
        let namespaces: BTreeSet<&str> = keys.iter().map(|key| key.namespace.as_str()).collect();
        for namespace in namespaces {
            for object in self.list(&snapshot_resource(), Some(namespace), None).await? {
                in_use.extend(images_of(&serde_json::to_value(&object).unwrap_or_default()));
            }
        }
        Ok(in_use)
    }

    /// Lists all objects of a kind, in pages; none if the kind is not installed.
    async fn list(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Vec<DynamicObject>, CallError> {
        let client = self.context.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let mut params = ListParams::default().limit(PAGE_SIZE);
        if let Some(labels) = labels {
            params = params.labels(labels);
        }
        let mut objects = Vec::new();
        loop {
            let page = match with_timeout(api.list(&params)).await {
                Ok(page) => page,
                Err(error) if error.status_code() == Some(404) => return Ok(objects),
                Err(error) => return Err(error),
            };
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(objects),
            }
        }
    }
}
