//! From a [`Root`] to [`HostFacts`]: plain data and notes, never all or nothing.
//!
//! Nothing here decides or changes anything. Each module reads one idea and has a twin of the same
//! name where the fact is reported or checked. What only a running machine can tell (ioctls, CPUID,
//! netlink, O_DIRECT) is asked only if the root is live; otherwise the fact is unknown and says so.

pub mod cgroup;
pub mod cpu;
pub mod cpuinfo;
pub mod credential;
pub mod devices;
pub mod direct_io;
pub mod disks;
pub mod handed_out;
pub mod hugepages;
pub mod identity;
pub mod iommu;
pub mod irqs;
pub mod isolation;
pub mod kernel;
pub mod ksm;
pub mod kubelet;
pub mod kvm;
pub mod links;
pub mod machine;
pub mod memory;
pub mod mounts;
pub mod nvme;
pub mod pci;
mod pod_cgroups;
pub mod pods;
pub mod processes;
pub mod shape;
pub mod topology;
pub mod units;
pub mod zones;

use berth_api::CpuSet;
use berth_api::infra_node::{
    Cgroup, Cpu, DirectIo, Gpu, Iommu, Kvm, Machine, Memory, Nvme, Unknown, Zone,
};

use crate::ledger::Ledger;
use crate::notes::Notes;
use crate::root::{ReadError, ReadProblem, Root};
use crate::setting::Setting;

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
    pub handed_out: handed_out::HandedOut,
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

    fn observe_devices(&mut self, root: &Root, wanted: &Wanted, notes: &mut Notes) {
        let mounts = mounts::Mounts::observe(root, notes);
        if wanted.kvm {
            (self.kvm_evidence, self.kvm) = kvm::observe(root, &self.cpuinfo, notes);
        }
        self.pci = pci::observe(root, notes);
        self.machine = machine::observe(root, &self.cpuinfo, notes);
        self.iommu = iommu::observe(root, notes);
        self.nvme = nvme::observe(root, &self.pci, &mounts, notes);
        self.gpus = devices::gpus(&self.pci);
        self.direct_io = direct_io::observe(root, &wanted.direct_io_paths, &mounts, notes);
    }

    /// The name of the Node and the InfraNode: what the kubelet is told to call itself, else the host's.
    /// `None` if there is no name the API server would take.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.kubelet.node_name.as_deref().or(self.name.as_deref());
        name.filter(|name| machine::is_object_name(name))
    }
}

/// What to observe beyond the defaults.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Folders whose file systems are tried with O_DIRECT.
    pub direct_io_paths: Vec<String>,
    /// Whether devices are looked at: KVM, PCI, IOMMU, drives, file systems. What shapes the host does
    /// without them.
    pub devices: bool,
    /// PCI functions that are known already.
    pub pci: Option<Vec<pci::PciDevice>>,
    /// Whether a VM is made to see that KVM works: that interrupts every CPU of a host on which none runs.
    pub kvm: bool,
}

impl Wanted {
    /// Only what a plan is made from.
    #[must_use]
    pub const fn to_plan() -> Self {
        Self { direct_io_paths: Vec::new(), devices: false, pci: None, kvm: false }
    }
}

impl Default for Wanted {
    fn default() -> Self {
        let direct_io_paths = direct_io::DEFAULT_PATHS.map(str::to_owned).to_vec();
        Self { direct_io_paths, devices: true, pci: None, kvm: true }
    }
}

/// Reads the whole host once.
#[must_use]
pub fn observe(root: &Root, wanted: &Wanted) -> HostFacts {
    let mut notes = Notes::default();
    let n = &mut notes;

    let cpuinfo = cpuinfo::CpuInfo::observe(root, n);
    let kernel = kernel::observe(root, n);
    let mut topology = topology::Topology::observe(root, &cpuinfo, n);
    let memory = memory::observe(root, n);
    let zones = zones::observe(root, &mut topology, &memory, n);
    let cpu = cpu::observe(root, &cpuinfo, &kernel, &topology, n);
    let processes = processes::observe(root);
    let boot_id = boot_id(root);
    let (ledger, ledger_fault) = read_ledger(root, boot_id.as_deref(), n);
    let ours = ledger.has(|setting| matches!(setting, Setting::Ksm(_)));
    let (ksm, ksm_status) = ksm::observe(root, &processes, ours, n);

    let mut facts = HostFacts {
        name: machine::host_name(root),
        kubelet: kubelet::observe(root, &processes, boot_id.as_deref(), n),
        handed_out: handed_out::observe(root, n),
        cgroup: cgroup::observe(root, n),
        memory: Memory { ksm: ksm_status, ..memory },
        kernel,
        cpuinfo,
        topology,
        cpu,
        zones,
        ksm,
        processes,
        boot_id,
        ledger,
        ledger_fault,
        ..HostFacts::default()
    };
    if wanted.devices {
        facts.observe_devices(root, wanted, n);
    } else {
        facts.pci = wanted.pci.clone().unwrap_or_else(|| pci::observe(root, n));
    }
    facts.links = links::observe(root, &facts.pci, n);
    facts.links.filter = links::observe_filter(root, &facts.links, &facts.ledger, n);
    if facts.node_name().is_none() {
        let found = facts.name.as_deref().unwrap_or("no host name");
        let why = format!("`{}` is no name for a Node", found.escape_debug());
        notes.unknown("metadata.name", berth_api::infra_node::UnknownReason::NotFound, why);
    }
    notes.tidy();
    facts.notes = notes;
    facts
}

/// Only links, and what is remembered of them: for what events of links begin.
#[must_use]
pub fn observe_links(root: &Root, pci: &[pci::PciDevice]) -> HostFacts {
    let mut notes = Notes::default();
    let boot_id = boot_id(root);
    let (ledger, ledger_fault) = read_ledger(root, boot_id.as_deref(), &mut notes);
    let mut links = links::observe(root, pci, &mut notes);
    links.filter = links::observe_filter(root, &links, &ledger, &mut notes);
    HostFacts { boot_id, ledger, ledger_fault, links, notes, ..HostFacts::default() }
}

/// `boot_id` of the running kernel.
pub(crate) fn boot_id(root: &Root) -> Option<String> {
    root.read("proc/sys/kernel/random/boot_id").ok().filter(|id| !id.is_empty())
}

fn read_ledger(
    root: &Root,
    boot_id: Option<&str>,
    notes: &mut Notes,
) -> (Ledger, Option<ReadError>) {
    match Ledger::read(root, boot_id) {
        Ok(ledger) => (ledger, None),
        Err(fault) => {
            notes.warn(format!("/{}", fault.path), fault.problem.to_string());
            (Ledger::default(), Some(fault))
        }
    }
}

/// A CPU list from a kernel file. Kernels without a set write nothing, `(null)`, or a NUL byte
/// (`nohz_full` has shown all three); `isolcpus=` brings flags before the list.
pub(crate) fn kernel_list(root: &Root, path: &str) -> Result<CpuSet, ReadError> {
    let text = root.read(path)?;
    if text == "(null)" {
        return Ok(CpuSet::new());
    }
    text.parse().map_err(|wrong: berth_api::ParseCpuSetError| ReadError {
        path: path.to_owned(),
        problem: ReadProblem::Malformed(wrong.to_string()),
    })
}

/// A kernel switch: `1`, `Y` or `y` and `0`, `N` or `n`, whichever the parameter's author chose.
pub(crate) fn switch(root: &Root, path: &str) -> Option<bool> {
    match root.read(path).ok()?.as_str() {
        "1" | "Y" | "y" => Some(true),
        "0" | "N" | "n" => Some(false),
        _ => None,
    }
}

/// Counts become 32 bits wide in the object; none comes near, and if one did it would saturate.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
