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
    /// Checksum of the image, such as `sha256:` and 64 hexadecimal digits.
    pub(super) checksum: ConfigVar,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SecondaryDisk {
    pub(super) size: ConfigVar,
    pub(super) storage_class: ConfigVar,
    pub(super) access_mode: ConfigVar,
    pub(super) is_blank: bool,
}

/// Method with which registry images are pulled by default: by the container runtime of a host.
pub(super) const DEFAULT_PULL_METHOD: &str = "node";
pub(super) const PRIMARY_DISK_FIELDS: [&str; 11] = [
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
    "checksum",
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
                none if none.is_empty() => DEFAULT_PULL_METHOD.into(),
                method => method,
            },
            extra_headers: disk.read_texts("extraHeaders"),
            extra_headers_secret: disk.read_variable("extraHeadersSecretRef"),
            data_volume_secret: disk.read_variable("dataVolumeSecretRef"),
            checksum: disk.read_variable("checksum"),
        };
        if !["node", "pod"].contains(&&*this.pull_method) {
            disk.report_error("pullMethod", &this.pull_method, "must be node or pod");
        }
        if !this.extra_headers.is_empty() && !this.extra_headers_secret.is_empty() {
            let message = "cannot be set together with extraHeaders: remove one of them";
            disk.report_error("extraHeadersSecretRef", &this.extra_headers_secret, message);
        }
        if !this.checksum.is_empty() && !is_checksum(&this.checksum) {
            let message = "must be sha256: and 64, or sha512: and 128 lowercase hexadecimal digits";
            disk.report_error("checksum", &this.checksum, message);
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

/// Returns true for a checksum with an algorithm for which no collisions are known. CDI also accepts MD5 and SHA-1.
fn is_checksum(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let lengths = [("sha256", 64), ("sha512", 128)];
    text.split_once(':').is_some_and(|(algorithm, digits)| {
        lengths.contains(&(algorithm, digits.len())) && digits.bytes().all(is_digit)
    })
}

fn check_access_mode(disk: &UnreadFields<'_>, mode: &ConfigVar) {
    let known = ["", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
    if !known.contains(&&**mode) {
        let message = "must be ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod";
        disk.report_error("storageAccessType", mode, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_an_algorithm_and_a_length() {
        for (text, is_valid) in [
            (format!("sha256:{}", "0f".repeat(32)), true),
            (format!("sha512:{}", "0f".repeat(64)), true),
            (format!("sha256:{}", "0f".repeat(64)), false),
            (format!("sha256:{}", "0F".repeat(32)), false),
            (format!("md5:{}", "0f".repeat(16)), false),
            ("0f".repeat(32), false),
            (String::new(), false),
        ] {
            assert_eq!(is_checksum(&text), is_valid, "{text}");
        }
    }
}
