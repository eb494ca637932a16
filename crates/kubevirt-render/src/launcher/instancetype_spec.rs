//! Specs of instance types and preferences (`instancetype.kubevirt.io`), with the fields on which launcher pods depend.

use std::collections::BTreeMap;

use berth_api::Quantity;
use serde::Deserialize;

use super::spec::{
    CpuFeature, HostDevice, Hugepages, Hyperv, IoThreads, LaunchSecurity, Numa, Present, Tpm,
};

/// `spec` of an instance type.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Instancetype {
    pub(super) cpu: InstancetypeCpu,
    pub(super) memory: InstancetypeMemory,
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) scheduler_name: String,
    pub(super) gpus: Vec<HostDevice>,
    pub(super) host_devices: Vec<HostDevice>,
    pub(super) io_threads_policy: Option<String>,
    pub(super) io_threads: IoThreads,
    pub(super) launch_security: Option<LaunchSecurity>,
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InstancetypeCpu {
    pub(super) guest: u32,
    pub(super) model: Option<String>,
    #[serde(rename = "dedicatedCPUPlacement")]
    pub(super) dedicated_cpu_placement: Option<bool>,
    pub(super) isolate_emulator_thread: Option<bool>,
    pub(super) numa: Option<Numa>,
    pub(super) realtime: Option<Present>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InstancetypeMemory {
    pub(super) guest: Quantity,
    pub(super) max_guest: Option<Quantity>,
    pub(super) hugepages: Option<Hugepages>,
    pub(super) overcommit_percent: u8,
}

/// `spec` of a preference.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Preference {
    pub(super) cpu: PreferenceCpu,
    pub(super) devices: PreferenceDevices,
    pub(super) features: PreferenceFeatures,
    pub(super) machine: PreferenceMachine,
    pub(super) preferred_architecture: String,
    pub(super) preferred_launch_security: Option<LaunchSecurity>,
    pub(super) prefer_spread_socket_to_core_ratio: u32,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) requirements: Requirements,
}

/// Minimum CPUs, minimum memory and required architecture of a machine that uses the preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Requirements {
    pub(super) cpu: Option<RequiredCpu>,
    pub(super) memory: Option<RequiredMemory>,
    pub(super) architecture: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct RequiredCpu {
    pub(super) guest: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct RequiredMemory {
    pub(super) guest: Quantity,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PreferenceCpu {
    #[serde(rename = "preferredCPUTopology")]
    pub(super) preferred_cpu_topology: String,
    #[serde(rename = "preferredCPUFeatures")]
    pub(super) preferred_cpu_features: Vec<CpuFeature>,
    pub(super) spread_options: SpreadOptions,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct SpreadOptions {
    pub(super) across: Option<String>,
    pub(super) ratio: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PreferenceDevices {
    pub(super) preferred_autoattach_graphics_device: Option<bool>,
    pub(super) preferred_autoattach_pod_interface: Option<bool>,
    pub(super) preferred_autoattach_serial_console: Option<bool>,
    pub(super) preferred_interface_model: String,
    #[serde(rename = "preferredTPM")]
    pub(super) preferred_tpm: Option<Tpm>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PreferenceFeatures {
    pub(super) preferred_hyperv: Option<Hyperv>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PreferenceMachine {
    pub(super) preferred_machine_type: String,
}
