//! What a host can do: the facts the agent observes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    DirectIo, Gpu, HugepagePool, Nvme, PhysicalFunction, TransparentHugepages, Uplink, VirtualLink,
};
use crate::{Bytes, CpuSet, PageSize};

/// What the host can do.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The machine and its operating system.
    #[serde(default)]
    pub machine: Machine,
    /// Processors.
    #[serde(default)]
    pub cpu: Cpu,
    /// Hardware virtualisation.
    #[serde(default)]
    pub kvm: Kvm,
    /// Memory of the whole host.
    #[serde(default)]
    pub memory: Memory,
    /// Device isolation for passthrough.
    #[serde(default)]
    pub iommu: Iommu,
    /// Control groups.
    #[serde(default)]
    pub cgroup: Cgroup,
    /// Physical network links and bonds; virtual functions and their representors left out. Bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub uplinks: Vec<Uplink>,
    /// Bridges and VLAN links that Berth did not make. Bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub links: Vec<VirtualLink>,
    /// NVMe drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme: Vec<Nvme>,
    /// SR-IOV physical functions of every class, network cards or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sriov: Vec<PhysicalFunction>,
    /// Graphics and compute accelerators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Paths that hold images or volumes, and whether they support O_DIRECT.
    #[serde(rename = "directIO", default, skip_serializing_if = "Vec::is_empty")]
    pub direct_io: Vec<DirectIo>,
    /// The configuration that the kubelet was started with; absent if no kubelet is installed, or if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<Kubelet>,
}

/// The machine and its operating system.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Maker, as DMI has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product name, as DMI has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Kernel release (`uname -r`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Operating system (`PRETTY_NAME` of os-release).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The hypervisor this host is itself a guest of (`KVM`, `VMware`, ..., `Other`); `None` on bare metal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<Hypervisor>,
}

/// What a host that is itself a guest runs on.
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
    /// A hypervisor Berth has no name for.
    Other,
}

/// Processors of the host. Counts are of what is online.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// `GenuineIntel`, `AuthenticAMD`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Physical packages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Physical cores. Rule: distinct sets of thread siblings, as lscpu counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Logical CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Threads of the core that has most of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_per_core: Option<u32>,
    /// Logical CPUs that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online: Option<CpuSet>,
    /// Logical CPUs that are there but do not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offline: Option<CpuSet>,
    /// Logical CPUs taken from the scheduler's domains at boot (`isolcpus=`).
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
    /// Whether cores are of more than one kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hybrid: Option<bool>,
    /// The kinds of cores, on a hybrid machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub core_kinds: Vec<CoreKind>,
}

/// Cores of one kind on a hybrid machine.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CoreKind {
    /// Which kind.
    pub kind: CoreKindName,
    /// Its logical CPUs.
    pub cpus: CpuSet,
}

/// Kinds of cores.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum CoreKindName {
    /// Fast cores (Intel P-cores, the highest `cpu_capacity` on Arm).
    Performance,
    /// Frugal cores (Intel E-cores, anything below on Arm).
    Efficiency,
}

/// Hardware virtualisation through KVM.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Kvm {
    /// Whether virtual machines can run, or what stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<KvmState>,
    /// `KVM_GET_API_VERSION`; 12 on every kernel since 2.6.22.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<u32>,
    /// Most vCPUs a VM can have (`KVM_CAP_MAX_VCPUS`).
    #[serde(rename = "maxVCPUs", skip_serializing_if = "Option::is_none")]
    pub max_vcpus: Option<u32>,
    /// vCPUs the kernel recommends as a limit (`KVM_CAP_NR_VCPUS`).
    #[serde(rename = "recommendedVCPUs", skip_serializing_if = "Option::is_none")]
    pub recommended_vcpus: Option<u32>,
    /// Highest vCPU id plus one (`KVM_CAP_MAX_VCPU_ID`).
    #[serde(rename = "maxVCPUID", skip_serializing_if = "Option::is_none")]
    pub max_vcpu_id: Option<u32>,
    /// Memory slots of a VM (`KVM_CAP_NR_MEMSLOTS`): a limit on hot-plugged memory and devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_slots: Option<u32>,
    /// Whether guests can run VMs themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested: Option<bool>,
    /// Whether second level address translation (EPT, NPT) is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_level_translation: Option<bool>,
    /// Whether interrupts are virtualised in hardware (APICv, AVIC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_virtualization: Option<bool>,
    /// Kinds of confidential VMs that can run here; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidential: Option<Vec<Confidential>>,
    /// In-kernel virtio-net (`/dev/vhost-net`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vhost_net: Option<bool>,
    /// In-kernel virtio-vsock (`/dev/vhost-vsock`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vhost_vsock: Option<bool>,
    /// TUN/TAP links (`/dev/net/tun`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tun: Option<bool>,
}

/// Whether KVM can run virtual machines, or what stands in the way.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvmState {
    /// A VM was made and thrown away again.
    Ready,
    /// The CPU (or the hypervisor below) offers neither VMX nor SVM.
    NoCpuSupport,
    /// The CPU could, but the firmware has switched it off.
    DisabledInFirmware,
    /// The CPU can, but no KVM module is loaded.
    ModuleNotLoaded,
    /// `/dev/kvm` is there, but this user may not open it.
    NoPermission,
    /// `/dev/kvm` opens, but a VM cannot be made.
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
    /// Memory the kernel manages (`MemTotal`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// Swap space of all devices and files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Bytes>,
    /// Whether any of the swap is compressed memory (zram).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zram: Option<bool>,
    /// Whether zswap compresses pages before they are swapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zswap: Option<bool>,
    /// Transparent huge page mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent_hugepages: Option<TransparentHugepages>,
    /// Size of a huge page where none is named (`default_hugepagesz=`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_hugepage_size: Option<PageSize>,
    /// Huge page pools of the whole host, one per size the kernel supports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<HugepagePool>,
    /// Kernel samepage merging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<Ksm>,
}

/// Kernel samepage merging. Its counters change all the time and are metrics instead.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ksm {
    /// Whether ksmd merges pages (`run` is 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// Who steers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<KsmOwner>,
    /// The kernel's advisor; absent on kernels before 6.8, which have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advisor: Option<KsmAdvisor>,
    /// Whether pages that rarely merge are skipped (kernel 6.7 and later).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smart_scan: Option<bool>,
    /// Whether pages of different zones are merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_across_nodes: Option<bool>,
}

/// Who steers kernel samepage merging.
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
    /// It is off and no known manager runs.
    Nobody,
    /// It runs, and nothing says who started it.
    Unknown,
}

/// The kernel's KSM advisor (`advisor_mode`).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KsmAdvisor {
    /// `none`: `pages_to_scan` is as written.
    None,
    /// `scan-time`: the kernel sets `pages_to_scan`, which is then unwritable.
    ScanTime,
}

/// Device isolation for passthrough.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Iommu {
    /// Whether the kernel uses an IOMMU, so that devices can be passed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Number of IOMMU groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// The firmware table that describes an IOMMU: DMAR (Intel), IVRS (AMD), IORT (Arm).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware_table: Option<String>,
}

/// Control groups.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cgroup {
    /// 2 for the unified hierarchy, 1 for legacy or hybrid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Controllers the kernel offers, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<String>,
}

/// The configuration that the running kubelet was started with: file, drop-ins, then command line. Where no kubelet runs,
/// the one that the next would be started with.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Kubelet {
    /// `none` or `static`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_manager_policy: Option<String>,
    /// Options of the CPU manager that are on, sorted (`full-pcpus-only`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_manager_policy_options: Vec<String>,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_policy: Option<String>,
    /// `container` or `pod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_scope: Option<String>,
    /// Options of the topology manager that are on, sorted, `name=value` where the value is not true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_manager_policy_options: Vec<String>,
    /// `None` or `Static`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_manager_policy: Option<String>,
    /// CPUs kept for the system (`reservedSystemCPUs`).
    #[serde(rename = "reservedSystemCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_system_cpus: Option<CpuSet>,
    /// The start of the kubelet that the other fields describe; absent where none runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_with: Option<KubeletStart>,
}

/// What has happened to the kubelet's configuration since it was started.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStart {
    /// Whether its files still say what it was started with.
    pub current: bool,
    /// Fields that have another value in its files by now, which takes effect when the kubelet starts again
    /// (`reservedSystemCPUs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub pending_restart: Vec<String>,
}
