//! Disks of a machine in a providerSpec.

use super::config_var::ConfigVar;
use super::field_parser::UnreadFields;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PrimaryDisk {
    pub(super) size: ConfigVar,
    pub(super) storage_class: ConfigVar,
    pub(super) access_mode: ConfigVar,
    /// True if the DataVolume describes its PersistentVolumeClaim in `spec.pvc`, false if in `spec.storage`.
    pub(super) is_pvc: bool,
    pub(super) image: ConfigVar,
    /// Type of the source: `http`, `registry` or `pvc`. If empty, the type is derived from the format of the image
    /// field.
    pub(super) source: ConfigVar,
    pub(super) pull_method: ConfigVar,
    pub(super) extra_headers: Vec<String>,
    pub(super) extra_headers_secret: ConfigVar,
    pub(super) data_volume_secret: ConfigVar,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SecondaryDisk {
    pub(super) size: ConfigVar,
    pub(super) storage_class: ConfigVar,
    pub(super) access_mode: ConfigVar,
    pub(super) is_blank: bool,
}

pub(super) const PRIMARY_DISK_FIELDS: [&str; 10] = [
    "size",
    "storageClassName",
    "storageAccessType",
    "storageTarget",
    "osImage",
    "source",
    "pullMethod",
    "extraHeaders",
    "extraHeadersSecretRef",
    "dataVolumeSecretRef",
];
pub(super) const SECONDARY_DISK_FIELDS: [&str; 4] =
    ["size", "storageClassName", "storageAccessType", "source"];

impl PrimaryDisk {
    pub(super) fn read(disk: &mut UnreadFields<'_>) -> Self {
        let this = Self {
            size: disk.read_variable("size"),
            storage_class: disk.read_variable("storageClassName"),
            access_mode: disk.read_variable("storageAccessType"),
            is_pvc: &*disk.read_variable("storageTarget") == "pvc",
            image: disk.read_variable("osImage"),
            source: disk.read_variable("source"),
            pull_method: match disk.read_variable("pullMethod") {
                none if none.is_empty() => "node".into(),
                method => method,
            },
            extra_headers: disk.read_texts("extraHeaders"),
            extra_headers_secret: disk.read_variable("extraHeadersSecretRef"),
            data_volume_secret: disk.read_variable("dataVolumeSecretRef"),
        };
        if !["node", "pod"].contains(&&*this.pull_method) {
            disk.report_error("pullMethod", &this.pull_method, "must be node or pod");
        }
        if !this.extra_headers.is_empty() && !this.extra_headers_secret.is_empty() {
            let message = "cannot be set together with extraHeaders: remove one of them";
            disk.report_error("extraHeadersSecretRef", &this.extra_headers_secret, message);
        }
        check_access_mode(disk, &this.access_mode);
        this
    }
}

impl SecondaryDisk {
    pub(super) fn read(disk: &mut UnreadFields<'_>) -> Self {
        let (size, storage_class) =
            (disk.read_variable("size"), disk.read_variable("storageClassName"));
        let access_mode = disk.read_variable("storageAccessType");
        let source = disk.read_variable("source");
        if !["", "blank", "clone"].contains(&&*source) {
            disk.report_error("source", &source, "must be blank or clone");
        }
        if let Err(error) = size.parse_quantity() {
            disk.report_error("size", &size, error.to_string());
        }
        check_access_mode(disk, &access_mode);
        Self { size, storage_class, access_mode, is_blank: &*source == "blank" }
    }
}

fn check_access_mode(disk: &UnreadFields<'_>, mode: &ConfigVar) {
    let known = ["", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
    if !known.contains(&&**mode) {
        let message = "must be ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod";
        disk.report_error("storageAccessType", mode, message);
    }
}
