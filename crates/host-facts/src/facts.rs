//! Facts about a host, as plain data.

use berth_api::infra_node::{
    Cgroup, Cpu, DirectIo, Gpu, Iommu, Kvm, Machine, Memory, Nvme, UnknownFact, Zone,
};

use crate::ledger::Ledger;
use crate::notes::Notes;
use crate::root::ReadError;
use crate::{
    cpuinfo, kernel, ksm, kubelet, kvm, links, machine, pci, pod_allocations, processes, topology,
    vfio,
};

/// All facts about a host that one observation has read.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Host name, which is also the name of the Node and of the InfraNode.
    pub name: Option<String>,
    /// Id of the current boot (`boot_id`).
    pub boot_id: Option<String>,
    /// The machine and its operating system.
    pub machine: Machine,
    /// The kernel's command line and modules.
    pub kernel: kernel::Kernel,
    /// Vendor, flags and microcode of the processors.
    pub cpuinfo: cpuinfo::CpuInfo,
    /// Package, core and zone of each logical CPU.
    pub topology: topology::Topology,
    /// CPU facts of the whole host, as in `capabilities.cpu` of the status.
    pub cpu: Cpu,
    /// NUMA zones.
    pub zones: Vec<Zone>,
    /// Memory of the whole host.
    pub memory: Memory,
    /// Settings and counters of kernel samepage merging.
    pub ksm: ksm::KsmFacts,
    /// State of hardware virtualisation.
    pub kvm: Kvm,
    /// The evidence from which the state of KVM was determined.
    pub kvm_evidence: kvm::KvmEvidence,
    /// IOMMU and its groups.
    pub iommu: Iommu,
    /// Version and controllers of the control groups.
    pub cgroup: Cgroup,
    /// PCI functions of the device classes that can be used by VMs, and all SR-IOV physical functions.
    pub pci: Vec<pci::PciDevice>,
    /// PCI functions that the spec assigns to VMs; read only for plans.
    pub vfio: vfio::VfioFacts,
    /// NVMe drives.
    pub nvme: Vec<Nvme>,
    /// Graphics and compute accelerators.
    pub gpus: Vec<Gpu>,
    /// Network links.
    pub links: links::Links,
    /// Folders for images and volumes, with the result of the O_DIRECT test.
    pub direct_io: Vec<DirectIo>,
    /// The kubelet's configuration, and the allocations in its checkpoints.
    pub kubelet: kubelet::KubeletFacts,
    /// Allocations of pods from sources other than the kubelet's checkpoints.
    pub pod_allocations: pod_allocations::PodAllocations,
    /// Running daemons that affect Berth, such as the kubelet and ksmtuned.
    pub processes: processes::Processes,
    /// The rollback ledger: original values of the settings that Berth has changed in this boot.
    pub ledger: Ledger,
    /// Error if the ledger exists but cannot be read.
    pub ledger_error: Option<ReadError>,
    /// Warnings, and facts that could not be read.
    pub notes: Notes,
}

impl HostFacts {
    /// Copies the facts about KVM from `other`, an earlier observation of the same host.
    pub fn copy_kvm_from(&mut self, other: &Self) {
        self.kvm_evidence = other.kvm_evidence.clone();
        self.kvm = other.kvm.clone();
        self.copy_unknown_from(other, &["capabilities.kvm"]);
    }

    /// Copies the facts about devices from `other`, an earlier observation of the same host that included devices.
    pub fn copy_devices_from(&mut self, other: &Self) {
        self.copy_kvm_from(other);
        self.pci.clone_from(&other.pci);
        self.machine = other.machine.clone();
        self.iommu = other.iommu.clone();
        self.nvme.clone_from(&other.nvme);
        self.gpus.clone_from(&other.gpus);
        self.direct_io.clone_from(&other.direct_io);
        let device_fields = ["machine", "iommu", "nvme", "sriov", "gpus", "directIO"];
        let paths = device_fields.map(|name| format!("capabilities.{name}"));
        self.copy_unknown_from(other, &paths.each_ref().map(String::as_str));
    }

    fn copy_unknown_from(&mut self, other: &Self, paths: &[&str]) {
        let is_below =
            |unknown: &&UnknownFact| paths.iter().any(|path| unknown.path.starts_with(path));
        self.notes.unknown_facts.extend(other.notes.unknown_facts.iter().filter(is_below).cloned());
        self.notes.sort_and_dedup();
    }

    /// Returns the name of the Node and of the InfraNode: the name that the kubelet's flags set or, without this flag,
    /// the host name. Returns `None` if there is no name, or if the name is not valid for a Kubernetes object.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.kubelet.node_name.as_deref().or(self.name.as_deref());
        name.filter(|name| machine::is_valid_object_name(name))
    }
}
