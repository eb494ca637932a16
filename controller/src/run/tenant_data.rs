//! Lists the data of a requested tenant: objects in its namespace that the deletion of the namespace would destroy.

use berth_api::names::GOLDEN_IMAGE_LABEL;
use berth_runtime::call::{CallError, with_timeout};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};

use crate::api_resource::{api_resource, deployment_resource, machine_resource};
use crate::images::usage::IMPORT_CRON_LABEL;
use crate::managed_by::is_created_by_berth;
use crate::self_service::data::{NamespaceObject, objects_in_use};

/// Returns machines, volumes, snapshots and exports in a namespace, as `Kind name`. A kind that is not installed has no objects.
///
/// # Errors
/// Returns the description of a list that failed, and its error.
pub(super) async fn list_tenant_data(
    client: &Client,
    namespace: &str,
) -> Result<Vec<String>, (String, CallError)> {
    let kinds = [
        deployment_resource(),
        machine_resource(),
        api_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances"),
        api_resource("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes"),
        api_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        api_resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots"),
        // Old releases of KubeVirt have the first version only. Two lists of the same objects do no harm.
        api_resource(
            "snapshot.kubevirt.io",
            "v1alpha1",
            "VirtualMachineSnapshot",
            "virtualmachinesnapshots",
        ),
        api_resource(
            "snapshot.kubevirt.io",
            "v1beta1",
            "VirtualMachineSnapshot",
            "virtualmachinesnapshots",
        ),
        api_resource(
            "export.kubevirt.io",
            "v1alpha1",
            "VirtualMachineExport",
            "virtualmachineexports",
        ),
        api_resource(
            "export.kubevirt.io",
            "v1beta1",
            "VirtualMachineExport",
            "virtualmachineexports",
        ),
    ];
    let mut all = Vec::new();
    for resource in kinds {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        match with_timeout(api.list_metadata(&ListParams::default())).await {
            Ok(found) => {
                all.extend(found.items.iter().map(|one| namespace_object(&resource.kind, one)));
            }
            // The kind or the version is not installed.
            Err(error) if error.status_code() == Some(404) => {}
            Err(error) => return Err((format!("list {}s in {namespace}", resource.kind), error)),
        }
    }
    Ok(objects_in_use(&all))
}

fn namespace_object(kind: &str, object: &impl ResourceExt) -> NamespaceObject {
    let labels = object.labels();
    let is_golden_image = is_created_by_berth(labels) && labels.contains_key(GOLDEN_IMAGE_LABEL);
    NamespaceObject {
        kind: kind.to_owned(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        owners: object.owner_references().iter().map(|owner| owner.uid.clone()).collect(),
        is_image: is_golden_image || labels.contains_key(IMPORT_CRON_LABEL),
    }
}
