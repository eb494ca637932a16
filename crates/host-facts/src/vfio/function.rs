//! One PCI function: its driver, its IOMMU group, and what uses it.

use std::collections::BTreeSet;

use berth_api::{PciAddress, PciId, excerpt};

use super::names::{DEVICE_FOLDER, NO_DRIVER, VFIO_DRIVER};
use crate::pci::parse_hexadecimal;
use crate::root::{ReadError, Root};
use crate::setting::SettingValue;

/// Folder of the IOMMU groups in sysfs.
const IOMMU_GROUP_FOLDER: &str = "sys/kernel/iommu_groups";

/// A PCI function that VMs may use, or another function of its IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfioFunction {
    /// Address of the function.
    pub address: PciAddress,
    /// Class, subclass and programming interface, one byte each (24 bits); `None` if the class cannot be read.
    pub class: Option<u32>,
    /// Vendor and device id.
    pub id: Option<PciId>,
    /// Name of the driver to which the function is bound.
    pub driver: Option<String>,
    /// Name of the only driver that may bind the function (`driver_override`); `None` if each driver may.
    pub driver_override: Result<Option<String>, ReadError>,
    /// Number of the IOMMU group; `None` if the kernel uses no IOMMU for the function.
    pub iommu_group: Option<u32>,
    /// Names of the devices in the IOMMU group, also of this function.
    pub group_members: Result<Vec<String>, ReadError>,
    /// Number of times that drivers have enabled the function (`enable`). While a process has a function of `vfio-pci`
    /// open, the number is at least 1, and afterwards it is 0.
    pub enable_count: Option<u32>,
    /// Descriptions of what uses a function that is not bound to `vfio-pci`.
    pub users: Vec<String>,
    /// Reason why it is unknown whether the function is in use, for example because this was not read; `None` if it is
    /// known.
    pub unknown_use: Option<String>,
}

impl VfioFunction {
    /// Reads a function; returns `None` if the host does not have the function. Its use is not read.
    pub(super) fn read(root: &Root, address: PciAddress) -> Option<Self> {
        let folder = format!("{DEVICE_FOLDER}/{address}");
        if !root.exists(&folder) {
            return None;
        }
        let file = |name: &str| format!("{folder}/{name}");
        let iommu_group: Option<u32> =
            root.read_link_name(&file("iommu_group")).and_then(|group| group.parse().ok());
        Some(Self {
            address,
            class: root.read(&file("class")).ok().and_then(|class| parse_hexadecimal(&class)),
            id: read_id(root, address),
            driver: read_driver(root, address),
            driver_override: read_driver_override(root, address),
            iommu_group,
            group_members: iommu_group.map_or_else(
                || Ok(Vec::new()),
                |group| root.list(&format!("{IOMMU_GROUP_FOLDER}/{group}/devices")),
            ),
            enable_count: root.read_value(&file("enable")).ok(),
            users: Vec::new(),
            unknown_use: Some("its use was not read".to_owned()),
        })
    }

    /// Returns the driver as the value of a setting: its name, or `none`. If `driver_override` names another driver, as
    /// after an interrupted change, the value differs from that of every driver.
    #[must_use]
    pub fn driver_setting(&self) -> SettingValue {
        let driver = self.driver.as_deref().unwrap_or(NO_DRIVER);
        SettingValue::Keyword(match &self.driver_override {
            Ok(Some(only)) if only != driver => format!("{driver}, driver_override {only}"),
            _ => driver.to_owned(),
        })
    }

    /// Returns true for bridges of all kinds, such as PCI bridges and ISA bridges.
    #[must_use]
    pub fn is_bridge(&self) -> bool {
        self.has_base_class(0x06)
    }

    /// Returns true for controllers of drives.
    #[must_use]
    pub fn is_storage(&self) -> bool {
        self.has_base_class(0x01)
    }

    /// Returns true for network controllers.
    #[must_use]
    pub fn is_network(&self) -> bool {
        self.has_base_class(0x02)
    }

    /// Returns true if the driver is `vfio-pci` or a variant of it, such as `mlx5_vfio_pci`.
    #[must_use]
    pub fn has_vfio_driver(&self) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.contains("vfio"))
    }

    /// Returns true if the function prevents VMs from using the other functions of its IOMMU group: a driver of the host
    /// uses it. The kernel ignores PCI bridges (`pcieport`) and functions that are reserved by `pci-stub`.
    #[must_use]
    pub fn blocks_group(&self) -> bool {
        let is_pci_bridge =
            matches!(self.class, Some(class) if matches!(class >> 8, 0x06_04 | 0x06_09));
        let is_unused = self.has_vfio_driver()
            || matches!(self.driver.as_deref(), None | Some("pci-stub"))
            || is_pci_bridge;
        !is_unused
    }

    /// Returns the reason why the function must not be taken from the host's driver: it is in use, or this is unknown.
    #[must_use]
    pub fn use_reason(&self) -> Option<String> {
        if !self.users.is_empty() {
            return Some(format!("it is in use: {}", self.users.join(", ")));
        }
        let reason = self.unknown_use.as_ref()?;
        Some(format!("it is unknown whether it is in use: {reason}"))
    }

    /// Returns the addresses of the PCI functions in the IOMMU group.
    pub(super) fn member_addresses(&self) -> BTreeSet<PciAddress> {
        self.group_members.iter().flatten().filter_map(|name| name.parse().ok()).collect()
    }

    fn has_base_class(&self, base_class: u32) -> bool {
        self.class.is_some_and(|class| class >> 16 == base_class)
    }
}

/// Returns the name of the driver to which a function is bound.
#[must_use]
pub fn read_driver(root: &Root, address: PciAddress) -> Option<String> {
    root.read_link_name(&format!("{DEVICE_FOLDER}/{address}/driver"))
}

/// Returns the vendor and device id of a function.
pub(super) fn read_id(root: &Root, address: PciAddress) -> Option<PciId> {
    let number = |name: &str| {
        let text = root.read(&format!("{DEVICE_FOLDER}/{address}/{name}")).ok()?;
        parse_hexadecimal(&text).and_then(|number| u16::try_from(number).ok())
    };
    Some(PciId { vendor: number("vendor")?, device: number("device")? })
}

/// Reads `driver_override`, which is `(null)` if no driver is set. Any program can write any text into this file.
fn read_driver_override(root: &Root, address: PciAddress) -> Result<Option<String>, ReadError> {
    let text = root.read(&format!("{DEVICE_FOLDER}/{address}/driver_override"))?;
    Ok(match text.as_str() {
        "" | "(null)" => None,
        VFIO_DRIVER => Some(VFIO_DRIVER.to_owned()),
        other => Some(excerpt(other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(driver: Option<&str>, only: Option<&str>, class: u32) -> VfioFunction {
        VfioFunction {
            address: "0000:81:00.0".parse().unwrap(),
            class: Some(class),
            id: None,
            driver: driver.map(str::to_owned),
            driver_override: Ok(only.map(str::to_owned)),
            iommu_group: Some(40),
            group_members: Ok(Vec::new()),
            enable_count: Some(0),
            users: Vec::new(),
            unknown_use: None,
        }
    }

    #[test]
    fn interrupted_change_has_the_value_of_no_driver() {
        let value = |driver, only| function(driver, only, 0x01_08_02).driver_setting().to_string();
        assert_eq!(value(Some("nvme"), None), "nvme");
        assert_eq!(value(Some(VFIO_DRIVER), Some(VFIO_DRIVER)), "vfio-pci");
        assert_eq!(value(Some(VFIO_DRIVER), None), "vfio-pci");
        assert_eq!(value(None, None), "none");
        assert_eq!(value(Some("nvme"), Some(VFIO_DRIVER)), "nvme, driver_override vfio-pci");
        assert_eq!(value(None, Some(VFIO_DRIVER)), "none, driver_override vfio-pci");
    }

    #[test]
    fn only_drivers_of_the_host_block_a_group() {
        for (driver, class, blocks) in [
            (Some("nvme"), 0x01_08_02, true),
            (Some("lpc_ich"), 0x06_01_00, true),
            (Some("pcieport"), 0x06_04_00, false),
            (Some("mlx5_vfio_pci"), 0x02_00_00, false),
            (Some("pci-stub"), 0x04_03_00, false),
            (None, 0x04_03_00, false),
        ] {
            assert_eq!(function(driver, None, class).blocks_group(), blocks, "{driver:?}");
        }
    }
}
