//! PCI functions that can be used by VMs: network, NVMe, displays, accelerators, and every SR-IOV physical function.

use berth_api::PciAddress;
use berth_api::infra_node::Sriov;

use super::kernel_files::saturating_u32;
use crate::notes::Notes;
use crate::root::Root;

const DEVICE_FOLDER: &str = "sys/bus/pci/devices";

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciDevice {
    /// PCI address.
    pub address: PciAddress,
    /// Class, subclass and programming interface, in 24 bits.
    pub class: u32,
    /// Vendor id.
    pub vendor: Option<u16>,
    /// Device id.
    pub device: Option<u16>,
    /// Name of the driver to which the function is bound.
    pub driver: Option<String>,
    /// IOMMU group of the function.
    pub iommu_group: Option<u32>,
    /// NUMA zone of the function; `None` if it is unknown (-1 in sysfs).
    pub zone: Option<u32>,
    /// Numbers of virtual functions, if the function is a physical function.
    pub sriov: Option<Sriov>,
    /// True if the function is a virtual function.
    pub is_virtual: bool,
}

impl PciDevice {
    /// Returns vendor id and device id in the format of lspci, such as `15b3:101d`.
    #[must_use]
    pub fn id(&self) -> String {
        let (vendor, device) = (self.vendor.unwrap_or_default(), self.device.unwrap_or_default());
        format!("{vendor:04x}:{device:04x}")
    }

    /// Returns true for a network controller.
    #[must_use]
    pub const fn is_network(&self) -> bool {
        self.class >> 16 == 0x02
    }

    /// Returns true for an NVM Express controller.
    #[must_use]
    pub const fn is_nvme(&self) -> bool {
        self.class == 0x01_08_02
    }

    /// Returns true for a display controller with a GPU (VGA, 3D) or a processing accelerator.
    #[must_use]
    pub const fn is_gpu(&self) -> bool {
        matches!(self.class >> 8, 0x03_00 | 0x03_02 | 0x12_00)
    }
}

/// Reads the functions in `/sys/bus/pci/devices`, and sorts them by address. A machine without PCI does not have the
/// folder; if the folder cannot be read for another reason, it is unknown which devices the host has.
pub fn observe(root: &Root, notes: &mut Notes) -> Vec<PciDevice> {
    let listed = root.list(DEVICE_FOLDER);
    if let Err(error) = &listed
        && !error.is_not_found()
    {
        for path in ["capabilities.gpus", "capabilities.nvme", "capabilities.sriov"] {
            notes.add_unknown(path, error.reason(), error.to_string());
        }
    }
    let names = notes.value_or_warning(listed).unwrap_or_default();
    let mut devices: Vec<PciDevice> =
        names.iter().filter_map(|name| read_device(root, name, notes)).collect();
    devices.sort_by_key(|device| device.address);
    devices
}

/// Returns true for memory controllers, bridges, system peripherals and performance counters. About 90 % of a server's
/// PCI functions are of these kinds, which cannot have virtual functions.
const fn is_system_device(class: u32) -> bool {
    matches!(class >> 16, 0x05 | 0x06 | 0x08 | 0x11)
}

fn read_device(root: &Root, name: &str, notes: &mut Notes) -> Option<PciDevice> {
    let file = |attribute: &str| format!("{DEVICE_FOLDER}/{name}/{attribute}");
    let Ok(address) = name.parse() else {
        notes.warn(format!("/{DEVICE_FOLDER}/{}", name.escape_debug()), "not a PCI address");
        return None;
    };
    let class = parse_hexadecimal(&root.read(&file("class")).ok()?)?;
    let total_vfs = if is_system_device(class) {
        None
    } else {
        root.read_value::<u32>(&file("sriov_totalvfs")).ok()
    };
    let mut function = PciDevice {
        address,
        class,
        vendor: None,
        device: None,
        driver: None,
        iommu_group: None,
        zone: None,
        sriov: None,
        is_virtual: false,
    };
    let is_relevant =
        function.is_network() || function.is_nvme() || function.is_gpu() || total_vfs.is_some();
    if !is_relevant {
        return None;
    }
    let id = |attribute: &str| {
        parse_hexadecimal(&root.read(&file(attribute)).ok()?).and_then(|id| u16::try_from(id).ok())
    };
    function.vendor = id("vendor");
    function.device = id("device");
    function.driver = root.read_link_name(&file("driver"));
    function.iommu_group =
        root.read_link_name(&file("iommu_group")).and_then(|group| group.parse().ok());
    function.zone = root.read_value(&file("numa_node")).ok();
    function.is_virtual = root.read_link(&file("physfn")).is_some();
    function.sriov = total_vfs.map(|total| Sriov {
        total,
        configured: root.read_value(&file("sriov_numvfs")).unwrap_or(0),
        in_use: None,
    });
    if let Some(sriov) = &mut function.sriov {
        let is_network = function.class >> 16 == 0x02;
        sriov.in_use = Some(match sriov.configured {
            0 => 0,
            _ => count_virtual_functions_in_use(root, name, is_network),
        });
    }
    Some(function)
}

/// Returns the number of virtual functions in use. A virtual function is in use if it is bound to a driver for VMs,
/// or if its network link has been moved to the network namespace of a pod.
fn count_virtual_functions_in_use(root: &Root, name: &str, is_network: bool) -> u32 {
    let in_use = |(_, link): &(u32, String)| {
        let folder = format!("{DEVICE_FOLDER}/{name}/{link}");
        match root.read_link_name(&format!("{folder}/driver")).as_deref() {
            Some("vfio-pci" | "mlx5_vfio_pci" | "xen-pciback") => true,
            Some(_) => {
                is_network && root.list(&format!("{folder}/net")).is_ok_and(|n| n.is_empty())
            }
            None => false,
        }
    };
    saturating_u32(
        root.list_numbered(&format!("{DEVICE_FOLDER}/{name}"), "virtfn")
            .iter()
            .filter(|v| in_use(v))
            .count(),
    )
}

/// Parses a hexadecimal number as sysfs writes it, such as `0x010802`.
#[must_use]
pub fn parse_hexadecimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// Returns the address of the last PCI function in the path of a device
/// (`../../devices/pci0000:00/0000:00:02.0/net/eth0`). Returns `None` for a USB device.
#[must_use]
pub fn last_address_in_path(path: &str) -> Option<PciAddress> {
    let parts = || path.split('/');
    if parts().any(|part| part.starts_with("usb")) {
        return None;
    }
    parts().filter_map(|part| part.parse().ok()).next_back()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn address_is_the_last_function_in_the_path() {
        let last = |path| last_address_in_path(path).map(|address| address.to_string());
        let nic = "../../devices/pci0000:5d/0000:5d:02.0/0000:60:00.1/net/enp96s0f1";
        assert_eq!(last(nic).as_deref(), Some("0000:60:00.1"));
        let vmd =
            "../../devices/pci0000:64/0000:64:00.5/pci10000:00/10000:01:00.0/nvme/nvme0/nvme0n1";
        assert_eq!(last(vmd).as_deref(), Some("10000:01:00.0"));
        assert_eq!(last("../../devices/pci0000:00/0000:00:14.0/usb1/1-1/net/usb0"), None);
        assert_eq!(last("../../devices/virtual/net/lo"), None);
    }

    #[test]
    fn devices_are_unknown_if_the_functions_cannot_be_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let unknown_paths = || {
            let mut notes = Notes::default();
            assert_eq!(observe(&root, &mut notes), []);
            notes.unknown_facts.into_iter().map(|unknown| unknown.path).collect::<Vec<_>>()
        };
        assert_eq!(unknown_paths(), [""; 0], "a machine without PCI");

        let device_folder = folder.path().join(DEVICE_FOLDER);
        std::fs::create_dir_all(device_folder.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("devices", &device_folder).unwrap();
        let unknown = ["capabilities.gpus", "capabilities.nvme", "capabilities.sriov"];
        assert_eq!(unknown_paths(), unknown, "link to itself");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".*") {
            prop_assert!(parse_hexadecimal(&text).is_none() || text.starts_with("0x"));
            prop_assert!(last_address_in_path(&text).is_none() || text.contains(':'));
        }
    }
}
