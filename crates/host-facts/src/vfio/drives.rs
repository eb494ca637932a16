//! The drives of a PCI function: the block devices below it in sysfs, and the NVMe namespaces of its controller.

use berth_api::PciAddress;

use crate::nvme::{self, BLOCK_FOLDER};
use crate::root::{ReadError, Root};

/// Returns the names of a function's drives, such as `nvme0n1`.
///
/// # Errors
/// Returns an error if the block devices of the host cannot be listed.
pub fn read_drives(root: &Root, address: PciAddress) -> Result<Vec<String>, ReadError> {
    let mut names = root.list(BLOCK_FOLDER)?;
    names.retain(|name| is_drive_of(root, name, address));
    Ok(names)
}

/// Returns true if a block device is a drive of the function, and neither a partition nor a path of a multipath drive.
pub(super) fn is_drive_of(root: &Root, name: &str, address: PciAddress) -> bool {
    let file = |attribute: &str| format!("{BLOCK_FOLDER}/{name}/{attribute}");
    let is_below_function = is_below(root, &format!("{BLOCK_FOLDER}/{name}"), address)
        && !root.exists(&file("partition"))
        && !root.read(&file("hidden")).is_ok_and(|hidden| hidden == "1");
    is_below_function
        || (nvme::is_namespace(name) && nvme::controller_addresses(root, name).contains(&address))
}

/// Returns true if a link of sysfs leads to a device below the function, as those of drives and network cards behind a
/// USB controller do.
pub(super) fn is_below(root: &Root, link: &str, address: PciAddress) -> bool {
    let path = root.read_link(link).unwrap_or_default();
    let folder = address.to_string();
    path.split('/').any(|part| part == folder)
}
