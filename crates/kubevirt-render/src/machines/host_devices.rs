//! GPUs and other PCI devices of hosts in a providerSpec (`gpus`, `hostDevices`): devices of device plugin resources that the
//! InfraConfig allows.

use std::collections::BTreeSet;

use berth_api::{AllowedDevice, EvictionStrategy};
use serde_json::{Value, json};

use super::field_parser::UnreadFields;
use super::renderer::MachineRenderer;

/// Names of the fields in `virtualMachine.template` and in the VirtualMachine, and the prefix of the names of their devices.
pub(super) const DEVICE_LISTS: [(&str, &str); 2] = [("gpus", "gpu"), ("hostDevices", "device")];
const TEMPLATE_PATH: &str =
    "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template";
/// Maximum number of devices in each list.
const MAX_DEVICES: usize = 16;
/// Maximum length of the name of a device, which is a part of an alias in libvirt.
const MAX_NAME_LENGTH: usize = 32;

/// Devices that a machine requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedDevices {
    /// The devices of each of the [`DEVICE_LISTS`].
    lists: [Vec<RequestedDevice>; 2],
}

/// One device of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestedDevice {
    name: String,
    resource: String,
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

    fn is_empty(&self) -> bool {
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

impl MachineRenderer<'_> {
    /// Reports devices that the machine must not use.
    pub(super) fn check_host_devices(&self) {
        let devices = &self.provider.host_devices;
        let tenant = self.tenant.and_then(|tenant| tenant.metadata.name.as_deref());
        let host_devices = self.context.config.host_devices.as_ref();
        let all = host_devices.map(|devices| devices.allowed.as_slice()).unwrap_or_default();
        let allowed: Vec<&str> = all
            .iter()
            .filter(|one: &&AllowedDevice| one.is_allowed_for(tenant))
            .map(|one| one.resource_name.as_str())
            .collect();
        for ((field, _), list) in DEVICE_LISTS.iter().zip(&devices.lists) {
            for (index, device) in list.iter().enumerate() {
                if device.resource.is_empty() || allowed.contains(&device.resource.as_str()) {
                    continue;
                }
                let message = match allowed.is_empty() {
                    true => "is not in InfraConfig's spec.hostDevices.allowed, which allows these machines no devices"
                        .to_owned(),
                    false => format!(
                        "is not in InfraConfig's spec.hostDevices.allowed for these machines: use {}",
                        allowed.join(", ")
                    ),
                };
                let path = format!("{TEMPLATE_PATH}.{field}[{index}].resourceName");
                self.reporter.report_error(&path, &device.resource, message);
            }
        }
        let is_migrated =
            self.provider.eviction_strategy == Some(EvictionStrategy::LiveMigrate.as_str());
        if is_migrated && !devices.is_empty() {
            let message = "prevents the live migration that evictionStrategy LiveMigrate requests, because the machine has \
                devices of its host: a drain of the host does not complete while the VM runs";
            let [(field, _), (other, _)] = DEVICE_LISTS;
            let [gpus, _] = &devices.lists;
            let field = if gpus.is_empty() { other } else { field };
            let path = format!("{TEMPLATE_PATH}.{field}");
            self.reporter.report_warning(&path, "", message);
        }
    }

    /// Returns the non-empty lists of `spec.template.spec.domain.devices` with their names.
    pub(super) fn render_host_devices(&self) -> Vec<(&'static str, Value)> {
        let lists = DEVICE_LISTS.iter().zip(&self.provider.host_devices.lists);
        let render =
            |device: &RequestedDevice| json!({"name": device.name, "deviceName": device.resource});
        lists
            .filter(|(_, list)| !list.is_empty())
            .map(|((field, _), list)| (*field, list.iter().map(render).collect()))
            .collect()
    }
}
