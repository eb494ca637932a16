//! Watches of StorageClasses, CSIDrivers and CSIStorageCapacities, with which CSI drivers report their free storage.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_extender::Extender;
use berth_placement::rules::{StorageCapacityFields, StorageClassFields};
use berth_runtime::cli::text::error_chain;
use berth_runtime::discovery::is_kind_served;
use berth_runtime::watch::{Config, Event, continue_after_error, watch_events};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;
use crate::api_resource::api_resource;

/// Versions of CSIStorageCapacity in order of preference: `v1` since Kubernetes 1.24, `v1beta1` from 1.21 to 1.26. In
/// 1.20, only an alpha version exists, which is disabled by default. Both versions have the same fields.
const CAPACITY_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Interval between checks whether CSIStorageCapacity is served.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Delay before a failed check is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Updates the extender with an object; `None` means that the object was deleted.
type Update<K> = fn(&mut Extender, &str, Option<&K>);

/// Passes StorageClasses to the extender; never ends.
pub(super) async fn watch_storage_classes(service: Arc<ExtenderService>) {
    let api: Api<StorageClass> = Api::all(service.client.clone());
    let kind = ("storageclasses", ListedKind::StorageClasses);
    watch_objects(&service, api, kind, update_class, continue_after_error).await;
}

/// Passes CSIDrivers to the extender; never ends.
pub(super) async fn watch_csi_drivers(service: Arc<ExtenderService>) {
    let api: Api<CSIDriver> = Api::all(service.client.clone());
    let kind = ("csidrivers", ListedKind::CsiDrivers);
    watch_objects(&service, api, kind, update_driver, continue_after_error).await;
}

/// Passes CSIStorageCapacities to the extender, in the version that the API server serves; never ends.
pub(super) async fn watch_storage_capacities(service: Arc<ExtenderService>) {
    loop {
        match find_served_resource(&service.client).await {
            Ok(Some(resource)) => watch_served_capacities(&service, resource).await,
            Ok(None) => {
                service.readiness_gate.set_listed(ListedKind::StorageCapacities, true);
            }
            Err(error) => {
                let kind = "csistoragecapacities";
                tracing::warn!(kind, error = %error_chain(&error), "failed to check if a kind is served; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

async fn find_served_resource(client: &Client) -> kube::Result<Option<ApiResource>> {
    for version in CAPACITY_VERSIONS {
        let resource =
            api_resource("storage.k8s.io", version, "CSIStorageCapacity", "csistoragecapacities");
        if is_kind_served(client, &resource).await? {
            return Ok(Some(resource));
        }
    }
    Ok(None)
}

/// Passes CSIStorageCapacities to the extender until the API server no longer serves this version.
async fn watch_served_capacities(service: &ExtenderService, resource: ApiResource) {
    let api: Api<DynamicObject> = Api::all_with(service.client.clone(), &resource);
    let kind = ("csistoragecapacities", ListedKind::StorageCapacities);
    let is_still_served = |_: &watcher::Error| {
        let (client, resource) = (service.client.clone(), resource.clone());
        async move { is_kind_served(&client, &resource).await.unwrap_or(true) }
    };
    watch_objects(service, api, kind, update_capacity, is_still_served).await;
}

/// Calls `update` with each object of a kind, by name or by `namespace/name`. After an error, `retry` decides as in
/// [`watch_events`]. If the watch ends, all objects count as deleted.
///
/// If the API server forbids the list, the kind counts as listed without objects: no VM may wait only because the
/// permissions are those of an older release, which did not count storage.
async fn watch_objects<K, F>(
    service: &ExtenderService,
    api: Api<K>,
    (plural, listed_kind): (&str, ListedKind),
    update: Update<K>,
    mut retry: impl FnMut(&watcher::Error) -> F + Send,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Future<Output = bool> + Send,
{
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    // True if the last list was forbidden.
    let is_forbidden = AtomicBool::new(false);
    let handle = |event: Event<K>| match event {
        Event::Init => {
            let was_forbidden = is_forbidden.load(Ordering::Relaxed);
            service.readiness_gate.set_listed(listed_kind, was_forbidden);
            if was_forbidden {
                let old = std::mem::take(&mut known);
                service
                    .update(|extender, _| old.iter().for_each(|name| update(extender, name, None)));
            }
            listed.clear();
        }
        Event::InitApply(object) => {
            let name = qualified_name(&object);
            update(&mut service.extender(), &name, Some(&object));
            listed.insert(name);
        }
        Event::InitDone => {
            let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
            service.update(|extender, _| {
                before.difference(&known).for_each(|name| update(extender, name, None));
            });
            is_forbidden.store(false, Ordering::Relaxed);
            service.readiness_gate.set_listed(listed_kind, true);
        }
        Event::Apply(object) => {
            let name = qualified_name(&object);
            service.update(|extender, _| update(extender, &name, Some(&object)));
            known.insert(name);
        }
        Event::Delete(object) => {
            let name = qualified_name(&object);
            service.update(|extender, _| update(extender, &name, None));
            known.remove(&name);
        }
    };
    let retry = |error: &watcher::Error| {
        if is_list_forbidden(error) {
            if !is_forbidden.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    kind = plural,
                    "no permission to list a kind; the storage of volumes is not counted"
                );
            }
            service.readiness_gate.set_listed(listed_kind, true);
        }
        retry(error)
    };
    watch_events(api, Config::default(), plural, handle, retry).await;
    service.update(|extender, _| known.iter().for_each(|name| update(extender, name, None)));
}

fn is_list_forbidden(error: &watcher::Error) -> bool {
    let watcher::Error::InitialListFailed(kube::Error::Api(status)) = error else { return false };
    status.code == 403
}

/// Returns the name of an object, as `namespace/name` if it has a namespace.
fn qualified_name(object: &impl Resource) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

fn update_class(extender: &mut Extender, name: &str, class: Option<&StorageClass>) {
    let class = class.map(StorageClassFields::from_object);
    if let Err(error) = extender.update_storage_class(name, class.as_ref()) {
        tracing::warn!(name, %error, "failed to read a StorageClass; the storage of its volumes is not counted");
    }
}

fn update_driver(extender: &mut Extender, name: &str, driver: Option<&CSIDriver>) {
    let reports_storage = driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
    extender.update_csi_driver(name, reports_storage);
}

fn update_capacity(extender: &mut Extender, name: &str, object: Option<&DynamicObject>) {
    let (capacity, error) = match object.map(read_capacity).transpose() {
        Ok(capacity) => (capacity, None),
        Err(error) => (None, Some(error)),
    };
    let result = extender.update_storage_capacity(name, capacity.as_ref());
    if let Some(error) = error.or_else(|| Some(result.err()?.into())) {
        tracing::warn!(name, %error, "failed to read a CSIStorageCapacity; it is ignored");
    }
}

fn read_capacity(object: &DynamicObject) -> anyhow::Result<StorageCapacityFields> {
    let object: CSIStorageCapacity = serde_json::from_value(object.data.clone())?;
    Ok(StorageCapacityFields::from_object(&object)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn capacity(version: &str, fields: Value) -> DynamicObject {
        let mut object = fields;
        object["apiVersion"] = format!("storage.k8s.io/{version}").into();
        object["kind"] = "CSIStorageCapacity".into();
        object["metadata"] = json!({"namespace": "storage", "name": "csisc-1"});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_a_missing_permission_counts_as_an_empty_list() {
        let failed = |code: u16| {
            let status =
                json!({"status": "Failure", "message": "no", "reason": "no", "code": code});
            let status: kube::core::Status = serde_json::from_value(status).unwrap();
            watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
        };
        assert!(is_list_forbidden(&failed(403)));
        assert!(!is_list_forbidden(&failed(500)));
        assert!(!is_list_forbidden(&watcher::Error::NoResourceVersion));
    }

    #[test]
    fn both_versions_of_capacities_are_read() {
        for version in CAPACITY_VERSIONS {
            let object = capacity(
                version,
                json!({"storageClassName": "local", "nodeTopology": {}, "capacity": "1Ki"}),
            );
            assert_eq!(qualified_name(&object), "storage/csisc-1");
            let fields = read_capacity(&object).unwrap();
            assert_eq!((fields.class.as_str(), fields.capacity), ("local", Some(1024)));
            assert!(fields.node_topology.is_some() && fields.maximum_volume_size.is_none());
        }
        let invalid = capacity("v1", json!({"storageClassName": "local", "capacity": "much"}));
        assert_eq!(
            read_capacity(&invalid).unwrap_err().to_string(),
            "capacity: `much` is not a quantity"
        );
        assert!(read_capacity(&capacity("v1", json!({"storageClassName": 7}))).is_err());
    }
}
