//! Renders GPUs and other PCI devices of hosts: devices of device plugin resources that the InfraConfig allows.

use berth_api::names::TENANT_REQUEST_UID_ANNOTATION;
use berth_api::{AllowedDevice, EvictionStrategy};
use serde_json::{Value, json};

use super::renderer::MachineRenderer;
use super::requested_devices::{DEVICE_LISTS, RequestedDevice};
use super::scheduling::find_instancetype;

const TEMPLATE_PATH: &str =
    "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template";

impl MachineRenderer<'_> {
    /// Reports devices that the machine must not use.
    pub(super) fn check_host_devices(&self) {
        let devices = &self.provider.host_devices;
        let tenant = self.tenant.and_then(|tenant| tenant.metadata.name.as_deref());
        // A user determines the existence of a requested tenant, and an administrator its devices: an entry for all machines is
        // not for requested tenants.
        let is_requested = self.tenant.is_some_and(|tenant| {
            let annotations = tenant.metadata.annotations.as_ref();
            annotations.is_some_and(|all| all.contains_key(TENANT_REQUEST_UID_ANNOTATION))
        });
        let host_devices = self.context.config.host_devices.as_ref();
        let all = host_devices.map(|devices| devices.allowed.as_slice()).unwrap_or_default();
        let allowed: Vec<&str> = all
            .iter()
            .filter(|one: &&AllowedDevice| one.is_allowed_for(tenant))
            .filter(|one| !is_requested || !one.tenants.is_empty())
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
        self.check_devices_of_instancetype();
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

    /// Reports lists of devices that the instance type sets too. KubeVirt refuses such a VM (KubeVirt:
    /// `pkg/instancetype/apply/gpu.go`, `hostdevices.go`).
    fn check_devices_of_instancetype(&self) {
        let Some((name, instancetype)) = find_instancetype(self) else { return };
        let are_set = [instancetype.has_gpus, instancetype.has_host_devices];
        let lists = DEVICE_LISTS.iter().zip(&self.provider.host_devices.lists).zip(are_set);
        for (((field, _), list), is_set) in lists {
            if list.is_empty() || !is_set {
                continue;
            }
            let message = format!(
                "cannot be set because instance type {} also sets {field}: remove one of them",
                self.provider.instancetype_name(&name)
            );
            self.reporter.report_error(&format!("{TEMPLATE_PATH}.{field}"), "", message);
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
