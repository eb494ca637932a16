//! Selects accelerators and SR-IOV physical functions from the host's PCI functions.

use berth_api::infra_node::{Gpu, PhysicalFunction};

use super::pci::PciDevice;

/// Vendor ids of display controllers that are never passed through to VMs: management processors, which show a remote
/// console (Matrox, ASPEED), and the emulated display controllers of VMs (QEMU, Cirrus).
const CONSOLE_VENDORS: [u16; 4] = [0x102b, 0x1a03, 0x1234, 0x1013];

/// Returns the graphics and compute accelerators, without SR-IOV virtual functions.
#[must_use]
pub fn find_gpus(pci: &[PciDevice]) -> Vec<Gpu> {
    pci.iter()
        .filter(|device| device.is_gpu() && !device.is_virtual)
        .filter(|device| device.vendor.is_none_or(|vendor| !CONSOLE_VENDORS.contains(&vendor)))
        .map(|device| Gpu {
            pci_address: device.address,
            id: device.id(),
            driver: device.driver.clone(),
            zone: device.zone,
            iommu_group: device.iommu_group,
            sriov: device.sriov,
        })
        .collect()
}

/// Returns the PCI functions, of any device class, that can have SR-IOV virtual functions.
#[must_use]
pub fn find_physical_functions(pci: &[PciDevice]) -> Vec<PhysicalFunction> {
    pci.iter()
        .filter_map(|device| {
            let sriov = device.sriov?;
            Some(PhysicalFunction {
                pci_address: device.address,
                id: device.id(),
                driver: device.driver.clone(),
                zone: device.zone,
                iommu_group: device.iommu_group,
                total: sriov.total,
                configured: sriov.configured,
                in_use: sriov.in_use,
            })
        })
        .collect()
}
