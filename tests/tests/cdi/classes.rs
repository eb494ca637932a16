//! Storage classes of the test, one for each way in which CDI clones a volume.

use berth_tests::cdi::Origin;
use serde_json::{Value, json};

/// A storage class, the objects of its driver, and the expected clones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub(crate) name: &'static str,
    provisioner: &'static str,
    has_csi_driver: bool,
    has_snapshot_class: bool,
    waits_for_consumer: bool,
    /// `spec.cloneStrategy` of the StorageProfile.
    profile: &'static str,
    /// Strategy that the InfraConfig must announce.
    pub(crate) announced: &'static str,
    /// Strategy in CDI's annotation.
    pub(crate) of_cdi: &'static str,
    /// Origin that the content of the disks must have.
    pub(crate) origin: Origin,
    /// Reason of the condition GoldenImagesReady, if it is the only class.
    pub(crate) reason: Option<&'static str>,
}

const CSI_CLONE: Class = Class {
    name: "clone",
    provisioner: "clone.csi.test",
    has_csi_driver: true,
    has_snapshot_class: false,
    waits_for_consumer: false,
    profile: "csi-clone",
    announced: "CsiClone",
    of_cdi: "csi-clone",
    origin: Origin::Clone,
    reason: None,
};
const HOST_ASSISTED: Class = Class {
    name: "copy",
    provisioner: "copy.csi.test",
    profile: "copy",
    announced: "HostAssisted",
    of_cdi: "copy",
    origin: Origin::Copy,
    ..CSI_CLONE
};

/// The storage classes. The first one has the most machines.
pub(crate) const CLASSES: [Class; 7] = [
    CSI_CLONE,
    Class {
        name: "snapshot",
        provisioner: "snapshot.csi.test",
        has_snapshot_class: true,
        profile: "snapshot",
        announced: "Snapshot",
        of_cdi: "snapshot",
        origin: Origin::Snapshot,
        ..CSI_CLONE
    },
    HOST_ASSISTED,
    Class {
        name: "without-driver",
        provisioner: "path.test/local",
        has_csi_driver: false,
        profile: "csi-clone",
        reason: Some("CsiDriverMissing"),
        ..HOST_ASSISTED
    },
    Class {
        name: "without-snapshots",
        provisioner: "plain.csi.test",
        profile: "snapshot",
        reason: Some("VolumeSnapshotClassMissing"),
        ..HOST_ASSISTED
    },
    Class {
        name: "clone-first-consumer",
        provisioner: "late.csi.test",
        waits_for_consumer: true,
        ..CSI_CLONE
    },
    Class {
        name: "copy-first-consumer",
        provisioner: "local.csi.test",
        waits_for_consumer: true,
        ..HOST_ASSISTED
    },
];

impl Class {
    /// Returns the objects that an administrator creates for the class.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let mode = if self.waits_for_consumer { "WaitForFirstConsumer" } else { "Immediate" };
        let mut objects = vec![json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": self.name},
            "provisioner": self.provisioner, "allowVolumeExpansion": true, "volumeBindingMode": mode,
        })];
        if self.has_csi_driver {
            objects.push(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                "metadata": {"name": self.provisioner}, "spec": {"attachRequired": false},
            }));
        }
        if self.has_snapshot_class {
            objects.push(json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
                "metadata": {"name": self.name}, "driver": self.provisioner, "deletionPolicy": "Delete",
            }));
        }
        objects
    }

    /// Returns the fields that an administrator writes to the StorageProfile, which CDI creates for the class.
    pub(crate) fn profile(&self) -> Value {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": {"name": self.name},
            "spec": {
                "cloneStrategy": self.profile,
                "claimPropertySets": [{"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}],
            },
        })
    }
}
