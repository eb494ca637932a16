//! Facts about a host, as plain data.

use berth_api::infra_node::{
    Cgroup, Cpu, DirectIo, Gpu, Iommu, Kvm, Machine, Memory, Nvme, Unknown, Zone,
};

use crate::ledger::Ledger;
use crate::notes::Notes;
use crate::root::ReadError;
use crate::{
    allocated, cpuinfo, kernel, ksm, kubelet, kvm, links, machine, pci, processes, topology,
};

/// Facts about a host.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Host name, which is also the name of the Node and of the InfraNode.
    pub name: Option<String>,
    /// Boot id of the running kernel (`boot_id`).
    pub boot_id: Option<String>,
    /// The machine and its operating system.
    pub machine: Machine,
    /// The kernel's command line and modules.
    pub kernel: kernel::Kernel,
    /// Vendor, flags and microcode of the processors.
    pub cpuinfo: cpuinfo::CpuInfo,
    /// Package, core and zone of each logical CPU.
    pub topology: topology::Topology,
    /// Totals of the processors.
    pub cpu: Cpu,
    /// NUMA zones.
    pub zones: Vec<Zone>,
    /// Memory of the whole host.
    pub memory: Memory,
    /// Kernel samepage merging with its counters.
    pub ksm: ksm::KsmFacts,
    /// Hardware virtualisation.
    pub kvm: Kvm,
    /// Evidence for the state of KVM.
    pub kvm_evidence: kvm::Evidence,
    /// Device isolation.
    pub iommu: Iommu,
    /// Control groups.
    pub cgroup: Cgroup,
    /// PCI functions of the classes that matter to VMs, and all SR-IOV physical functions.
    pub pci: Vec<pci::PciDevice>,
    /// NVMe drives.
    pub nvme: Vec<Nvme>,
    /// Accelerators.
    pub gpus: Vec<Gpu>,
    /// Network links.
    pub links: links::Links,
    /// Image and volume folders.
    pub direct_io: Vec<DirectIo>,
    /// The kubelet's configuration and state files.
    pub kubelet: kubelet::KubeletFacts,
    /// Allocations of pods, in addition to the kubelet's checkpoints.
    pub allocated: allocated::Allocated,
    /// Daemons that Berth knows.
    pub processes: processes::Processes,
    /// Original values of what Berth has changed in this boot.
    pub ledger: Ledger,
    /// Error of a ledger that exists and cannot be read.
    pub ledger_fault: Option<ReadError>,
    /// Warnings and unknown facts.
    pub notes: Notes,
}

impl HostFacts {
    /// Copies the facts about KVM from an earlier observation.
    pub fn adopt_kvm(&mut self, other: &Self) {
        self.kvm_evidence = other.kvm_evidence.clone();
        self.kvm = other.kvm.clone();
        self.adopt_unknown(other, &["capabilities.kvm"]);
    }

    /// Copies the facts about devices from an earlier, full observation.
    pub fn adopt_devices(&mut self, other: &Self) {
        self.adopt_kvm(other);
        self.pci.clone_from(&other.pci);
        self.machine = other.machine.clone();
        self.iommu = other.iommu.clone();
        self.nvme.clone_from(&other.nvme);
        self.gpus.clone_from(&other.gpus);
        self.direct_io.clone_from(&other.direct_io);
        let of_devices = ["machine", "iommu", "nvme", "sriov", "gpus", "directIO"];
        let paths = of_devices.map(|name| format!("capabilities.{name}"));
        self.adopt_unknown(other, &paths.each_ref().map(String::as_str));
    }

    fn adopt_unknown(&mut self, other: &Self, paths: &[&str]) {
        let below = |unknown: &&Unknown| paths.iter().any(|path| unknown.path.starts_with(path));
        self.notes.unknown.extend(other.notes.unknown.iter().filter(below).cloned());
        self.notes.sort_and_dedup();
    }

    /// Returns the name of the Node and the InfraNode: the name that the kubelet's flags set, otherwise the host
    /// name. Returns `None` if the API server does not accept the name.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.kubelet.node_name.as_deref().or(self.name.as_deref());
        name.filter(|name| machine::is_object_name(name))
    }
}
