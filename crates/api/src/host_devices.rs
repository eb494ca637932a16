//! PCI devices of hosts that machines may use, in the InfraConfig.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PciId;

/// PCI devices of hosts that machines may use.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostDevices {
    /// True if the controller adds the `ids` of `allowed` to `permittedHostDevices.pciHostDevices` of the KubeVirt object, and
    /// removes those that it has added. It changes no entries of others. Default false: `berth-controller check` prints the
    /// missing entries. The controller also needs the component `manage-host-devices`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manage: Option<bool>,
    /// Device plugin resources that machines may request with `gpus` and `hostDevices`. Other resources are an error in the
    /// MachineDeployment. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["resourceName"])
    )]
    pub allowed: Vec<AllowedDevice>,
}

/// A device plugin resource that machines may request.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllowedDevice {
    /// Name of the resource, such as `nvidia.com/GA100` (KubeVirt `PciHostDevice.resourceName`).
    #[schemars(
        length(min = 3, max = 253),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
        )
    )]
    pub resource_name: String,
    /// Vendor and device ids of the functions that the resource consists of (KubeVirt `PciHostDevice.pciVendorSelector`). Used
    /// only for the entries in the KubeVirt object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"))]
    pub ids: Vec<PciId>,
    /// True if the device plugin of a vendor provides the resource, false if that of KubeVirt does (KubeVirt
    /// `PciHostDevice.externalResourceProvider`). Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// IDs of the tenants whose machines may request the resource. Default: all machines, also those without a tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(length(min = 1, max = 63)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub tenants: Vec<String>,
}

impl HostDevices {
    /// Returns true if the controller adds entries to the KubeVirt object.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.manage == Some(true)
    }
}

impl AllowedDevice {
    /// Returns true if machines of a tenant may request the resource. `tenant` is the tenant's ID, or `None` for machines
    /// without a tenant.
    #[must_use]
    pub fn is_allowed_for(&self, tenant: Option<&str>) -> bool {
        self.tenants.is_empty()
            || tenant.is_some_and(|tenant| self.tenants.iter().any(|one| one == tenant))
    }
}
