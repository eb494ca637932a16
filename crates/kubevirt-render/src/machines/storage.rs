//! Disks and volumes of a machine, and the labels with their region and zone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::disks::SecondaryDisk;
use super::network::guest_interfaces;
use super::renderer::MachineRenderer;
use crate::stable_hash::stable_hash;

/// Label with the region of a Node or volume.
const REGION_LABEL: &str = "topology.kubernetes.io/region";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Returns `spec.template.spec.domain.devices.disks`.
pub(super) fn render_disks(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let disk = |name: &str| json!({"name": name, "disk": {"bus": "virtio"}});
    let secondary = &machine.provider.secondary_disks;
    let names = secondary_disk_names(&machine.name, secondary);
    let more = secondary.iter().zip(names).map(|(one, names)| match &one.hotplug {
        None => disk(&names.volume),
        // The serial number has the same value in each machine, so that a guest can find the disk by it.
        Some(hotplug) => json!({
            "name": names.volume, "serial": hotplug.name, "disk": {"bus": hotplug.bus},
        }),
    });
    ["datavolumedisk", "cloudinitdisk"].into_iter().map(disk).chain(more).collect()
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
    let secondary = &machine.provider.secondary_disks;
    let names = secondary_disk_names(&machine.name, secondary);
    volumes.extend(secondary.iter().zip(names).map(|(disk, names)| {
        let mut source = json!({"name": names.claim});
        if disk.hotplug.is_some() {
            source["hotpluggable"] = true.into();
        }
        json!({"name": names.volume, "dataVolume": source})
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

/// Names of the objects of a secondary disk.
pub(super) struct DiskNames {
    /// Common name of the volume and its disk in the VirtualMachine.
    pub(super) volume: String,
    /// Common name of the DataVolume and its PersistentVolumeClaim.
    pub(super) claim: String,
}

/// Returns the names of the secondary disks. Those of a hotpluggable disk contain the name of the disk; other disks are
/// numbered, without the hotpluggable ones, so that the numbers of a template are independent of its hotpluggable disks.
pub(super) fn secondary_disk_names(machine: &str, disks: &[SecondaryDisk]) -> Vec<DiskNames> {
    let mut index = 0_usize;
    let names = |disk: &SecondaryDisk| match &disk.hotplug {
        Some(hotplug) => DiskNames {
            volume: hotplug_volume_name(&hotplug.name),
            claim: format!("{}{}", hotplug_claim_prefix(machine), hotplug.name),
        },
        None => {
            let (volume, claim) = (volume_name(machine, index), claim_name(machine, index));
            index = index.saturating_add(1);
            DiskNames { volume, claim }
        }
    };
    disks.iter().map(names).collect()
}

/// Returns the name of the volume of a hotpluggable disk.
pub(super) fn hotplug_volume_name(disk: &str) -> String {
    format!("disk-{disk}")
}

/// Returns the prefix of the DataVolumes of the hotpluggable disks of a machine, which the name of the disk follows.
pub(super) fn hotplug_claim_prefix(machine: &str) -> String {
    format!("{machine}-disk-")
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
}
