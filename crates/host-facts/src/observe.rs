//! From a [`Root`] to [`HostFacts`]: plain data and notes, never all or nothing.

use berth_api::infra_node::Memory;

use crate::facts::HostFacts;
use crate::kernel_files::boot_id;
use crate::ledger::Ledger;
use crate::notes::Notes;
use crate::root::{ReadError, Root};
use crate::services::HostServices;
use crate::setting::Setting;
use crate::{
    allocated, cgroup, cpu, cpuinfo, devices, direct_io, iommu, kernel, ksm, kubelet, kvm, links,
    machine, memory, mounts, nvme, pci, processes, topology, zones,
};

/// What to observe beyond the defaults.
#[derive(Debug, Clone)]
pub struct ObserveOptions {
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

impl ObserveOptions {
    /// Only what a plan is made from.
    #[must_use]
    pub const fn to_plan() -> Self {
        Self { direct_io_paths: Vec::new(), devices: false, pci: None, kvm: false }
    }
}

impl Default for ObserveOptions {
    fn default() -> Self {
        let direct_io_paths = direct_io::DEFAULT_PATHS.map(str::to_owned).to_vec();
        Self { direct_io_paths, devices: true, pci: None, kvm: true }
    }
}

/// Reads the whole host once.
#[must_use]
pub fn observe(root: &Root, wanted: &ObserveOptions, services: &dyn HostServices) -> HostFacts {
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
        kubelet: kubelet::observe::observe(root, &processes, boot_id.as_deref(), n),
        allocated: allocated::observe(root, services, n),
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
        observe_devices(&mut facts, root, wanted, n);
    } else {
        facts.pci = wanted.pci.clone().unwrap_or_else(|| pci::observe(root, n));
    }
    facts.links = links::observe::observe(root, &facts.pci, n);
    facts.links.filter = links::filter::observe(root, &facts.links, &facts.ledger, n);
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
    let mut links = links::observe::observe(root, pci, &mut notes);
    links.filter = links::filter::observe(root, &links, &ledger, &mut notes);
    HostFacts { boot_id, ledger, ledger_fault, links, notes, ..HostFacts::default() }
}

fn observe_devices(facts: &mut HostFacts, root: &Root, wanted: &ObserveOptions, notes: &mut Notes) {
    let mounts = mounts::Mounts::observe(root, notes);
    if wanted.kvm {
        (facts.kvm_evidence, facts.kvm) = kvm::observe::observe(root, &facts.cpuinfo, notes);
    }
    facts.pci = pci::observe(root, notes);
    facts.machine = machine::observe(root, &facts.cpuinfo, notes);
    facts.iommu = iommu::observe(root, notes);
    facts.nvme = nvme::observe(root, &facts.pci, &mounts, notes);
    facts.gpus = devices::gpus(&facts.pci);
    facts.direct_io = direct_io::observe(root, &wanted.direct_io_paths, &mounts, notes);
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
