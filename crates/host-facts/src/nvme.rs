//! NVMe drives, and their users: partitions, mounts, holders (LVM, RAID), swap, signatures, VMs. A drive without users
//! can be passed through to a VM.

use berth_api::infra_node::{Nvme, UnknownReason};
use berth_api::{Bytes, PciAddress};

use super::mounts::Mounts;
use super::pci::{PciDevice, last_address_in_path};
use crate::notes::Notes;
use crate::root::Root;
use crate::sanitize::sanitize_to_one_line;

/// Folder of the block devices in sysfs.
pub const BLOCK_FOLDER: &str = "sys/class/block";
/// Unit of `/sys/class/block/*/size` in bytes, which does not depend on the sector size of the drive.
const SECTOR_BYTES: u64 = 512;

/// Returns the drives with a block device, and then the controllers without a block device, such as those bound to
/// `vfio-pci`. If the block devices cannot be listed, notes that the list is unknown.
pub fn observe(root: &Root, pci: &[PciDevice], mounts: &Mounts, notes: &mut Notes) -> Vec<Nvme> {
    let listed = root.list(BLOCK_FOLDER);
    let devices = notes.value_or_unknown("capabilities.nvme", listed).unwrap_or_default();
    let mut drives: Vec<Nvme> = devices
        .iter()
        .filter(|name| is_namespace(name) && is_local_drive(root, name))
        .map(|name| read_drive(root, name, &devices, pci, mounts))
        .collect();
    for controller in pci.iter().filter(|device| device.is_nvme()) {
        if !drives.iter().any(|drive| drive.pci_address == Some(controller.address)) {
            drives.push(drive_without_block_device(controller));
        }
    }
    for (index, drive) in drives.iter().enumerate() {
        if drive.in_use.is_none() {
            let message = format!(
                "{}: neither the mount table nor the udev database shows whether the drive is in use",
                drive.name
            );
            let path = format!("capabilities.nvme[{index}].inUse");
            notes.add_unknown(path, UnknownReason::NotFound, message);
        }
    }
    drives
}

/// Returns true for the name of an NVMe namespace such as `nvme0n1`. Returns false for a partition (`nvme0n1p1`) and
/// for a path of a multipath drive (`nvme0c1n1`).
#[must_use]
pub fn is_namespace(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parts = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
    parts.is_some_and(|(controller, namespace)| is_number(controller) && is_number(namespace))
}

/// Returns true if a drive is in this machine. A drive with the transport `tcp`, `rdma` or `fc` is a volume on another
/// machine.
#[must_use]
pub fn is_local_drive(root: &Root, name: &str) -> bool {
    namespace_controllers(root, name).iter().all(|controller| {
        let transport = root.read(&format!("sys/class/nvme/{controller}/transport"));
        transport.map_or(true, |transport| transport == "pcie")
    })
}

/// Returns the names of an NVMe namespace's controllers: those that sysfs lists for the subsystem of the namespace or,
/// without such a list, the controller in the name of the namespace.
fn namespace_controllers(root: &Root, name: &str) -> Vec<String> {
    let folder = format!("{BLOCK_FOLDER}/{name}/device");
    let listed = root.list_numbered(&folder, "nvme").unwrap_or_default();
    if listed.is_empty() {
        vec![controller_name(name).to_owned()]
    } else {
        listed.into_iter().map(|(_, controller)| controller).collect()
    }
}

fn read_drive(
    root: &Root,
    name: &str,
    devices: &[String],
    pci: &[PciDevice],
    mounts: &Mounts,
) -> Nvme {
    let file = |attribute: &str| format!("{BLOCK_FOLDER}/{name}/{attribute}");
    let address = drive_pci_address(root, name);
    let function = pci.iter().find(|device| Some(device.address) == address);
    let model = root.read(&file("device/model")).or_else(|_| {
        let controller = name.split_once('n').map_or(name, |_| controller_name(name));
        root.read(&format!("sys/class/nvme/{controller}/model"))
    });
    let (users, are_users_known) = drive_users(root, name, devices, mounts);
    // A drive without a PCI function cannot be passed through to a VM, so it does not matter whether it is in use.
    let usage_known = mounts.table.is_some()
        && are_users_known
        && is_signature_known(root, name)
        && address.is_some();
    Nvme {
        name: name.to_owned(),
        id: function.and_then(PciDevice::known_id),
        model: model
            .ok()
            .filter(|model| !model.is_empty())
            .map(|model| sanitize_to_one_line(&model)),
        size: root
            .read_value::<u64>(&file("size"))
            .ok()
            .map(|sectors| Bytes(sectors.saturating_mul(SECTOR_BYTES))),
        zone: function.and_then(|device| device.zone),
        pci_address: address,
        driver: function.and_then(|device| device.driver.clone()),
        iommu_group: function.and_then(|device| device.iommu_group),
        in_use: if users.is_empty() { usage_known.then_some(false) } else { Some(true) },
        users,
    }
}

fn drive_without_block_device(controller: &PciDevice) -> Nvme {
    let bound_to_vfio = controller.driver.as_deref() == Some("vfio-pci");
    Nvme {
        name: controller.address.to_string(),
        id: controller.known_id(),
        model: None,
        size: None,
        zone: controller.zone,
        pci_address: Some(controller.address),
        driver: controller.driver.clone(),
        iommu_group: controller.iommu_group,
        in_use: bound_to_vfio.then_some(true),
        users: bound_to_vfio.then(|| "vfio-pci".to_owned()).into_iter().collect(),
    }
}

/// Returns the name of the controller in the name of an NVMe namespace: `nvme12` for `nvme12n3`.
fn controller_name(name: &str) -> &str {
    let digits = name.strip_prefix("nvme").map_or(0, |rest| rest.find('n').unwrap_or(0));
    name.get(..4 + digits).unwrap_or(name)
}

/// Returns the PCI address in the sysfs path of the block device. The path of a multipath drive contains a virtual
/// subsystem instead of a PCI address, so the PCI address of one of the drive's controllers is returned.
fn drive_pci_address(root: &Root, name: &str) -> Option<PciAddress> {
    let path = root.read_link(&format!("{BLOCK_FOLDER}/{name}")).unwrap_or_default();
    last_address_in_path(&path).or_else(|| controller_addresses(root, name).into_iter().next())
}

/// Returns the PCI addresses of the controllers of an NVMe namespace; a multipath drive has several.
pub(crate) fn controller_addresses(root: &Root, name: &str) -> Vec<PciAddress> {
    let controllers = namespace_controllers(root, name).into_iter();
    let address = |controller: String| -> Option<PciAddress> {
        root.read_value(&format!("sys/class/nvme/{controller}/address")).ok()
    };
    controllers.filter_map(address).collect()
}

/// Returns descriptions of the partitions, holders, mounts, swap spaces and signatures of the drive, and false if the
/// holders or the swap spaces cannot be read.
pub(crate) fn drive_users(
    root: &Root,
    name: &str,
    devices: &[String],
    mounts: &Mounts,
) -> (Vec<String>, bool) {
    let partitions: Vec<&str> =
        devices.iter().map(String::as_str).filter(|device| is_partition_of(device, name)).collect();
    let swaps = root.read("proc/swaps");
    let mut users = Vec::new();
    // A kernel without support for swap space lacks the file.
    let mut are_users_known = !matches!(&swaps, Err(error) if !error.is_not_found());
    let swaps = swaps.unwrap_or_default();
    if !partitions.is_empty() {
        users.push(format!("partitions: {}", partitions.len()));
    }
    for device in std::iter::once(name).chain(partitions) {
        let node = format!("/dev/{device}");
        let number = root.read(&format!("{BLOCK_FOLDER}/{device}/dev")).ok();
        match root.list(&format!("{BLOCK_FOLDER}/{device}/holders")) {
            Ok(holders) => {
                users.extend(
                    holders.into_iter().map(|holder| format!("holder of {device}: {holder}")),
                );
            }
            Err(error) => are_users_known &= error.is_not_found(),
        }
        let mounted = mounts
            .table
            .iter()
            .flatten()
            .find(|mount| mount.source == node || number.is_some() && mount.device == number);
        users.extend(mounted.map(|mount| format!("{device} mounted on {}", mount.mount_point)));
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(&node)) {
            users.push(format!("{device} is swap space"));
        }
        users.extend(
            number
                .and_then(|number| read_signature(root, &number))
                .map(|signature| format!("{device} has signature {signature}")),
        );
    }
    (users, are_users_known)
}

/// Returns true for the name of a partition of a drive: `nvme0n1p2` of `nvme0n1`, `sda1` of `sda`.
fn is_partition_of(device: &str, drive: &str) -> bool {
    let has_separator = drive.ends_with(|c: char| c.is_ascii_digit());
    let rest = device.strip_prefix(drive);
    let number = if has_separator { rest.and_then(|rest| rest.strip_prefix('p')) } else { rest };
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns the signature that blkid has found on the device, such as that of an unused LVM volume or a ZFS member. The
/// signature is in udev's database.
fn read_signature(root: &Root, device_number: &str) -> Option<String> {
    let entry = root.read(&format!("run/udev/data/b{device_number}")).ok()?;
    let value = |key: &str| entry.lines().find_map(|line| line.strip_prefix(key));
    // `ID_FS_AMBIVALENT` lists the signatures of a device that has several.
    let keys = ["E:ID_FS_TYPE=", "E:ID_PART_TABLE_TYPE=", "E:ID_FS_AMBIVALENT="];
    keys.into_iter().find_map(value).map(str::to_owned)
}

/// Returns true if udev has examined a block device, so that it is known whether the device has a signature.
pub(crate) fn is_signature_known(root: &Root, name: &str) -> bool {
    let number = root.read(&format!("{BLOCK_FOLDER}/{name}/dev"));
    number.is_ok_and(|number| root.read(&format!("run/udev/data/b{number}")).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_paths_are_not_namespaces() {
        for name in ["nvme0n1", "nvme12n34"] {
            assert!(is_namespace(name), "{name}");
        }
        for name in ["nvme0n1p1", "nvme0c1n1", "nvme0", "nvme", "sda", "nvmen1", "nvme0n"] {
            assert!(!is_namespace(name), "{name}");
        }
        assert_eq!(controller_name("nvme12n3"), "nvme12");
    }

    #[test]
    fn partitions_belong_to_one_drive() {
        for (device, drive) in [("nvme0n1p2", "nvme0n1"), ("sda1", "sda"), ("mmcblk0p1", "mmcblk0")]
        {
            assert!(is_partition_of(device, drive), "{device} {drive}");
        }
        for (device, drive) in
            [("nvme0n12", "nvme0n1"), ("nvme0n1", "nvme0n1"), ("sdaa1", "sda"), ("sda", "sda")]
        {
            assert!(!is_partition_of(device, drive), "{device} {drive}");
        }
    }

    #[test]
    fn drives_are_unknown_if_the_block_devices_cannot_be_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let unknown_facts = || {
            let mut notes = Notes::default();
            assert_eq!(observe(&root, &[], &Mounts::default(), &mut notes), []);
            let facts = notes.unknown_facts.into_iter();
            facts.map(|unknown| (unknown.path, unknown.reason)).collect::<Vec<_>>()
        };
        let unknown_nvme = |reason| [("capabilities.nvme".to_owned(), reason)];
        assert_eq!(unknown_facts(), unknown_nvme(UnknownReason::NotFound));

        let block_folder = folder.path().join(BLOCK_FOLDER);
        std::fs::create_dir_all(block_folder.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("block", &block_folder).unwrap();
        assert_eq!(unknown_facts(), unknown_nvme(UnknownReason::Unreadable), "link to itself");

        std::fs::remove_file(&block_folder).unwrap();
        std::fs::create_dir(&block_folder).unwrap();
        assert_eq!(unknown_facts(), [], "a host without block devices has no drives");
    }
}
