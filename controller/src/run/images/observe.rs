//! Reads the input of a reconcile from the stores.

use std::collections::BTreeSet;

use berth_api::names::{CLONED_FROM_LABEL, TENANT_PREFIX};
use berth_api::{CloneStrategy, ConditionReason, InfraConfig, TenantCluster};
use berth_kubevirt_render::machines::{RenderContext, preloaded_images};
use berth_runtime::watch::OptionalInformer;
use kube::ResourceExt as _;

use super::reconcile::ImageReconciler;
use crate::images::desired::{DesiredImage, DesiredImages, desired_images};
use crate::images::key::ImageKey;
use crate::images::observed::{ObservedCron, ObservedImages, ObservedVolume, image_of_import};
use crate::images::usage::CLONE_TYPE_ANNOTATION;
use crate::tenants::fault::Fault;
use crate::tenants::policies_ready::policies_not_ready_reason;

impl ImageReconciler {
    /// Returns the fault that prevents all imports.
    pub(super) fn observe_fault(&self) -> Option<Fault> {
        let volumes = &self.stores.volumes;
        if volumes.is_not_installed() {
            let message = "CDI is not installed, so images cannot be imported: CustomResourceDefinition \
                           datavolumes.cdi.kubevirt.io does not exist";
            return Some(Fault::new(ConditionReason::CrdMissing, message.to_owned()));
        }
        // Without these lists, it is not known which images exist, and which are in use.
        let needed = [volumes, &self.stores.clones, &self.stores.storage_profiles];
        if needed.iter().all(|kind| kind.is_listed() || kind.is_not_installed()) {
            return None;
        }
        let message = "DataVolumes, StorageProfiles and PersistentVolumeClaims have not been listed yet; if this persists, \
                       the controller lacks an RBAC permission for them (list, watch; deploy/base/rbac-controller.yaml)";
        Some(Fault::new(ConditionReason::ClusterFactsUnknown, message.to_owned()))
    }

    /// Returns the input from which golden images and the strategies of clones result.
    pub(super) fn observe_context(&self, config: &InfraConfig) -> RenderContext {
        let mut context = RenderContext {
            config: config.spec.clone(),
            is_exhaustive: true,
            ..RenderContext::default()
        };
        let stores = &self.stores;
        for (kind, store) in [
            ("StorageClass", &stores.storage_classes),
            ("StorageProfile", &stores.storage_profiles),
            ("VolumeSnapshotClass", &stores.snapshot_classes),
            ("CSIDriver", &stores.csi_drivers),
            ("CDI", &stores.cdis),
        ] {
            add_objects(&mut context, kind, store);
        }
        let snapshot_classes = &stores.snapshot_classes;
        if snapshot_classes.is_listed() || snapshot_classes.is_not_installed() {
            context.snapshot_classes.get_or_insert_default();
        }
        if stores.csi_drivers.is_listed() {
            context.csi_drivers.get_or_insert_default();
        }
        context
    }

    /// Returns true if each StorageClass has a StorageProfile. CDI deletes the profile with the class, and creates it after
    /// the class. Until then, machines seem to need other images, because the volume mode is a part of their identity.
    pub(super) fn are_profiles_complete(&self) -> bool {
        let profiles = &self.stores.storage_profiles;
        let classes = self.stores.storage_classes.all();
        !profiles.is_listed()
            || classes.iter().all(|class| profiles.get_cluster_scoped(&class.name_any()).is_some())
    }

    /// Returns the images that MachineDeployments and the catalog need.
    pub(super) fn observe_desired(&self, context: &mut RenderContext) -> DesiredImages {
        let images = context.config.images.as_ref();
        let has_preload =
            images.is_some_and(|one| one.catalog.iter().any(|entry| entry.preload == Some(true)));
        if has_preload {
            // Images are imported for tenants whose namespace exists.
            let is_ready = |tenant: &TenantCluster| {
                tenant.metadata.deletion_timestamp.is_none()
                    && tenant.status.as_ref().is_some_and(|status| status.namespace.is_some())
            };
            let tenants = self.context.tenants.all();
            let ready = tenants.iter().filter(|tenant| is_ready(tenant));
            context.tenants =
                ready.map(|tenant| (tenant.name_any(), TenantCluster::clone(tenant))).collect();
        }
        let preloaded = preloaded_images(context);
        let recorded = self.context.images.uses();
        let of_machines = recorded
            .iter()
            .flat_map(|(namespace, uses)| uses.iter().map(move |one| (namespace.as_str(), one)));
        let of_catalog = preloaded.iter().map(|one| (one.image.namespace.as_str(), one));
        let mut desired = desired_images(of_machines.chain(of_catalog));
        for one in desired.values_mut() {
            one.obstacle = self.obstacle(one, context);
        }
        desired
    }

    /// Returns the reason why an image must not be imported now.
    fn obstacle(&self, desired: &DesiredImage, context: &RenderContext) -> Option<String> {
        let class = &desired.image.storage_class;
        let are_classes_listed = self.stores.storage_classes.is_listed();
        if are_classes_listed && !class.is_empty() && !context.storage_classes.contains_key(class) {
            return Some(format!("StorageClass {class} does not exist"));
        }
        let tenant = desired.image.namespace.strip_prefix(TENANT_PREFIX)?;
        let tenant = self.context.tenants.get(tenant)?;
        if tenant.metadata.deletion_timestamp.is_some() {
            return Some(format!("TenantCluster {} is being deleted", tenant.name_any()));
        }
        let reason = policies_not_ready_reason(&tenant)?;
        Some(format!("the import waits for the tenant's NetworkPolicies: {reason}"))
    }

    /// Returns the objects of golden images. `deleted` has the UIDs of objects that were deleted a moment ago.
    pub(super) fn observe_images(&self, deleted: &BTreeSet<String>) -> ObservedImages {
        let mut observed = ObservedImages::default();
        for object in self.stores.volumes.all() {
            let mut volume = ObservedVolume::from_object(&object);
            volume.import.is_deleting |= deleted.contains(&volume.import.uid);
            observed.volumes.insert(ImageKey::of_object(&object), volume);
        }
        for object in self.stores.crons.all() {
            let mut cron = ObservedCron::from_object(&object);
            cron.import.is_deleting |= deleted.contains(&cron.import.uid);
            observed.crons.insert(ImageKey::of_object(&object), cron);
        }
        let is_present = |uid: Option<String>| !uid.is_some_and(|uid| deleted.contains(&uid));
        for object in self.stores.sources.all() {
            if is_present(object.uid()) {
                observed.sources.insert(ImageKey::of_object(&object), object.data["spec"].clone());
            }
        }
        for object in self.stores.imports.all() {
            if let Some(key) = image_of_import(&object).filter(|_| is_present(object.uid())) {
                let count = observed.imports.entry(key).or_default();
                *count = count.saturating_add(1);
            }
        }
        self.observe_clones(&mut observed);
        observed
    }

    /// Removes the UIDs of objects that the stores do not contain any more.
    pub(super) fn forget_deleted(&self, deleted: &mut BTreeSet<String>) {
        if deleted.is_empty() {
            return;
        }
        let stores =
            [&self.stores.volumes, &self.stores.crons, &self.stores.sources, &self.stores.imports];
        let present: BTreeSet<String> =
            stores.iter().flat_map(|store| store.all()).filter_map(|object| object.uid()).collect();
        deleted.retain(|uid| present.contains(uid));
    }

    fn observe_clones(&self, observed: &mut ObservedImages) {
        for object in self.stores.clones.all() {
            let Some(image) = object.labels().get(CLONED_FROM_LABEL) else { continue };
            let count = observed.clones.entry(image.clone()).or_default();
            *count = count.saturating_add(1);
            let strategy = object.annotations().get(CLONE_TYPE_ANNOTATION);
            let strategy = strategy.and_then(|name| CloneStrategy::from_cdi_name(name));
            if strategy == Some(CloneStrategy::HostAssisted) {
                observed.copied.insert(image.clone());
            }
        }
    }
}

fn add_objects(context: &mut RenderContext, kind: &str, store: &OptionalInformer) {
    for object in store.all() {
        if let Ok(mut value) = serde_json::to_value(&*object) {
            value["kind"] = kind.into();
            context.add(&value);
        }
    }
}
