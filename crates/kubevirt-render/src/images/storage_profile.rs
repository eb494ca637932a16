//! A StorageProfile, in which CDI describes what a storage class supports, and a VolumeSnapshotClass.

use berth_api::CloneStrategy;
use serde_json::Value;

use super::volume_mode::VolumeMode;

/// Access mode of volumes that several hosts mount at the same time. Live migration needs it.
pub const READ_WRITE_MANY: &str = "ReadWriteMany";
/// Access mode of volumes that one host mounts.
pub const READ_WRITE_ONCE: &str = "ReadWriteOnce";

/// Status of a StorageProfile. CDI creates a StorageProfile for each StorageClass, with the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageProfile {
    /// Combinations of access modes and volume mode that the storage supports, the preferred one first. The list is empty
    /// if CDI does not know the provisioner.
    pub claim_properties: Vec<ClaimProperties>,
    /// Strategy with which volumes are cloned if this is possible.
    pub clone_strategy: Option<CloneStrategy>,
    /// Name of the VolumeSnapshotClass for clones.
    pub snapshot_class: Option<String>,
}

/// Properties of a PersistentVolumeClaim that a storage class supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimProperties {
    /// Access modes.
    pub access_modes: Vec<String>,
    /// Volume mode; `None` if the StorageProfile has no valid one.
    pub volume_mode: Option<VolumeMode>,
}

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotClass {
    /// Name of the class.
    pub name: String,
    /// Name of the CSI driver.
    pub driver: String,
    /// True if this is the default class of the driver.
    pub is_default: bool,
}

impl StorageProfile {
    /// Reads a StorageProfile from its JSON.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let sets = object.pointer("/status/claimPropertySets").and_then(Value::as_array);
        Self {
            claim_properties: sets
                .into_iter()
                .flatten()
                .map(ClaimProperties::from_object)
                .collect(),
            clone_strategy: text("/status/cloneStrategy").and_then(CloneStrategy::from_cdi_name),
            snapshot_class: text("/status/snapshotClass").map(str::to_owned),
        }
    }

    /// Returns the access mode of disks that specify none: ReadWriteMany if the storage supports it, so that VMs can be
    /// migrated; otherwise ReadWriteOnce.
    #[must_use]
    pub fn default_access_mode(&self) -> &'static str {
        if self.find(READ_WRITE_MANY).is_some() { READ_WRITE_MANY } else { READ_WRITE_ONCE }
    }

    /// Returns the volume mode of a claim with an access mode. CDI chooses it in the same way (`getDefaultVolumeMode`).
    #[must_use]
    pub fn volume_mode(&self, access_mode: &str) -> Option<VolumeMode> {
        self.find(access_mode)?.volume_mode
    }

    fn find(&self, access_mode: &str) -> Option<&ClaimProperties> {
        let has_mode =
            |set: &&ClaimProperties| set.access_modes.iter().any(|mode| mode == access_mode);
        self.claim_properties.iter().find(has_mode)
    }
}

impl ClaimProperties {
    fn from_object(set: &Value) -> Self {
        let modes = set.get("accessModes").and_then(Value::as_array).into_iter().flatten();
        let volume_mode = set.get("volumeMode").and_then(Value::as_str);
        Self {
            access_modes: modes.filter_map(Value::as_str).map(str::to_owned).collect(),
            volume_mode: volume_mode.and_then(VolumeMode::from_name),
        }
    }
}

impl SnapshotClass {
    /// Reads a VolumeSnapshotClass from its JSON.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let default = "/metadata/annotations/snapshot.storage.kubernetes.io~1is-default-class";
        Self {
            name: text("/metadata/name").to_owned(),
            driver: text("/driver").to_owned(),
            is_default: text(default) == "true",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn properties_are_those_of_the_first_set_with_the_access_mode() {
        let profile = StorageProfile::from_object(&json!({"status": {
            "cloneStrategy": "csi-clone", "snapshotClass": "rbd",
            "claimPropertySets": [
                {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"},
                {"accessModes": ["ReadWriteMany", "ReadWriteOnce"], "volumeMode": "Filesystem"},
                {"accessModes": ["ReadOnlyMany"], "volumeMode": "Tape"},
                7,
            ],
        }}));
        assert_eq!(profile.clone_strategy, Some(CloneStrategy::CsiClone));
        assert_eq!(profile.snapshot_class.as_deref(), Some("rbd"));
        assert_eq!(profile.default_access_mode(), READ_WRITE_MANY);
        assert_eq!(profile.volume_mode(READ_WRITE_ONCE), Some(VolumeMode::Block));
        assert_eq!(profile.volume_mode(READ_WRITE_MANY), Some(VolumeMode::Filesystem));
        assert_eq!(profile.volume_mode("ReadOnlyMany"), None);
        assert_eq!(profile.volume_mode("ReadWriteOncePod"), None);
    }

    #[test]
    fn a_profile_of_an_unknown_provisioner_has_no_properties() {
        for object in [json!({}), json!({"status": {"claimPropertySets": "x", "cloneStrategy": 1}})]
        {
            let profile = StorageProfile::from_object(&object);
            assert_eq!(profile, StorageProfile::default());
            assert_eq!(profile.default_access_mode(), READ_WRITE_ONCE);
        }
    }

    #[test]
    fn the_default_class_of_a_driver_is_annotated() {
        let class = json!({
            "metadata": {"name": "rbd", "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}},
            "driver": "rbd.csi.ceph.com",
        });
        let class = SnapshotClass::from_object(&class);
        assert!(class.is_default && class.name == "rbd" && class.driver == "rbd.csi.ceph.com");
        assert!(!SnapshotClass::from_object(&json!({})).is_default);
    }
}
