//! Images of machines in the InfraConfig: where they are, which of them are imported once (golden images), and the
//! status of golden images.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Quantity;

/// Images of machines.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// Images that are downloaded by HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpImages>,
    /// True if an image is imported once for each storage class (golden image), and disks of machines are clones of
    /// the golden image. Default: true if `namespace` is set; otherwise false, and each machine imports its image.
    /// Existing machines are not replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub golden: Option<bool>,
    /// Namespace of the golden images that all tenants use: those of entries of `catalog` with a `size`. All tenants may
    /// clone every volume in this namespace, so use it for nothing else. Default: each tenant's own namespace. Other
    /// golden images are always in the namespace of the machines, where NetworkPolicies restrict the addresses of
    /// importers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Properties of single images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 128),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["image"])
    )]
    pub catalog: Vec<CatalogImage>,
    /// Disks that are fully allocated when they are created. Default: Performance with golden images, otherwise Never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<Preallocation>,
    /// Rule by which golden images are deleted. Default Unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garbage_collect: Option<GarbageCollect>,
    /// Number of unused golden images that are kept of each image, storage class and namespace: the most recent ones.
    /// Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub keep_last: Option<u32>,
}

/// Images that are downloaded by HTTP.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HttpImages {
    /// URLs by operating system (`ubuntu`) and version (`22.04`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operating_systems: BTreeMap<String, BTreeMap<String, String>>,
}

/// Properties of an image. They apply to all machines that name the image.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CatalogImage {
    /// The image: an HTTP URL, a registry image (`docker://registry.example/ubuntu:24.04`), or an existing volume as
    /// NAMESPACE/NAME.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^\S+$"))]
    pub image: String,
    /// Checksum of the file that an HTTP URL downloads, such as `sha256:` and 64 hexadecimal digits. An image with
    /// another checksum is another golden image. CDI verifies it since version 1.65.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 135),
        regex(pattern = r"^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$")
    )]
    pub checksum: Option<String>,
    /// Size of the image when it is unpacked: the size of its golden image, and the minimum size of disks with this
    /// image. Default for golden images: the size of the smallest disk with this image. An image with another size is
    /// another golden image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub size: Option<Quantity>,
    /// Secret with the credentials for the download, in the namespace into which the image is imported. Keys:
    /// `accessKeyId` (user) and `secretKey` (password).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_ref: Option<String>,
    /// ConfigMap with the certificate authority of the image server, in the namespace into which the image is imported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cert_config_map: Option<String>,
    /// Schedule on which a registry image (`docker://`) is imported again if its digest has changed, in the format of
    /// cron, such as `30 1 * * 1` or `@daily`. New machines get the most recent import. Default: the image is imported once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 6, max = 128))]
    pub schedule: Option<String>,
    /// True if the golden images are imported before a machine needs them. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preload: Option<bool>,
    /// Storage classes for which the image is imported with `preload`. Default: the default class of
    /// `infraStorageClasses`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 253)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub storage_classes: Vec<String>,
}

/// Disks that are fully allocated when they are created. KubeVirt accesses a disk on a file system volume with native
/// asynchronous I/O only if it is fully allocated (`SetOptimalIOMode`). Block volumes need no allocation.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// No disks: a disk takes the space of the data that the guest has written.
    #[default]
    Never,
    /// Disks on file system volumes of machines whose instance type has dedicated CPUs.
    Performance,
}

/// Rule by which golden images are deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GarbageCollect {
    /// Deletes images that no MachineDeployment names and of which no disk is a clone, except the most recent ones
    /// (`keepLast`).
    #[default]
    Unused,
    /// Deletes no image.
    Never,
}

impl Images {
    /// Returns true if disks of machines are clones of golden images.
    #[must_use]
    pub fn has_golden_images(&self) -> bool {
        self.golden.unwrap_or_else(|| self.namespace.is_some())
    }

    /// Returns the properties of an image.
    #[must_use]
    pub fn catalog_entry(&self, image: &str) -> Option<&CatalogImage> {
        self.catalog.iter().find(|entry| entry.image == image)
    }

    /// Returns which disks are fully allocated, with the default.
    #[must_use]
    pub fn preallocation(&self) -> Preallocation {
        let default = if self.has_golden_images() {
            Preallocation::Performance
        } else {
            Preallocation::Never
        };
        self.preallocation.unwrap_or(default)
    }

    /// Returns the number of unused golden images that are kept, with the default.
    #[must_use]
    pub fn keep_last(&self) -> u32 {
        self.keep_last.unwrap_or(1)
    }
}

/// State of a golden image.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GoldenImageStatus {
    /// Namespace of the golden image.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the DataSource, and of the DataVolume that imports the image.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The image, without credentials in its URL.
    #[schemars(length(max = 256))]
    pub source: String,
    /// Storage class; absent for the default class of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class: Option<String>,
    /// Size of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 32))]
    pub size: Option<Quantity>,
    /// Phase of the import.
    pub phase: GoldenImagePhase,
    /// Strategy with which disks are cloned from the golden image; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<CloneStrategy>,
    /// The reason of `strategy`, or the message of CDI if the import fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// Number of disks that are clones of the golden image.
    pub users: u32,
}

/// Phase of the import of a golden image.
#[derive(
    JsonSchema,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum GoldenImagePhase {
    /// The import has not started.
    #[default]
    Pending,
    /// The image is being imported.
    Importing,
    /// Disks can be cloned.
    Ready,
    /// The import failed at least once; CDI tries again.
    Failed,
}

/// Strategy with which CDI clones a volume.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloneStrategy {
    /// Smart clone: the storage restores a snapshot of the source.
    Snapshot,
    /// The storage clones the volume (volume cloning of CSI).
    CsiClone,
    /// Two pods copy every byte over the network.
    HostAssisted,
}

impl CloneStrategy {
    /// Returns the value of `cloneStrategy` in a StorageProfile of CDI.
    #[must_use]
    pub const fn cdi_name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::CsiClone => "csi-clone",
            Self::HostAssisted => "copy",
        }
    }

    /// Returns the strategy with this name in a StorageProfile of CDI.
    #[must_use]
    pub fn from_cdi_name(name: &str) -> Option<Self> {
        [Self::Snapshot, Self::CsiClone, Self::HostAssisted]
            .into_iter()
            .find(|strategy| strategy.cdi_name() == name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn images(value: serde_json::Value) -> Images {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn golden_images_are_disabled_by_default() {
        for (value, is_golden) in [
            (json!({}), false),
            (json!({"catalog": [{"image": "http://images/a.img", "preload": true}]}), false),
            (json!({"namespace": "images"}), true),
            (json!({"golden": true}), true),
            (json!({"golden": false, "namespace": "images"}), false),
        ] {
            let images = images(value.clone());
            assert_eq!(images.has_golden_images(), is_golden, "{value}");
            assert_eq!(images.preallocation() == Preallocation::Performance, is_golden, "{value}");
        }
        let always = images(json!({"preallocation": "Performance"}));
        assert_eq!(always.preallocation(), Preallocation::Performance);
    }

    #[test]
    fn catalog_entries_are_found_by_image() {
        let images = images(json!({
            "http": {"operatingSystems": {"ubuntu": {"24.04": "http://images/noble.img"}}},
            "catalog": [{"image": "docker://registry/rhel:9", "schedule": "0 3 * * *"}],
        }));
        let entry = images.catalog_entry("docker://registry/rhel:9").unwrap();
        assert_eq!(entry.schedule.as_deref(), Some("0 3 * * *"));
        assert_eq!(images.catalog_entry("http://images/noble.img"), None);
        assert_eq!(images.keep_last(), 1);
    }

    #[test]
    fn strategies_have_the_names_of_cdi() {
        for strategy in
            [CloneStrategy::Snapshot, CloneStrategy::CsiClone, CloneStrategy::HostAssisted]
        {
            assert_eq!(CloneStrategy::from_cdi_name(strategy.cdi_name()), Some(strategy));
        }
        assert_eq!(CloneStrategy::from_cdi_name("clone"), None);
    }
}
