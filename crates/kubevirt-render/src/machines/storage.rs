//! DataVolumes of a machine, with their sources and topology labels.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::disks::{PrimaryDisk, SecondaryDisk};
use super::network::guest_interfaces;
use super::renderer::MachineRenderer;
use crate::stable_hash::stable_hash;

/// Label with the region of a Node or volume.
const REGION_LABEL: &str = "topology.kubernetes.io/region";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Returns `spec.template.spec.domain.devices.disks`.
pub(super) fn render_disks(secondary: usize, machine: &str) -> Vec<Value> {
    let names = ["datavolumedisk".to_owned(), "cloudinitdisk".to_owned()];
    let more = (0..secondary).map(|index| volume_name(machine, index));
    names
        .into_iter()
        .chain(more)
        .map(|name| json!({"name": name, "disk": {"bus": "virtio"}}))
        .collect()
}

/// Returns `spec.template.spec.volumes`.
pub(super) fn render_volumes(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let secret = machine.options.user_data_secret.clone();
    let secret = secret.unwrap_or_else(|| format!("userdata-{}", machine.name));
    // Ignition of CoreOS reads a NoCloud volume only since October 2025 (coreos/ignition#2134), but all its releases
    // read a ConfigDrive. Machines without allocated addresses get a NoCloud volume, as from machine-controller.
    let interfaces = guest_interfaces(machine);
    let has_addresses = interfaces.iter().any(|interface| !interface.addresses.is_empty());
    let source = if has_addresses && is_coreos(&machine.provider.operating_system) {
        "cloudInitConfigDrive"
    } else {
        "cloudInitNoCloud"
    };
    let mut volumes = vec![
        json!({"name": "datavolumedisk", "dataVolume": {"name": machine.name}}),
        json!({"name": "cloudinitdisk", source: {"secretRef": {"name": secret}}}),
    ];
    volumes.extend((0..machine.provider.secondary_disks.len()).map(|index| {
        let (volume, claim) = (volume_name(&machine.name, index), claim_name(&machine.name, index));
        json!({"name": volume, "dataVolume": {"name": claim}})
    }));
    volumes
}

/// Returns true if Ignition, and not cloud-init, configures the operating system.
pub(super) fn is_ignition_system(operating_system: &str) -> bool {
    operating_system == "flatcar" || is_coreos(operating_system)
}

fn is_coreos(operating_system: &str) -> bool {
    ["fcos", "fedora-coreos", "rhcos"].contains(&operating_system)
}

/// Returns the common name of a DataVolume and its PersistentVolumeClaim, a DNS subdomain of at most 253 characters.
fn claim_name(machine: &str, index: usize) -> String {
    format!("{machine}-secondarydisk{index}")
}

/// Maximum length of a volume's name. The launcher pod has a volume with the same name, which must be a DNS label.
const MAX_LABEL_LENGTH: usize = 63;

/// Returns the common name of a volume and its disk. A machine's name may have 63 characters and contain dots. If the
/// volume's name would not be a DNS label, the machine's name is truncated, and a hash of the full name is appended.
fn volume_name(machine: &str, index: usize) -> String {
    let full_name = claim_name(machine, index);
    if full_name.len() <= MAX_LABEL_LENGTH && !full_name.contains('.') {
        return full_name;
    }
    let hash = stable_hash(machine.bytes()) & 0xffff_ffff;
    let suffix = format!("-{hash:08x}-secondarydisk{index}");
    let prefix = machine.chars().take(MAX_LABEL_LENGTH.saturating_sub(suffix.len()));
    let prefix: String = prefix.map(|c| if c == '.' { '-' } else { c }).collect();
    format!("{}{suffix}", prefix.trim_end_matches('-'))
}

/// Returns `spec.dataVolumeTemplates`.
pub(super) fn render_data_volumes(
    machine: &MachineRenderer<'_>,
    annotations: Map<String, Value>,
) -> Vec<Value> {
    let PrimaryDisk { size, storage_class, is_pvc, .. } = &machine.provider.primary_disk;
    let source = render_source(machine);
    let mode = access_mode(machine);
    let volume = |name: &str, is_pvc: bool, class: &str, mode: &str, size: &str, source: &Value| {
        let mut claim =
            json!({"accessModes": [mode], "resources": {"requests": {"storage": size}}});
        if !class.is_empty() {
            claim["storageClassName"] = class.into();
        }
        let field = if is_pvc { "pvc" } else { "storage" };
        json!({"metadata": {"name": name}, "spec": {field: claim, "source": source}})
    };
    let mut first = volume(&machine.name, *is_pvc, storage_class, &mode, size, &source);
    if !annotations.is_empty() {
        first["metadata"]["annotations"] = annotations.into();
    }
    let mut volumes = vec![first];
    for (index, disk) in machine.provider.secondary_disks.iter().enumerate() {
        let SecondaryDisk { size, storage_class, access_mode, is_blank } = disk;
        // As in machine-controller, a disk that is cloned from the image has the access mode of the first disk. A blank
        // disk, which only Berth supports, has its own access mode.
        let (source, mode) = if *is_blank {
            let own = Some(access_mode.clone().into_plain_string()).filter(|mode| !mode.is_empty());
            let own = own.unwrap_or_else(|| default_access_mode(machine, storage_class));
            (json!({"blank": {}}), own)
        } else {
            (source.clone(), mode.clone())
        };
        volumes.push(volume(
            &claim_name(&machine.name, index),
            true,
            storage_class,
            &mode,
            size,
            &source,
        ));
    }
    volumes
}

/// Returns the access mode of the first disk.
fn access_mode(machine: &MachineRenderer<'_>) -> String {
    let disk = &machine.provider.primary_disk;
    if !disk.access_mode.is_empty() {
        return disk.access_mode.clone().into_plain_string();
    }
    default_access_mode(machine, &disk.storage_class)
}

/// Returns the default access mode: ReadWriteMany if the StorageProfile of the storage class lists this mode, so that
/// VMs can be migrated; otherwise ReadWriteOnce.
fn default_access_mode(machine: &MachineRenderer<'_>, class: &str) -> String {
    let modes = machine.context.access_modes.get(class);
    let supports_read_write_many =
        modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"));
    if supports_read_write_many { "ReadWriteMany" } else { "ReadWriteOnce" }.to_owned()
}

fn render_source(machine: &MachineRenderer<'_>) -> Value {
    let disk = &machine.provider.primary_disk;
    let image = &*disk.image;
    let kind = match &*disk.source {
        known @ ("http" | "registry" | "pvc") => known,
        _ => match parse_scheme(image) {
            Some("docker" | "oci-archive") => "registry",
            Some(_) => "http",
            None => "pvc",
        },
    };
    match kind {
        "registry" => json!({"registry": {"url": image, "pullMethod": &*disk.pull_method}}),
        "http" => {
            let mut http = json!({"url": image});
            let headers = render_headers(machine);
            if !headers.is_empty() {
                http["extraHeaders"] = headers.into();
            }
            if !disk.data_volume_secret.is_empty() {
                http["secretRef"] = (*disk.data_volume_secret).into();
            }
            json!({"http": http})
        }
        _ => {
            let mut parts = image.split('/');
            let (namespace, name) = match (parts.next(), parts.next()) {
                (Some(namespace), Some(name)) => (namespace, name),
                _ => (machine.namespace.as_str(), image),
            };
            json!({"pvc": {"namespace": namespace, "name": name}})
        }
    }
}

/// Returns the HTTP headers for the download of the image. Headers from a Secret are sorted by name.
fn render_headers(machine: &MachineRenderer<'_>) -> Vec<String> {
    let disk = &machine.provider.primary_disk;
    if disk.extra_headers_secret.is_empty() {
        return disk.extra_headers.clone();
    }
    machine.reporter.has_secrets.set(true);
    let (namespace, name) = (machine.namespace.clone(), &*disk.extra_headers_secret);
    let entries = machine.context.secret_entries(&namespace, name);
    let path = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template.primaryDisk.\
        extraHeadersSecretRef";
    let forbidden = machine.context.forbidden_objects.get(&("Secret", namespace, name.to_owned()));
    if let Some(message) = forbidden {
        machine.reporter.report_error(path, &disk.extra_headers_secret, message.clone());
    } else if entries.is_empty() {
        let message = format!("Secret not found in namespace {}", machine.namespace);
        machine.reporter.report_error(path, &disk.extra_headers_secret, message);
    }
    let header = |(key, value): (&str, &str)| {
        format!("{key}: {}", value.strip_suffix('\n').unwrap_or(value))
    };
    entries.into_iter().map(header).collect()
}

/// Returns the scheme of a string if Go's `url.ParseRequestURI` accepts the string: a URL with a scheme, or a path that
/// begins with `/`, for which the returned scheme is empty.
fn parse_scheme(text: &str) -> Option<&str> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return None;
    }
    if text.starts_with('/') || text == "*" {
        return Some("");
    }
    let (scheme, rest) = text.split_once(':')?;
    let mut letters = scheme.bytes();
    let is_scheme = letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let authority =
        rest.strip_prefix("//").map(|rest| rest.split(['/', '?']).next().unwrap_or_default());
    let is_host = authority
        .is_none_or(|host| !host.contains([' ', '<', '>', '"', '^', '`', '{', '}', '|', '\\']));
    (is_scheme && is_host).then_some(scheme)
}

/// Returns the region and zone labels of the machine's storage. They come from `location` of the providerSpec, or else
/// from the topology of the first disk's storage class. As in machine-controller, labels of the storage class are used
/// up to the first region or zone key that does not have exactly one value.
pub(super) fn topology_labels(machine: &MachineRenderer<'_>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let class = machine.context.storage_classes.get(&*machine.provider.primary_disk.storage_class);
    let terms = class.into_iter().flat_map(|class| class.topologies.iter().flatten());
    for (key, values) in terms.filter(|(key, _)| [REGION_LABEL, ZONE_LABEL].contains(&key.as_str()))
    {
        let [value] = values.as_slice() else { break };
        labels.insert(key.clone(), value.clone());
    }
    for (key, value) in
        [(REGION_LABEL, &machine.provider.region), (ZONE_LABEL, &machine.provider.zone)]
    {
        if !value.is_empty() {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names_are_labels() {
        assert_eq!(volume_name("md-0-x7f2q", 3), "md-0-x7f2q-secondarydisk3");
        let (long, other) = (format!("{}a", "x".repeat(62)), format!("{}b", "x".repeat(62)));
        for machine in
            [&long, &other, "rack1.web-1", &format!("{}.{}", "y".repeat(39), "z".repeat(23))]
        {
            let name = volume_name(machine, 11);
            let mut letters = name.bytes();
            let is_label = letters
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            assert!(name.len() <= 63 && is_label && !name.contains("--"), "{name}");
            assert!(name.ends_with("-secondarydisk11"), "{name}");
        }
        assert_ne!(
            volume_name(&long, 0),
            volume_name(&other, 0),
            "names with a common prefix differ"
        );
    }

    /// The expected values are results of url.ParseRequestURI in Go 1.24.
    #[test]
    fn image_schemes_equal_go_results() {
        for (text, expected) in [
            ("http://x.y.z.t/ubuntu.img", Some("http")),
            ("docker://x.y.z.t/ubuntu.img:latest", Some("docker")),
            ("oci-archive:/x", Some("oci-archive")),
            ("/a/path", Some("")),
            ("name:tag", Some("name")),
            ("ns/dvname", None),
            ("dvname", None),
            ("", None),
            (":x", None),
            ("1http://x", None),
            ("<< YOUR_IMAGE_SOURCE >>", None),
            ("http://a b/", None),
        ] {
            assert_eq!(parse_scheme(text), expected, "{text}");
        }
    }
}
