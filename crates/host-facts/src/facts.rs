//! What is known of a host, as plain data.

use berth_api::infra_node::{
    Cgroup, Cpu, DirectIo, Gpu, Iommu, Kvm, Machine, Memory, Nvme, Unknown, Zone,
};

use crate::ledger::Ledger;
use crate::notes::Notes;
use crate::root::ReadError;
use crate::{
    allocated, cpuinfo, kernel, ksm, kubelet, kvm, links, machine, pci, processes, topology,
};

/// Everything known of a host.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Host name; the Node and the InfraNode are named so.
    pub name: Option<String>,
    /// `boot_id` of the running kernel.
    pub boot_id: Option<String>,
    /// The machine and its operating system.
    pub machine: Machine,
    /// The kernel's command line and modules.
    pub kernel: kernel::Kernel,
    /// Vendor, flags and microcode of the processors.
    pub cpuinfo: cpuinfo::CpuInfo,
    /// Where every logical CPU sits.
    pub topology: topology::Topology,
    /// Processors in sum.
    pub cpu: Cpu,
    /// NUMA zones.
    pub zones: Vec<Zone>,
    /// Memory of the whole host.
    pub memory: Memory,
    /// Kernel samepage merging with its counters.
    pub ksm: ksm::KsmFacts,
    /// Hardware virtualisation.
    pub kvm: Kvm,
    /// What the state of KVM was decided from.
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
    /// What pods were handed out, beyond the kubelet's checkpoints.
    pub allocated: allocated::Allocated,
    /// Daemons that matter here.
    pub processes: processes::Processes,
    /// What Berth found before it changed it, in this boot.
    pub ledger: Ledger,
    /// Why the ledger is there and cannot be used.
    pub ledger_fault: Option<ReadError>,
    /// Warnings and unknown facts.
    pub notes: Notes,
}

impl HostFacts {
    /// Takes over what another look found of KVM.
    pub fn adopt_kvm(&mut self, other: &Self) {
        self.kvm_evidence = other.kvm_evidence.clone();
        self.kvm = other.kvm.clone();
        self.adopt_unknown(other, &["capabilities.kvm"]);
    }

    /// Takes over what a full look found of devices.
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
        self.notes.tidy();
    }

    /// The name of the Node and the InfraNode: what the kubelet is told to call itself, else the host's.
    /// `None` if there is no name the API server would take.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.kubelet.node_name.as_deref().or(self.name.as_deref());
        name.filter(|name| machine::is_object_name(name))
    }
}
