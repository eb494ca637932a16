//! Control plane with CDI's kinds and one StorageClass, for tests of golden images. CDI does not run.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cluster::{ControlPlane, ControlPlaneOptions};
use crate::kubevirt::define_cdi_kinds;

/// Namespace of golden images. The tests create it.
pub const NAMESPACE: &str = "images";
/// StorageClass of machines.
pub const STORAGE_CLASS: &str = "fast";

/// Starts a control plane with an audit log, the kinds that golden images need, and the permissions of the controller.
///
/// # Errors
/// Fails if the control plane does not start, or refuses an object.
pub fn start_control_plane() -> Result<ControlPlane> {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        has_audit_log: true,
        ..ControlPlaneOptions::default()
    })?;
    plane.install_machine_kinds()?;
    define_kinds(&plane)?;
    plane.deploy(&["base/rbac-controller.yaml"])?;
    create_storage_class(&plane)?;
    Ok(plane)
}

/// Defines the kinds of CDI and of snapshots.
///
/// # Errors
/// Fails if the server refuses a definition.
pub fn define_kinds(plane: &ControlPlane) -> Result<()> {
    define_cdi_kinds(plane)?;
    plane.define_kind("cdi.kubevirt.io", "v1beta1", "DataImportCron", "dataimportcrons")?;
    let snapshots = "snapshot.storage.k8s.io";
    plane.define_kind(snapshots, "v1", "VolumeSnapshot", "volumesnapshots")?;
    let (kind, plural) = ("VolumeSnapshotClass", "volumesnapshotclasses");
    plane.define_kind_in_scope(snapshots, "v1", kind, plural, "Cluster")
}

/// Creates the CSIDriver, the StorageClass, and its StorageProfile with CSI clones.
///
/// # Errors
/// Fails if the server refuses an object.
pub fn create_storage_class(plane: &ControlPlane) -> Result<()> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": STORAGE_CLASS},
        "provisioner": "rbd.csi.ceph.com", "allowVolumeExpansion": true,
    });
    let profile = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": {"name": STORAGE_CLASS},
        "status": {
            "cloneStrategy": "csi-clone",
            "claimPropertySets": [{"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}],
        },
    });
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "rbd.csi.ceph.com"}, "spec": {},
    });
    plane.apply(&driver.to_string())?;
    plane.apply(&class.to_string())?;
    plane.apply(&profile.to_string()).map(drop)
}

/// Deletes the StorageClass, and its StorageProfile as CDI does.
///
/// # Errors
/// Fails if the server refuses a deletion.
pub fn delete_storage_class(plane: &ControlPlane) -> Result<()> {
    let objects = ["storageclass", "storageprofile"].map(|kind| format!("{kind}/{STORAGE_CLASS}"));
    let [class, profile] = objects.each_ref().map(String::as_str);
    plane.kubectl(&["delete", class, profile]).map(drop)
}

/// Writes the InfraConfig with these images; `null` disables golden images.
///
/// # Errors
/// Fails if the server refuses the object.
pub fn write_images(plane: &ControlPlane, images: &Value) -> Result<()> {
    let mut spec =
        json!({"infraStorageClasses": [{"name": STORAGE_CLASS, "isDefaultClass": true}]});
    if images.is_object() {
        spec["images"] = images.clone();
    }
    let config = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"}, "spec": spec,
    });
    plane.apply(&config.to_string()).map(drop)
}

/// Creates a TenantCluster whose machines get user data from a Secret.
///
/// # Errors
/// Fails if the server refuses the object.
pub fn create_tenant(plane: &ControlPlane, name: &str) -> Result<()> {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
        "spec": {"userDataSecretRef": {"name": "user-data"}},
    });
    plane.apply(&tenant.to_string()).map(drop)
}

/// Creates the Secret with the user data of a tenant, whose namespace exists.
///
/// # Errors
/// Fails if the server refuses the object.
pub fn create_user_data(plane: &ControlPlane, tenant: &str) -> Result<()> {
    let user_data = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "user-data", "namespace": format!("cluster-{tenant}")},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
    });
    plane.apply(&user_data.to_string()).map(drop)
}
