//! Disks of a machine in a providerSpec.

use std::collections::BTreeSet;

use serde_json::Value;

use super::config_var::ConfigVar;
use super::field_parser::UnreadFields;
use super::json_value::to_plain_string;

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
    /// Set if the disk is attached to running machines and detached from them.
    pub(super) hotplug: Option<HotplugFields>,
}

/// Fields of a secondary disk with `hotpluggable: true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HotplugFields {
    /// Name of the disk, by which its DataVolume is found when other disks are added or removed.
    pub(super) name: String,
    /// `scsi` or `virtio`.
    pub(super) bus: &'static str,
    pub(super) removal_policy: RemovalPolicy,
    /// Fields that are not set.
    pub(super) defaulted: DefaultedFields,
}

/// Fields of a disk that are not set, so that they have the values of defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DefaultedFields {
    pub(super) storage_class: bool,
    pub(super) access_mode: bool,
}

/// Handling of the data of a disk that is removed from the template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RemovalPolicy {
    /// The DataVolume and its claim exist as long as the machine.
    #[default]
    Retain,
    /// The DataVolume is deleted, and with it the data.
    Delete,
}

impl RemovalPolicy {
    /// Returns the policy with this name in a MachineDeployment.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Retain, Self::Delete].into_iter().find(|policy| policy.name() == name)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
        }
    }
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
pub(super) const SECONDARY_DISK_FIELDS: [&str; 8] = [
    "size",
    "storageClassName",
    "storageAccessType",
    "source",
    "name",
    "hotpluggable",
    "bus",
    "removalPolicy",
];
/// Buses of hotpluggable disks that KubeVirt accepts (KubeVirt: `pkg/storage/admitters/storagehotplug.go`); the first is the
/// default. Disks on the SCSI bus share one controller. A virtio disk needs a free PCI port, of which a machine has few, and
/// one with `placePCIDevicesOnRootComplex` none (KubeVirt: `pkg/virt-launcher/virtwrap/manager.go`).
const HOTPLUG_BUSES: [&str; 2] = ["scsi", "virtio"];
/// Maximum length of the name of a hotpluggable disk. The name is also the serial number of the disk, of which a guest
/// reads 20 characters from a virtio disk (Linux `VIRTIO_BLK_ID_BYTES`).
const MAX_DISK_NAME_LENGTH: usize = 20;

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
        let defaulted = DefaultedFields {
            storage_class: storage_class.is_empty(),
            access_mode: access_mode.is_empty(),
        };
        let hotplug = HotplugFields::read(disk, defaulted);
        if hotplug.is_some() && &*source == "clone" {
            disk.report_error("source", &source, "must be blank, because the disk is hotpluggable");
        }
        if let Err(error) = size.parse_quantity() {
            disk.report_error("size", &size, error.to_string());
        }
        check_access_mode(disk, &access_mode);
        let is_blank = &*source == "blank" || hotplug.is_some();
        Self { size, storage_class, access_mode, is_blank, hotplug }
    }
}

impl HotplugFields {
    /// Reads the fields of a hotpluggable disk; returns `None` if the disk is not hotpluggable. `hotpluggable` cannot come
    /// from a Secret or ConfigMap, because it determines the revision of the template.
    fn read(disk: &mut UnreadFields<'_>, defaulted: DefaultedFields) -> Option<Self> {
        let (name, bus) = (disk.read_text("name"), disk.read_text("bus"));
        let policy = disk.read_text("removalPolicy");
        let is_hotpluggable = match disk.take_field("hotpluggable") {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(other) => {
                let message = "must be true or false, without quotes";
                disk.report_error("hotpluggable", &to_plain_string(&other), message);
                return None;
            }
        };
        if !is_hotpluggable {
            for (field, value) in [("name", &name), ("bus", &bus), ("removalPolicy", &policy)] {
                if !value.is_empty() {
                    disk.report_error(field, value, "requires hotpluggable: true");
                }
            }
            return None;
        }
        if !is_disk_name(&name) {
            let message = format!(
                "must be a name of at most {MAX_DISK_NAME_LENGTH} lowercase letters, digits and '-', because the disk is \
                 hotpluggable"
            );
            disk.report_error("name", &name, message);
        }
        let known = HOTPLUG_BUSES.into_iter().find(|known| *known == bus);
        if known.is_none() && !bus.is_empty() {
            disk.report_error("bus", &bus, "must be scsi or virtio");
        }
        let [default, ..] = HOTPLUG_BUSES;
        let removal_policy = RemovalPolicy::from_name(&policy);
        if removal_policy.is_none() && !policy.is_empty() {
            disk.report_error("removalPolicy", &policy, "must be Retain or Delete");
        }
        Some(Self {
            name,
            bus: known.unwrap_or(default),
            removal_policy: removal_policy.unwrap_or_default(),
            defaulted,
        })
    }
}

/// Checks that the names of hotpluggable disks are unique. `template` is the object that contains the disks.
pub(super) fn check_unique_names(disks: &[SecondaryDisk], template: &UnreadFields<'_>) {
    let mut known = BTreeSet::new();
    for (index, disk) in disks.iter().enumerate() {
        let Some(hotplug) = &disk.hotplug else { continue };
        if !known.insert(hotplug.name.as_str()) {
            let field = format!("secondaryDisks[{index}].name");
            template.report_error(&field, &hotplug.name, "is the name of another disk");
        }
    }
}

/// Returns true for a DNS label of at most [`MAX_DISK_NAME_LENGTH`] characters.
fn is_disk_name(name: &str) -> bool {
    let is_inner = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-');
    (1..=MAX_DISK_NAME_LENGTH).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
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
    fn names_of_disks_are_labels() {
        for (name, is_valid) in [
            ("data", true),
            ("a", true),
            ("etcd-2", true),
            ("x123456789x123456789", true),
            ("x123456789x123456789x", false),
            ("", false),
            ("-a", false),
            ("a-", false),
            ("a.b", false),
            ("A", false),
        ] {
            assert_eq!(is_disk_name(name), is_valid, "{name}");
        }
    }

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
