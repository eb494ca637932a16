//! PCI functions that are bound to the driver `vfio-pci`, so that VMs can use them: their drivers, their IOMMU groups,
//! and what uses them.
//!
//! Only these functions are read: those that the spec selects, those that Berth has bound, and the other members of
//! their IOMMU groups. A host has hundreds of PCI functions.

mod drives;
mod function;
mod loop_devices;
mod mount_namespaces;
mod names;
mod open_files;
mod users;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PciAddress;
use berth_api::infra_node::VfioSpec;

pub use drives::read_drives;
pub use function::{VfioFunction, read_driver};
pub use names::{DEVICE_FOLDER, DRIVER_FOLDER, NO_DRIVER, VFIO_DRIVER};
pub use open_files::OpenFiles;

use crate::root::{ReadError, Root};
use function::read_id;
use users::UseReader;

/// Facts about PCI functions for VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfioFacts {
    /// Result of the listing of the host's PCI functions.
    pub list: FunctionList,
    /// True if the driver `vfio-pci` is loaded.
    pub is_driver_loaded: bool,
    /// The functions that the spec selects and those that Berth has bound, and all other functions of their IOMMU groups.
    pub functions: BTreeMap<PciAddress, VfioFunction>,
    /// Device nodes that processes have open; empty if no function must be bound or released.
    pub open_files: OpenFiles,
}

/// Result of the listing of the host's PCI functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FunctionList {
    /// The functions were not listed, because the spec selects none, and Berth has bound none.
    #[default]
    NotRead,
    /// The functions were listed: the host does not have other functions.
    Complete,
    /// The functions could not be listed.
    Failed(ReadError),
}

/// Reads the functions that `selectors` select, and those in `bound`, which Berth has bound.
#[must_use]
pub fn observe(root: &Root, selectors: &[VfioSpec], bound: &BTreeSet<PciAddress>) -> VfioFacts {
    if selectors.is_empty() && bound.is_empty() {
        return VfioFacts::default();
    }
    let all = match list_functions(root) {
        Ok(all) => all,
        Err(error) => {
            return VfioFacts { list: FunctionList::Failed(error), ..VfioFacts::default() };
        }
    };
    let mut selected: BTreeSet<PciAddress> = BTreeSet::new();
    let mut is_change_needed = false;
    for selector in selectors {
        let matching = matching_functions(root, &all, selector);
        let is_vfio =
            |address: &&PciAddress| read_driver(root, **address).as_deref() == Some(VFIO_DRIVER);
        let desired_count = selector.count.map_or(matching.len(), |count| count as usize);
        is_change_needed |= matching.iter().filter(is_vfio).count() < desired_count;
        selected.extend(matching);
    }
    is_change_needed |= !bound.is_subset(&selected);
    selected.extend(bound.intersection(&all));
    read_functions(root, &selected, is_change_needed)
}

/// Returns the functions that a selector selects, regardless of its count.
fn matching_functions(
    root: &Root,
    all: &BTreeSet<PciAddress>,
    selector: &VfioSpec,
) -> BTreeSet<PciAddress> {
    let is_selected = |address: PciAddress| match selector.id {
        Some(id) => read_id(root, address) == Some(id),
        None => selector.pci_address == Some(address),
    };
    all.iter().copied().filter(|address| is_selected(*address)).collect()
}

/// Reads one function, the other functions of its IOMMU group, and its use: directly before its driver is changed.
#[must_use]
pub fn observe_function(root: &Root, address: PciAddress) -> VfioFacts {
    read_functions(root, &[address].into(), true)
}

/// Returns the addresses of all PCI functions of the host.
fn list_functions(root: &Root) -> Result<BTreeSet<PciAddress>, ReadError> {
    let names = root.list(DEVICE_FOLDER)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

fn read_functions(root: &Root, addresses: &BTreeSet<PciAddress>, is_use_read: bool) -> VfioFacts {
    let read = |address: &PciAddress| Some((*address, VfioFunction::read(root, *address)?));
    let mut functions: BTreeMap<PciAddress, VfioFunction> =
        addresses.iter().filter_map(read).collect();
    let members: BTreeSet<PciAddress> =
        functions.values().flat_map(VfioFunction::member_addresses).collect();
    functions.extend(members.difference(addresses).filter_map(read));
    let open_files = if is_use_read { OpenFiles::observe(root) } else { OpenFiles::default() };
    if is_use_read {
        let reader = UseReader::new(root, &open_files);
        for function in functions.values_mut().filter(|one| addresses.contains(&one.address)) {
            if !function.has_vfio_driver() {
                reader.read_use(function);
            }
        }
    }
    VfioFacts {
        list: FunctionList::Complete,
        is_driver_loaded: root.exists(&format!("{DRIVER_FOLDER}/{VFIO_DRIVER}")),
        functions,
        open_files,
    }
}

impl VfioFacts {
    /// Returns the process or VM that uses the IOMMU group of a function of `vfio-pci`; `None` if it is unused. If such
    /// a function were unbound, the kernel would wait until the VM releases it.
    #[must_use]
    pub fn group_user(&self, function: &VfioFunction) -> Option<String> {
        let group = function.iommu_group;
        let node = group.map(|group| format!("/dev/vfio/{group}")).unwrap_or_default();
        if let Some(process) = self.open_files.user_of_path(&node) {
            return Some(format!("{process} has {node} open"));
        }
        let is_member = |other: &&VfioFunction| {
            let is_in_group = group.is_some() && other.iommu_group == group;
            (is_in_group || other.address == function.address) && other.has_vfio_driver()
        };
        self.functions.values().filter(is_member).find_map(|member| {
            let file = format!("/{DEVICE_FOLDER}/{}/enable", member.address);
            match member.enable_count {
                Some(0) => None,
                Some(_) => Some(format!("a VM or another program has {} open", member.address)),
                None => Some(format!("{file} cannot be read")),
            }
        })
    }
}

#[cfg(test)]
mod tests;
