//! Fields of a `VirtualMachineInstance` on which its launcher pod depends (`staging/src/kubevirt.io/api/core/v1`).

use std::collections::BTreeMap;

use berth_api::Quantity;
use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use serde::Deserialize;

/// `spec` of a VirtualMachineInstance, or of the template in a VirtualMachine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) domain: Domain,
    pub(super) architecture: String,
    pub(super) node_selector: BTreeMap<String, String>,
    pub(super) affinity: Option<Affinity>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) topology_spread_constraints: Vec<TopologySpreadConstraint>,
    pub(super) scheduler_name: String,
    pub(super) priority_class_name: String,
    pub(super) hostname: String,
    pub(super) networks: Vec<Network>,
    pub(super) volumes: Vec<Volume>,
    pub(super) liveness_probe: Probe,
    pub(super) readiness_probe: Probe,
    pub(super) resource_claims: Vec<Named>,
}

/// An object that is either present or absent; its fields are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Present {}

/// An object of which only the field `name` is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Domain {
    pub(super) resources: Requirements,
    pub(super) cpu: Option<Cpu>,
    pub(super) memory: Memory,
    pub(super) machine: Machine,
    pub(super) firmware: Firmware,
    pub(super) devices: Devices,
    pub(super) features: Features,
    pub(super) io_threads_policy: Option<String>,
    pub(super) io_threads: IoThreads,
    pub(super) launch_security: Option<LaunchSecurity>,
}

/// Quantities by resource name.
pub(super) type Amounts = BTreeMap<String, Quantity>;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Requirements {
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
    pub(super) overcommit_guest_overhead: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Cpu {
    pub(super) cores: u32,
    pub(super) sockets: u32,
    pub(super) threads: u32,
    pub(super) model: String,
    pub(super) features: Vec<CpuFeature>,
    pub(super) dedicated_cpu_placement: bool,
    pub(super) isolate_emulator_thread: bool,
    pub(super) numa: Option<Numa>,
    pub(super) realtime: Option<Present>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct CpuFeature {
    pub(super) name: String,
    pub(super) policy: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Numa {
    pub(super) guest_mapping_passthrough: Option<Present>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    /// True if the spec has `domain.memory`, even if it is empty.
    #[serde(skip, default = "is_set")]
    pub(super) is_set: bool,
    pub(super) guest: Option<Quantity>,
    pub(super) max_guest: Option<Quantity>,
    pub(super) hugepages: Option<Hugepages>,
    pub(super) reserved_overhead: ReservedOverhead,
}

const fn is_set() -> bool {
    true
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Hugepages {
    pub(super) page_size: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReservedOverhead {
    pub(super) added_overhead: Option<Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Machine {
    #[serde(rename = "type")]
    pub(super) kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Firmware {
    pub(super) kernel_boot: KernelBoot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct KernelBoot {
    pub(super) container: Option<Present>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Devices {
    pub(super) disks: Vec<Disk>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) filesystems: Vec<Named>,
    pub(super) gpus: Vec<HostDevice>,
    pub(super) host_devices: Vec<HostDevice>,
    pub(super) tpm: Option<Tpm>,
    pub(super) autoattach_pod_interface: Option<bool>,
    pub(super) autoattach_graphics_device: Option<bool>,
    pub(super) autoattach_serial_console: Option<bool>,
    pub(super) log_serial_console: Option<bool>,
    #[serde(rename = "autoattachVSOCK")]
    pub(super) autoattach_vsock: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Tpm {
    pub(super) enabled: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) lun: Lun,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Lun {
    pub(super) reservation: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) model: String,
    pub(super) mac_address: String,
    pub(super) state: String,
    pub(super) sriov: Option<Present>,
    pub(super) passt_binding: Option<Present>,
    pub(super) binding: Option<Named>,
}

/// A GPU or another host device, provided by a device plugin or by a resource claim (DRA).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HostDevice {
    pub(super) name: String,
    pub(super) device_name: String,
    pub(super) claim_name: Option<String>,
    pub(super) request_name: Option<String>,
}

impl HostDevice {
    /// Returns true if a claim provides the device.
    pub(super) fn is_claimed(&self) -> bool {
        self.claim_name.is_some() || self.request_name.is_some()
    }

    /// Returns the name of the device plugin resource; `None` if a claim provides the device. The pod requests one
    /// unit.
    pub(super) fn resource(&self) -> Option<&str> {
        let is_named = !self.device_name.is_empty();
        (is_named && !self.is_claimed()).then_some(self.device_name.as_str())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Network {
    pub(super) name: String,
    pub(super) multus: Option<Multus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Multus {
    pub(super) network_name: String,
    /// True if this network replaces the pod network of the cluster.
    #[serde(rename = "default")]
    pub(super) is_default: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) container_disk: Option<Present>,
    pub(super) container_path: Option<Present>,
    pub(super) downward_metrics: Option<Present>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Probe {
    pub(super) exec: Option<Present>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct IoThreads {
    pub(super) supplemental_pool_thread_count: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct LaunchSecurity {
    pub(super) sev: Option<Sev>,
    pub(super) snp: Option<Present>,
    pub(super) tdx: Option<Present>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Sev {
    pub(super) policy: SevPolicy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SevPolicy {
    pub(super) encrypted_state: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Features {
    pub(super) hyperv: Option<Hyperv>,
}

/// Hyper-V enlightenments by their name in the API, such as `vpindex` and `synictimer`.
pub(super) type Hyperv = BTreeMap<String, FeatureState>;

/// A feature that is enabled if it is present without `enabled: false`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct FeatureState {
    pub(super) enabled: Option<bool>,
}

impl FeatureState {
    pub(super) fn is_enabled(self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

impl Spec {
    /// Returns true if the guest's CPUs are dedicated CPUs of the host (`IsCPUDedicated`).
    pub(super) fn is_dedicated(&self) -> bool {
        self.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement)
    }

    /// Returns the number of threads in the supplemental I/O thread pool. With dedicated CPUs, each thread gets an
    /// exclusive CPU, regardless of the policy for I/O threads (`getIOThreadsCount`).
    pub(super) fn pool_threads(&self) -> u64 {
        u64::from(self.domain.io_threads.supplemental_pool_thread_count.unwrap_or(0))
    }

    /// Returns the memory of the guest (`setGuestMemory`): the guest memory in the spec, or else the memory request,
    /// the memory limit, or the size of one huge page.
    pub(super) fn guest_memory(&self) -> Option<Quantity> {
        let (memory, resources) = (&self.domain.memory, &self.domain.resources);
        let pages = memory.hugepages.as_ref().and_then(|pages| pages.page_size.parse().ok());
        let given = [amount(&resources.requests, "memory"), amount(&resources.limits, "memory")];
        let given = given.into_iter().find(|amount| !amount.is_zero());
        memory.guest.or(given).or(pages)
    }

    pub(super) fn is_sev(&self) -> bool {
        self.domain.launch_security.is_some_and(|it| it.sev.is_some() || it.snp.is_some())
    }

    pub(super) fn is_sev_es(&self) -> bool {
        let sev = self.domain.launch_security.and_then(|it| it.sev);
        sev.is_some_and(|sev| sev.policy.encrypted_state)
    }

    pub(super) fn is_snp(&self) -> bool {
        self.domain.launch_security.is_some_and(|it| it.snp.is_some())
    }

    pub(super) fn is_tdx(&self) -> bool {
        self.domain.launch_security.is_some_and(|it| it.tdx.is_some())
    }
}

impl Cpu {
    /// Returns the number of vCPUs of the guest (`GetNumberOfVCPUs`): the product of cores, sockets and threads, at
    /// most 2^96. Factors that are zero are ignored; if all are zero, the number is 0.
    pub(super) fn vcpus(&self) -> u128 {
        let counts = [self.cores, self.sockets, self.threads].map(u128::from);
        let product = counts.into_iter().filter(|count| *count != 0).product();
        if counts.iter().all(|count| *count == 0) { 0 } else { product }
    }
}

/// Returns the quantity of a resource; zero if it is absent.
pub(super) fn amount(amounts: &Amounts, name: &str) -> Quantity {
    amounts.get(name).copied().unwrap_or_default()
}
