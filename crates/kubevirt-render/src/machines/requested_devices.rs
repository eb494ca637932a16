//! Parses the GPUs and other PCI devices of hosts in a providerSpec (`gpus`, `hostDevices`).

use std::collections::BTreeSet;

use super::field_parser::UnreadFields;

/// Names of the fields in `virtualMachine.template` and in the VirtualMachine, and the prefix of the names of their devices.
pub(super) const DEVICE_LISTS: [(&str, &str); 2] = [("gpus", "gpu"), ("hostDevices", "device")];
/// Maximum number of devices in each list.
const MAX_DEVICES: usize = 16;
/// Maximum length of the name of a device, which is a part of an alias in libvirt.
const MAX_NAME_LENGTH: usize = 32;

/// Devices that a machine requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedDevices {
    /// The devices of each of the [`DEVICE_LISTS`].
    pub(super) lists: [Vec<RequestedDevice>; 2],
}

/// One device of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestedDevice {
    pub(super) name: String,
    pub(super) resource: String,
}

impl RequestedDevices {
    /// Reads the fields from `virtualMachine.template`.
    pub(super) fn read(template: &mut UnreadFields<'_>) -> Self {
        let mut known = BTreeSet::new();
        let lists = DEVICE_LISTS.map(|(field, prefix)| {
            let entries = template.read_objects(field);
            if entries.len() > MAX_DEVICES {
                let message = format!("has more than {MAX_DEVICES} devices: remove some of them");
                template.report_error(field, &entries.len().to_string(), message);
            }
            let entries = entries.into_iter().take(MAX_DEVICES).zip(1_u32..);
            entries
                .map(|(fields, number)| {
                    RequestedDevice::read(fields, format!("{prefix}{number}"), &mut known)
                })
                .collect()
        });
        Self { lists }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.iter().all(Vec::is_empty)
    }
}

impl RequestedDevice {
    /// Reads a device. `known` contains the names of the devices before it; KubeVirt needs unique names.
    fn read(
        mut fields: UnreadFields<'_>,
        default_name: String,
        known: &mut BTreeSet<String>,
    ) -> Self {
        let name = match fields.read_text("name") {
            none if none.is_empty() => default_name,
            name => name,
        };
        let is_inner = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-');
        if name.len() > MAX_NAME_LENGTH || !name.bytes().all(is_inner) {
            let message = format!(
                "must have at most {MAX_NAME_LENGTH} characters: lowercase letters, digits and '-'"
            );
            fields.report_error("name", &name, message);
        }
        if !known.insert(name.clone()) {
            fields.report_error("name", &name, "is the name of another device");
        }
        let resource = fields.read_text("resourceName");
        if resource.is_empty() {
            let message = "is missing: name a resource of InfraConfig's spec.hostDevices.allowed";
            fields.report_error("resourceName", "", message);
        }
        fields.report_unknown_fields(&["name", "resourceName"]);
        Self { name, resource }
    }
}
