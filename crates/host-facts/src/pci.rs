//! PCI functions that VMs can use: network, NVMe, displays, accelerators, and every SR-IOV physical function.

use berth_api::infra_node::{Sriov, UnknownReason};
use berth_api::{PciAddress, PciId, excerpt};

use crate::notes::Notes;
use crate::root::{ReadError, ReadProblem, Root};

const DEVICE_FOLDER: &str = "sys/bus/pci/devices";

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciDevice {
    pub address: PciAddress,
    /// Class, subclass and programming interface, one byte each (24 bits); `None` if the class cannot be read.
    pub class: Option<u32>,
    /// Vendor id.
    pub vendor: Option<u16>,
    /// Device id.
    pub device: Option<u16>,
    /// Name of the driver to which the function is bound.
    pub driver: Option<String>,
    /// IOMMU group of the function.
    pub iommu_group: Option<u32>,
    /// NUMA zone of the function; `None` if the zone is unknown (-1 in sysfs).
    pub zone: Option<u32>,
    /// Numbers of virtual functions, if the function is an SR-IOV physical function.
    pub sriov: Option<Sriov>,
    /// True if the function is an SR-IOV virtual function.
    pub is_virtual: bool,
}

impl PciDevice {
    /// Returns vendor id and device id in the format of lspci, such as `15b3:101d`.
    #[must_use]
    pub fn id(&self) -> String {
        let (vendor, device) = (self.vendor.unwrap_or_default(), self.device.unwrap_or_default());
        format!("{vendor:04x}:{device:04x}")
    }

    /// Returns the vendor id and the device id, if both could be read.
    #[must_use]
    pub fn known_id(&self) -> Option<PciId> {
        Some(PciId { vendor: self.vendor?, device: self.device? })
    }

    /// Returns true for a network controller.
    #[must_use]
    pub const fn is_network(&self) -> bool {
        matches!(self.class, Some(class) if class >> 16 == 0x02)
    }

    /// Returns true for an NVM Express controller.
    #[must_use]
    pub const fn is_nvme(&self) -> bool {
        matches!(self.class, Some(0x01_08_02))
    }

    /// Returns true for a display controller with a GPU (VGA, 3D) or a processing accelerator.
    #[must_use]
    pub const fn is_gpu(&self) -> bool {
        matches!(self.class, Some(class) if matches!(class >> 8, 0x03_00 | 0x03_02 | 0x12_00))
    }
}

/// Reads the functions in `/sys/bus/pci/devices` and sorts them by address. A machine without PCI lacks this folder. If
/// the folder cannot be read for another reason, notes that the host's devices are unknown. A function whose class cannot
/// be read may be a GPU or a drive, so notes that these devices are unknown.
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
    let sriov = devices.iter().filter_map(|device| Some((device.address, device.sriov?)));
    for (index, (address, sriov)) in sriov.enumerate() {
        if sriov.in_use.is_none() {
            let message = format!(
                "{address}: its class, its virtual functions or their links cannot be read"
            );
            let path = format!("capabilities.sriov[{index}].inUse");
            notes.add_unknown(path, UnknownReason::Unreadable, message);
        }
    }
    devices
}

/// Returns true for memory controllers, bridges, system peripherals and performance counters. About 90 % of a server's
/// PCI functions are of these kinds, and they cannot have virtual functions, so the file `sriov_totalvfs` is not read
/// for them.
const fn is_system_device(class: u32) -> bool {
    matches!(class >> 16, 0x05 | 0x06 | 0x08 | 0x11)
}

fn read_device(root: &Root, name: &str, notes: &mut Notes) -> Option<PciDevice> {
    let file = |attribute: &str| format!("{DEVICE_FOLDER}/{name}/{attribute}");
    let Ok(address) = name.parse() else {
        notes.warn(
            format!("/{DEVICE_FOLDER}/{}", name.escape_debug()),
            "the name of the folder is not a PCI address",
        );
        return None;
    };
    let class = match read_class(root, &file("class")) {
        Ok(class) => Some(class),
        // The function was removed after the functions were listed.
        Err(error) if error.is_not_found() && !root.exists(&format!("{DEVICE_FOLDER}/{name}")) => {
            return None;
        }
        Err(error) => {
            for path in ["capabilities.gpus", "capabilities.nvme"] {
                notes.add_unknown(path, error.reason(), error.to_string());
            }
            notes.value_or_warning(Err(error))
        }
    };
    let total_vfs = if class.is_some_and(is_system_device) {
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
    let is_relevant = class.is_none()
        || function.is_network()
        || function.is_nvme()
        || function.is_gpu()
        || total_vfs.is_some();
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
    let is_network = function.is_network();
    if let Some(sriov) = &mut function.sriov {
        sriov.in_use = match sriov.configured {
            0 => Some(0),
            // The links of virtual functions matter only if the function is a network controller.
            _ if class.is_none() => None,
            _ => count_virtual_functions_in_use(root, name, is_network),
        };
    }
    Some(function)
}

fn read_class(root: &Root, path: &str) -> Result<u32, ReadError> {
    let text = root.read(path)?;
    parse_hexadecimal(&text).ok_or_else(|| {
        let problem = ReadProblem::Malformed(format!("`{}` is not a class", excerpt(&text)));
        ReadError { path: path.to_owned(), problem }
    })
}

/// Returns the number of virtual functions in use; `None` if a folder cannot be listed. A virtual function is in use if
/// it is bound to a driver for VMs, or if its network link has been moved to the network namespace of a pod.
fn count_virtual_functions_in_use(root: &Root, name: &str, is_network: bool) -> Option<u32> {
    let is_in_use = |link: &str| {
        let folder = format!("{DEVICE_FOLDER}/{name}/{link}");
        match root.read_link_name(&format!("{folder}/driver")).as_deref() {
            Some("vfio-pci" | "mlx5_vfio_pci" | "xen-pciback") => Some(true),
            Some(_) if is_network => match root.list(&format!("{folder}/net")) {
                Ok(links) => Some(links.is_empty()),
                Err(error) => error.is_not_found().then_some(false),
            },
            _ => Some(false),
        }
    };
    let mut count = 0;
    for (_, link) in root.list_numbered(&format!("{DEVICE_FOLDER}/{name}"), "virtfn").ok()? {
        count += u32::from(is_in_use(&link)?);
    }
    Some(count)
}

/// Parses a hexadecimal number as sysfs writes it, such as `0x010802`.
#[must_use]
pub fn parse_hexadecimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// Returns the address of the last PCI function in the sysfs path of a device
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

    #[test]
    fn functions_without_a_class_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let function = folder.path().join(DEVICE_FOLDER).join("0000:41:00.0");
        std::fs::create_dir_all(&function).unwrap();
        std::fs::write(function.join("numa_node"), "1\n").unwrap();
        // The target of this link was removed after the functions were listed.
        let removed = folder.path().join(DEVICE_FOLDER).join("0000:42:00.0");
        std::os::unix::fs::symlink("../../../devices/none", removed).unwrap();
        let observe_unknown = || {
            let mut notes = Notes::default();
            let devices = observe(&root, &mut notes);
            let zones: Vec<_> = devices.iter().map(|device| device.zone).collect();
            assert_eq!(zones, [Some(1)]);
            assert!(!devices[0].is_nvme() && !devices[0].is_gpu() && !devices[0].is_network());
            let facts = notes.unknown_facts.into_iter();
            facts.map(|unknown| (unknown.path, unknown.reason)).collect::<Vec<_>>()
        };
        let unknown = |reason| {
            ["capabilities.gpus", "capabilities.nvme"].map(|path| (path.to_owned(), reason))
        };
        assert_eq!(observe_unknown(), unknown(UnknownReason::NotFound));
        std::fs::write(function.join("class"), "network\n").unwrap();
        assert_eq!(observe_unknown(), unknown(UnknownReason::Malformed));
        std::fs::remove_file(function.join("class")).unwrap();
        std::fs::create_dir(function.join("class")).unwrap();
        assert_eq!(observe_unknown(), unknown(UnknownReason::Unreadable));
    }

    #[test]
    fn number_of_used_functions_is_unknown_if_they_cannot_be_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let function = folder.path().join(DEVICE_FOLDER).join("0000:41:00.0");
        let virtual_function = function.join("virtfn0");
        std::fs::create_dir_all(virtual_function.join("net")).unwrap();
        for (name, text) in
            [("class", "0x020000\n"), ("sriov_totalvfs", "8\n"), ("sriov_numvfs", "1\n")]
        {
            std::fs::write(function.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink("../drivers/iavf", virtual_function.join("driver")).unwrap();
        let in_use = || {
            let mut notes = Notes::default();
            let devices = observe(&root, &mut notes);
            (devices[0].sriov.unwrap().in_use, notes.is_unknown("capabilities.sriov[0].inUse"))
        };
        assert_eq!(in_use(), (Some(1), false), "the link is in another network namespace");
        std::fs::remove_dir(virtual_function.join("net")).unwrap();
        std::os::unix::fs::symlink("net", virtual_function.join("net")).unwrap();
        assert_eq!(in_use(), (None, true), "link to itself");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".*") {
            prop_assert!(parse_hexadecimal(&text).is_none() || text.starts_with("0x"));
            prop_assert!(last_address_in_path(&text).is_none() || text.contains(':'));
        }
    }
}
