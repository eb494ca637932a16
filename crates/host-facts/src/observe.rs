//! Reads [`HostFacts`] from a [`Root`]. A fact that cannot be read is noted, and the other facts are still read.

use std::collections::BTreeSet;

use berth_api::PciAddress;
use berth_api::infra_node::{InfraNodeSpec, Memory, VfioSpec};

use crate::facts::HostFacts;
use crate::kernel_files::boot_id;
use crate::ledger::Ledger;
use crate::notes::Notes;
use crate::root::{ReadError, Root};
use crate::services::HostServices;
use crate::setting::Setting;
use crate::{
    cgroup, cpu, cpuinfo, devices, direct_io, iommu, kernel, ksm, kubelet, kvm, links, machine,
    memory, mounts, nvme, pci, pod_allocations, processes, topology, vfio, zones,
};

/// Options of an observation.
#[derive(Debug, Clone)]
pub struct ObserveOptions {
    /// Folders in which O_DIRECT is tested.
    pub direct_io_paths: Vec<String>,
    /// True if devices are observed: KVM, PCI, IOMMU, drives, file systems. Plans do not need these facts.
    pub includes_devices: bool,
    /// PCI functions from an earlier observation, which are then not read again; `None` if PCI functions must be read.
    pub pci: Option<Vec<pci::PciDevice>>,
    /// Selectors of the PCI functions that VMs use. Without selectors, only the functions that Berth has bound are read.
    pub vfio: Vec<VfioSpec>,
    /// True if KVM is observed by creating a test VM. If no VM runs on the host, creating the test VM interrupts every
    /// CPU.
    pub includes_kvm: bool,
}

impl ObserveOptions {
    /// Returns options with which only the facts that a plan of changes needs are read.
    #[must_use]
    pub const fn for_plan() -> Self {
        Self {
            direct_io_paths: Vec::new(),
            includes_devices: false,
            pci: None,
            vfio: Vec::new(),
            includes_kvm: false,
        }
    }

    /// Returns options with which only the facts that a plan for this spec needs are read.
    #[must_use]
    pub fn for_spec(spec: &InfraNodeSpec) -> Self {
        let vfio = spec.devices.as_ref().map(|devices| devices.vfio.clone());
        Self { vfio: vfio.unwrap_or_default(), ..Self::for_plan() }
    }
}

impl Default for ObserveOptions {
    fn default() -> Self {
        let direct_io_paths = direct_io::DEFAULT_PATHS.map(str::to_owned).to_vec();
        Self {
            direct_io_paths,
            includes_devices: true,
            pci: None,
            vfio: Vec::new(),
            includes_kvm: true,
        }
    }
}

/// Reads all facts about the host once.
#[must_use]
pub fn observe(root: &Root, options: &ObserveOptions, services: &dyn HostServices) -> HostFacts {
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
    let ksm_managed = ledger.has_entry(|setting| matches!(setting, Setting::Ksm(_)));
    let (ksm, ksm_status) = ksm::observe(root, &processes, ksm_managed, n);

    let mut facts = HostFacts {
        name: machine::read_host_name(root),
        kubelet: kubelet::observe::observe(root, &processes, boot_id.as_deref(), n),
        pod_allocations: pod_allocations::observe(root, services, n),
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
        ledger_error: ledger_fault,
        ..HostFacts::default()
    };
    if options.includes_devices {
        observe_devices(&mut facts, root, options, n);
    } else {
        facts.pci = options.pci.clone().unwrap_or_else(|| pci::observe(root, n));
        facts.vfio = vfio::observe(root, &options.vfio, &functions_in_ledger(&facts.ledger));
    }
    facts.links = links::observe::observe(root, &facts.pci, n);
    facts.links.filter = links::filter::observe(root, &facts.links, &facts.ledger, n);
    if facts.node_name().is_none() {
        let message = facts.name.as_deref().map_or_else(
            || "the host has no name".to_owned(),
            |name| format!("`{}` is not a valid name of a Node", name.escape_debug()),
        );
        notes.add_unknown("metadata.name", berth_api::infra_node::UnknownReason::NotFound, message);
    }
    notes.sort_and_dedup();
    facts.notes = notes;
    facts
}

/// Reads only the links and the ledger, for use after an event about links. All other facts are empty.
#[must_use]
pub fn observe_links(root: &Root, pci: &[pci::PciDevice]) -> HostFacts {
    let mut notes = Notes::default();
    let boot_id = boot_id(root);
    let (ledger, ledger_fault) = read_ledger(root, boot_id.as_deref(), &mut notes);
    let mut links = links::observe::observe(root, pci, &mut notes);
    links.filter = links::filter::observe(root, &links, &ledger, &mut notes);
    HostFacts { boot_id, ledger, ledger_error: ledger_fault, links, notes, ..HostFacts::default() }
}

/// Returns the PCI functions whose driver Berth has changed.
fn functions_in_ledger(ledger: &Ledger) -> BTreeSet<PciAddress> {
    let address = |setting: &Setting| match setting {
        Setting::PciDriver(address) => Some(*address),
        _ => None,
    };
    ledger.entries.keys().filter_map(address).collect()
}

fn observe_devices(
    facts: &mut HostFacts,
    root: &Root,
    options: &ObserveOptions,
    notes: &mut Notes,
) {
    let mounts = mounts::Mounts::observe(root, notes);
    if options.includes_kvm {
        (facts.kvm_evidence, facts.kvm) = kvm::observe::observe(root, &facts.cpuinfo, notes);
    }
    facts.pci = pci::observe(root, notes);
    facts.machine = machine::observe(root, &facts.cpuinfo, notes);
    facts.iommu = iommu::observe(root, notes);
    facts.nvme = nvme::observe(root, &facts.pci, &mounts, notes);
    facts.gpus = devices::find_gpus(&facts.pci);
    facts.direct_io = direct_io::observe(root, &options.direct_io_paths, &mounts, notes);
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
