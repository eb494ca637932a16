//! Renders GPUs and other PCI devices of hosts: devices of device plugin resources that the InfraConfig allows.

use berth_api::{AllowedDevice, EvictionStrategy, TenantCluster, excerpt};
use serde_json::{Value, json};

use super::renderer::MachineRenderer;
use super::requested_devices::{DEVICE_LISTS, RequestedDevice};
use super::scheduling::find_instancetype;

const TEMPLATE_PATH: &str =
    "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template";
const INSTANCETYPE_PATH: &str =
    "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.instancetype.name";

impl MachineRenderer<'_> {
    /// Reports devices that the machine must not use.
    pub(super) fn check_host_devices(&self) {
        let devices = &self.provider.host_devices;
        let allowed = self.allowed_devices();
        for ((field, _), list) in DEVICE_LISTS.iter().zip(&devices.lists) {
            for (index, device) in list.iter().enumerate() {
                if device.resource.is_empty() || allowed.contains(&device.resource.as_str()) {
                    continue;
                }
                let path = format!("{TEMPLATE_PATH}.{field}[{index}].resourceName");
                self.reporter.report_error(&path, &device.resource, describe_refusal(&allowed));
            }
        }
        self.check_devices_of_instancetype(&allowed);
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

    /// Returns the resources that the InfraConfig allows for the machine.
    fn allowed_devices(&self) -> Vec<&str> {
        let tenant = self.tenant.and_then(|tenant| tenant.metadata.name.as_deref());
        // A user determines the existence of a requested tenant, and an administrator its devices: an entry for all machines is
        // not for requested tenants.
        let is_requested = self.tenant.is_some_and(TenantCluster::is_requested);
        let host_devices = self.context.config.host_devices.as_ref();
        let all = host_devices.map(|devices| devices.allowed.as_slice()).unwrap_or_default();
        all.iter()
            .filter(|one: &&AllowedDevice| one.is_allowed_for(tenant))
            .filter(|one| !is_requested || !one.tenants.is_empty())
            .map(|one| one.resource_name.as_str())
            .collect()
    }

    /// Reports devices of the instance type that the machine must not use, because tenants may create instance types. Also
    /// reports lists of devices that the instance type sets too: KubeVirt refuses such a VM (KubeVirt:
    /// `pkg/instancetype/apply/gpu.go`, `hostdevices.go`).
    fn check_devices_of_instancetype(&self, allowed: &[&str]) {
        let Some((name, instancetype)) = find_instancetype(self) else { return };
        let name = self.provider.instancetype_name(&name);
        let lists = DEVICE_LISTS.iter().zip(&self.provider.host_devices.lists);
        for (((field, _), list), devices) in lists.zip(&instancetype.devices) {
            let mut numbered = devices.iter().enumerate();
            let refused = numbered.find(|(_, device)| !allowed.contains(&device.as_str()));
            if let Some((index, device)) = refused {
                let message = format!(
                    "sets {field}[{index}].deviceName: `{}`, which {}",
                    excerpt(device),
                    describe_refusal(allowed)
                );
                self.reporter.report_error(INSTANCETYPE_PATH, &name, message);
            }
            if list.is_empty() || devices.is_empty() {
                continue;
            }
            let message = format!(
                "cannot be set because instance type {name} also sets {field}: remove one of them"
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

/// Returns the reason why a resource is refused. `allowed` are the resources that the machine may use.
fn describe_refusal(allowed: &[&str]) -> String {
    match allowed.is_empty() {
        true => "is not in InfraConfig's spec.hostDevices.allowed, which allows these machines no devices"
            .to_owned(),
        false => format!(
            "is not in InfraConfig's spec.hostDevices.allowed for these machines: use {}",
            allowed.join(", ")
        ),
    }
}
