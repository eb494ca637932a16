//! IOMMU of the host, which is required to pass a device through to a VM safely.

use berth_api::infra_node::{Iommu, UnknownReason};

use super::kernel_files::saturating_u32;
use crate::notes::Notes;
use crate::root::Root;

/// Names of the ACPI tables that describe an IOMMU: Intel, AMD, Arm.
const ACPI_TABLES: [&str; 3] = ["DMAR", "IVRS", "IORT"];

/// Reads `/sys/kernel/iommu_groups` and the names of the ACPI tables.
pub fn observe(root: &Root, notes: &mut Notes) -> Iommu {
    let groups = match root.list("sys/kernel/iommu_groups") {
        Ok(groups) => Some(saturating_u32(groups.len())),
        // A kernel with CONFIG_IOMMU_API always has this folder; without an IOMMU, the folder is empty. A running
        // kernel without the folder has no IOMMU groups.
        Err(error) if root.is_live() && error.is_not_found() => Some(0),
        Err(error) => {
            notes.add_unknown("capabilities.iommu.enabled", error.reason(), error.to_string());
            None
        }
    };
    // The folder is missing if the machine has no ACPI, or if the folder is not mounted into the agent's container.
    if !root.exists("sys/firmware/acpi/tables") {
        let message = "/sys/firmware/acpi/tables does not exist";
        notes.add_unknown("capabilities.iommu.firmwareTable", UnknownReason::NotFound, message);
    }
    let table_exists = |name: &&&str| root.exists(&format!("sys/firmware/acpi/tables/{name}"));
    Iommu {
        enabled: groups.map(|groups| groups > 0),
        groups,
        firmware_table: ACPI_TABLES.iter().find(table_exists).map(|name| (*name).to_owned()),
    }
}
