//! Capabilities of a host, as the agent observes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::devices::{DirectIo, Gpu, Nvme, PhysicalFunction, Uplink, VirtualLink};
use super::spec::TransparentHugepages;
use super::unknown_value;
use super::zones::HugepagePool;
use crate::{Bytes, CpuSet, PageSize};

/// Capabilities of the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The machine and its operating system.
    #[serde(default)]
    pub machine: Machine,
    /// Processors.
    #[serde(default)]
    pub cpu: Cpu,
    /// Hardware virtualisation (KVM).
    #[serde(default)]
    pub kvm: Kvm,
    /// Memory of the whole host.
    #[serde(default)]
    pub memory: Memory,
    /// Device isolation for passthrough (IOMMU).
    #[serde(default)]
    pub iommu: Iommu,
    /// Control groups.
    #[serde(default)]
    pub cgroup: Cgroup,
    /// Physical network links and bonds, without virtual functions and their representors. At most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub uplinks: Vec<Uplink>,
    /// Bridges and VLAN links that Berth did not create. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub links: Vec<VirtualLink>,
    /// NVMe drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme: Vec<Nvme>,
    /// SR-IOV physical functions of all device classes, not only of network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sriov: Vec<PhysicalFunction>,
    /// Graphics and compute accelerators (GPUs).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Paths that contain disk images or volumes, and whether they support O_DIRECT.
    #[serde(rename = "directIO", default, skip_serializing_if = "Vec::is_empty")]
    pub direct_io: Vec<DirectIo>,
    /// Configuration that the kubelet was started with. Absent if no kubelet is installed or if the configuration is
    /// not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<Kubelet>,
}

/// The machine and its operating system.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Manufacturer according to DMI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product name according to DMI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Kernel release (`uname -r`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Operating system (`PRETTY_NAME` of os-release).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// Hypervisor of which this host is a guest (`KVM`, `VMware`, ..., `Other`); `None` on bare metal.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub hypervisor: Option<Hypervisor>,
}

/// Hypervisor of a host that is itself a guest.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hypervisor {
    /// Bare metal.
    None,
    /// KVM, with or without QEMU.
    #[serde(rename = "KVM")]
    Kvm,
    /// QEMU without KVM.
    #[serde(rename = "QEMU")]
    Qemu,
    /// VMware ESXi, Workstation or Fusion.
    #[serde(rename = "VMware")]
    VMware,
    /// Microsoft Hyper-V or Azure.
    HyperV,
    /// Oracle VirtualBox.
    VirtualBox,
    /// Xen.
    Xen,
    /// IBM PowerVM.
    PowerVM,
    /// Another hypervisor.
    Other,
}

/// Processors of the host. Counts include online CPUs only.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// Vendor: `GenuineIntel`, `AuthenticAMD`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of physical packages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Number of physical cores, counted as by lscpu: the number of distinct sets of thread siblings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Number of logical CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Number of threads per core. If this number differs between cores, the largest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_per_core: Option<u32>,
    /// Online logical CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online: Option<CpuSet>,
    /// Logical CPUs that are present but offline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offline: Option<CpuSet>,
    /// Logical CPUs isolated from the kernel's scheduling domains at boot (`isolcpus=`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<CpuSet>,
    /// Logical CPUs without a periodic tick (`nohz_full=`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nohz_full: Option<CpuSet>,
    /// Microcode revision; `mixed` if CPUs differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microcode: Option<String>,
    /// Frequency governor; `mixed` if CPUs differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// True if the cores are of more than one kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hybrid: Option<bool>,
    /// Kinds of cores of a hybrid machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub core_kinds: Vec<CoreKind>,
}

/// Cores of one kind on a hybrid machine.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CoreKind {
    /// Kind of the cores.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub kind: CoreType,
    /// Logical CPUs of this kind.
    pub cpus: CpuSet,
}

/// Kinds of cores.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum CoreType {
    /// Fast cores (Intel P-cores, the highest `cpu_capacity` on Arm).
    #[default]
    Performance,
    /// Efficient cores (Intel E-cores, any lower `cpu_capacity` on Arm).
    Efficiency,
}

/// Hardware virtualisation through KVM.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Kvm {
    /// State of KVM: ready, or the reason why VMs cannot run.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional_or_default"
    )]
    pub state: Option<KvmState>,
    /// API version of KVM (`KVM_GET_API_VERSION`): 12 on every kernel since 2.6.22.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<u32>,
    /// Maximum number of vCPUs of a VM (`KVM_CAP_MAX_VCPUS`).
    #[serde(rename = "maxVCPUs", skip_serializing_if = "Option::is_none")]
    pub max_vcpus: Option<u32>,
    /// Maximum number of vCPUs of a VM that the kernel recommends (`KVM_CAP_NR_VCPUS`).
    #[serde(rename = "recommendedVCPUs", skip_serializing_if = "Option::is_none")]
    pub recommended_vcpus: Option<u32>,
    /// Upper bound for vCPU IDs: the highest ID plus one (`KVM_CAP_MAX_VCPU_ID`).
    #[serde(rename = "maxVCPUID", skip_serializing_if = "Option::is_none")]
    pub max_vcpu_id: Option<u32>,
    /// Maximum number of memory slots of a VM (`KVM_CAP_NR_MEMSLOTS`). It limits hot-plugged memory and devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_slots: Option<u32>,
    /// True if guests can run VMs themselves (nested virtualisation).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested: Option<bool>,
    /// True if KVM uses second level address translation (EPT, NPT).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_level_translation: Option<bool>,
    /// True if interrupts are virtualised in hardware (APICv, AVIC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_virtualization: Option<bool>,
    /// Kinds of confidential VMs that this host can run; absent if they are not known.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional_list"
    )]
    pub confidential: Option<Vec<Confidential>>,
    /// True if in-kernel virtio-net (`/dev/vhost-net`) is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vhost_net: Option<bool>,
    /// True if in-kernel virtio-vsock (`/dev/vhost-vsock`) is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vhost_vsock: Option<bool>,
    /// True if TUN/TAP links (`/dev/net/tun`) are available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tun: Option<bool>,
}

/// State of KVM: ready, or the reason why VMs cannot run.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvmState {
    /// VMs can run: a test VM was created and removed.
    Ready,
    /// The CPU (or the underlying hypervisor) supports neither VMX nor SVM.
    NoCpuSupport,
    /// The CPU supports virtualisation, but the firmware has disabled it.
    DisabledInFirmware,
    /// The CPU supports virtualisation, but no KVM module is loaded.
    ModuleNotLoaded,
    /// `/dev/kvm` exists, but the agent has no permission to open it.
    NoPermission,
    /// `/dev/kvm` can be opened, but a test VM cannot be created.
    // Also the value for a state that this version does not know, because VMs must not be placed on the host in this
    // case.
    #[default]
    SmokeTestFailed,
}

/// Kinds of confidential virtual machines.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Confidential {
    /// AMD Secure Encrypted Virtualization.
    #[serde(rename = "SEV")]
    Sev,
    /// AMD SEV with encrypted state.
    #[serde(rename = "SEV-ES")]
    SevEs,
    /// AMD SEV with secure nested paging.
    #[serde(rename = "SEV-SNP")]
    SevSnp,
    /// Intel Trust Domain Extensions.
    #[serde(rename = "TDX")]
    Tdx,
}

/// Memory of the whole host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Memory that the kernel manages (`MemTotal`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// Swap space of all devices and files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Bytes>,
    /// True if any of the swap space is compressed memory (zram).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zram: Option<bool>,
    /// True if zswap compresses pages before they are swapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zswap: Option<bool>,
    /// Transparent huge page mode.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub transparent_hugepages: Option<TransparentHugepages>,
    /// Default size of a huge page (`default_hugepagesz=`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_hugepage_size: Option<PageSize>,
    /// Huge page pools of the whole host, one per size that the kernel supports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<HugepagePool>,
    /// Kernel samepage merging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<Ksm>,
}

/// State of kernel samepage merging (KSM). Its counters change continuously and are exported as metrics instead.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ksm {
    /// True if ksmd merges pages (`run` is 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// Program that controls KSM.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub owner: Option<KsmOwner>,
    /// Advisor of the kernel. Absent on kernels before 6.8, which have no advisor.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown_value::optional"
    )]
    pub advisor: Option<KsmAdvisor>,
    /// True if ksmd skips pages that rarely merge (kernel 6.7 and later).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smart_scan: Option<bool>,
    /// True if pages of different zones are merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_across_nodes: Option<bool>,
}

/// Program that controls kernel samepage merging (KSM).
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum KsmOwner {
    /// Berth.
    Berth,
    /// KubeVirt's virt-handler (`ksmConfiguration` of the KubeVirt object).
    KubeVirt,
    /// The ksmtuned daemon.
    Ksmtuned,
    /// KSM is off, and no known manager runs.
    Nobody,
    /// KSM is on, and the program that started it is not known.
    Unknown,
}

/// The kernel's KSM advisor (`advisor_mode`).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KsmAdvisor {
    /// `none`: the kernel does not change `pages_to_scan`.
    None,
    /// `scan-time`: the kernel sets `pages_to_scan`, which is then not writable.
    ScanTime,
}

/// Device isolation for passthrough.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Iommu {
    /// True if the kernel uses an IOMMU, so that devices can be passed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Number of IOMMU groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// Firmware table that describes an IOMMU: DMAR (Intel), IVRS (AMD), IORT (Arm).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware_table: Option<String>,
}

/// Control groups (cgroups).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cgroup {
    /// Version of the cgroup hierarchy: 2 for unified, 1 for legacy or hybrid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Controllers that the kernel provides, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<String>,
}

/// Configuration that the running kubelet was started with: merged from the configuration file, the drop-ins and the
/// command line. If no kubelet runs, the configuration with which it would start.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Kubelet {
    /// Policy of the CPU manager: `none` or `static`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_manager_policy: Option<String>,
    /// Enabled options of the CPU manager, sorted (`full-pcpus-only`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_manager_policy_options: Vec<String>,
    /// Policy of the topology manager: `none`, `best-effort`, `restricted` or `single-numa-node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_policy: Option<String>,
    /// Scope of the topology manager: `container` or `pod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_scope: Option<String>,
    /// Enabled options of the topology manager, sorted; `name=value` if the value is not true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_manager_policy_options: Vec<String>,
    /// Policy of the Memory Manager: `None` or `Static`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_manager_policy: Option<String>,
    /// CPUs reserved for the system (`reservedSystemCPUs`).
    #[serde(rename = "reservedSystemCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_system_cpus: Option<CpuSet>,
    /// Bytes of memory that the kubelet does not offer to pods: `kubeReserved`, `systemReserved` and the hard eviction
    /// threshold of `memory.available`, as in the kubelet's `GetNodeAllocatableReservation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable_reservation: Option<Bytes>,
    /// Comparison of the running kubelet, which the other fields describe, with its files. Absent if no kubelet runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_with: Option<KubeletStart>,
}

/// Differences between the running kubelet's configuration and its files.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStart {
    /// True if the kubelet's files still contain the configuration that the running kubelet was started with.
    pub current: bool,
    /// Fields (such as `reservedSystemCPUs`) whose values in the kubelet's files were changed after its start. The
    /// kubelet uses the new values after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub pending_restart: Vec<String>,
}
