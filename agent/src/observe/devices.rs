//! Accelerators among the PCI functions.

use berth_api::infra_node::Gpu;

use super::pci::PciDevice;

/// Vendors of the display controllers that management processors bring for a remote console:
/// Matrox, ASPEED, and QEMU's and Cirrus' of virtual machines. Nobody gives those to a VM.
const CONSOLES: [u16; 4] = [0x102b, 0x1a03, 0x1234, 0x1013];

/// Graphics and compute accelerators, virtual functions left out.
#[must_use]
pub fn gpus(pci: &[PciDevice]) -> Vec<Gpu> {
    pci.iter()
        .filter(|device| device.is_gpu() && !device.is_virtual)
        .filter(|device| device.vendor.is_none_or(|vendor| !CONSOLES.contains(&vendor)))
        .map(|device| Gpu {
            pci_address: device.address,
            id: format!(
                "{:04x}:{:04x}",
                device.vendor.unwrap_or_default(),
                device.device.unwrap_or_default()
            ),
            driver: device.driver.clone(),
            zone: device.zone,
            iommu_group: device.iommu_group,
            sriov: device.sriov,
        })
        .collect()
}
