//! Golden images that are imported before a machine needs them.

use berth_api::{CatalogImage, Images, Quantity, TenantCluster};

use super::image::{catalog_source, schedule};
use super::render_context::RenderContext;
use crate::images::{GoldenImage, GoldenImageUse, StorageProfile, VolumeMode};

/// Returns the golden images of all entries of InfraConfig's `images.catalog` with `preload`: in the shared namespace, or
/// else in the namespaces of all tenants in the context. They are not fully allocated, because the flavors of later
/// machines are unknown.
#[must_use]
pub fn preloaded_images(context: &RenderContext) -> Vec<GoldenImageUse> {
    let Some(images) = context.config.images.as_ref().filter(|one| one.has_golden_images()) else {
        return Vec::new();
    };
    let mut uses = Vec::new();
    for entry in images.catalog.iter().filter(|entry| entry.preload == Some(true)) {
        let Some(size) = entry.size else { continue };
        for storage_class in storage_classes(context, entry) {
            for namespace in namespaces(context, images) {
                let image = preloaded_image(context, entry, size, &storage_class, namespace);
                GoldenImageUse::add(&mut uses, image, size);
            }
        }
    }
    uses
}

fn preloaded_image(
    context: &RenderContext,
    entry: &CatalogImage,
    size: Quantity,
    storage_class: &str,
    namespace: String,
) -> GoldenImage {
    let source = catalog_source(entry);
    let schedule = schedule(&source, entry);
    GoldenImage {
        namespace,
        source,
        storage_class: storage_class.to_owned(),
        volume_mode: context.storage_profiles.get(storage_class).and_then(default_volume_mode),
        is_preallocated: false,
        size: Some(size),
        schedule,
    }
}

/// Returns the volume mode of disks that specify no access mode.
fn default_volume_mode(profile: &StorageProfile) -> Option<VolumeMode> {
    profile.volume_mode(profile.default_access_mode())
}

/// Returns the storage classes of an entry: those that it lists, or else the default class of disks. The name of the
/// default class of the cluster is empty.
fn storage_classes(context: &RenderContext, entry: &CatalogImage) -> Vec<String> {
    if !entry.storage_classes.is_empty() {
        return entry.storage_classes.clone();
    }
    let mut classes = context.config.infra_storage_classes.iter();
    let default =
        classes.find(|class| class.is_for_machines() && class.is_default_class == Some(true));
    vec![default.map(|class| class.name.clone()).unwrap_or_default()]
}

fn namespaces(context: &RenderContext, images: &Images) -> Vec<String> {
    match &images.namespace {
        Some(namespace) => vec![namespace.clone()],
        None => context.tenants.keys().map(|name| TenantCluster::namespace_of(name)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn context(images: Value) -> RenderContext {
        let config = serde_json::from_value(json!({
            "images": images,
            "infraStorageClasses": [{"name": "slow"}, {"name": "fast", "isDefaultClass": true}],
        }))
        .unwrap();
        let mut context = RenderContext { config, ..RenderContext::default() };
        for name in ["a", "b"] {
            let tenant = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                "metadata": {"name": name}, "spec": {},
            });
            context.tenants.insert(name.to_owned(), serde_json::from_value(tenant).unwrap());
        }
        context.add(&json!({
            "kind": "StorageProfile", "metadata": {"name": "fast"},
            "status": {"claimPropertySets": [{"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}]},
        }));
        context
    }

    /// Returns the namespace and the storage class of each preloaded image.
    fn preload_targets(images: Value) -> Vec<(String, String)> {
        let uses = preloaded_images(&context(images));
        uses.into_iter().map(|one| (one.image.namespace, one.image.storage_class)).collect()
    }

    fn target(namespace: &str, class: &str) -> (String, String) {
        (namespace.to_owned(), class.to_owned())
    }

    #[test]
    fn images_are_preloaded_for_classes_and_namespaces() {
        let entry = json!({"image": "http://images/a.img", "size": "4Gi", "preload": true});
        let shared = json!({"namespace": "images", "catalog": [entry]});
        assert_eq!(preload_targets(shared), [target("images", "fast")]);
        let own = json!({"golden": true, "catalog": [entry]});
        assert_eq!(
            preload_targets(own),
            [target("cluster-a", "fast"), target("cluster-b", "fast")]
        );
        let mut classes = entry.clone();
        classes["storageClasses"] = json!(["slow", "fast"]);
        let listed = json!({"namespace": "images", "catalog": [classes]});
        assert_eq!(preload_targets(listed), [target("images", "slow"), target("images", "fast")]);
        assert_eq!(preload_targets(json!({"catalog": [entry]})), []);
        let without_size = json!({"image": "http://images/a.img", "preload": true});
        let listed = json!({"image": "http://images/b.img", "size": "4Gi"});
        assert_eq!(preload_targets(json!({"golden": true, "catalog": [without_size, listed]})), []);
    }

    #[test]
    fn sources_are_derived_from_the_image() {
        let catalog: Value = [
            "http://images/a.img",
            "docker://registry/rhel:9",
            "templates/windows",
        ]
        .iter()
        .map(|image| json!({"image": image, "size": "4Gi", "preload": true, "schedule": "@daily"}))
        .collect();
        let uses = preloaded_images(&context(json!({"namespace": "images", "catalog": catalog})));
        let kinds: Vec<String> = uses
            .iter()
            .flat_map(|one| one.image.source.to_data_volume_source().as_object().cloned())
            .flat_map(|source| source.into_iter().map(|(kind, _)| kind))
            .collect();
        assert_eq!(kinds, ["http", "registry", "pvc"]);
        let scheduled: Vec<bool> = uses.iter().map(|one| one.image.schedule.is_some()).collect();
        assert_eq!(scheduled, [false, true, false]);
        assert_eq!(uses[0].image.volume_mode, Some(VolumeMode::Block));
    }
}
