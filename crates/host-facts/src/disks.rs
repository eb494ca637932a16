//! Local disks of the host, for the check whether there is enough space for images.

use std::collections::BTreeSet;

use berth_api::Bytes;

use super::nvme;
use crate::root::Root;

/// Returns the names of the local disks and the sum of their sizes in bytes; `None` if sysfs lists no block devices.
#[must_use]
pub fn observe(root: &Root) -> Option<(Vec<String>, Bytes)> {
    let names = root.list("sys/block").or_else(|_| root.list("sys/class/block")).ok()?;
    let is_local_disk = |name: &String| {
        let file = |attribute: &str| format!("sys/class/block/{name}/{attribute}");
        // Loop, RAM, device mapper and MD devices have no link `device`. Partitions are omitted, because their disk is
        // counted.
        let has_device =
            root.read_link(&file("device")).is_some() && !root.exists(&file("partition"));
        // Each path of a multipath NVMe drive is also a block device, which the kernel marks as hidden.
        let hidden = root.read(&file("hidden")).is_ok_and(|hidden| hidden == "1");
        // Disks of iSCSI sessions, Fibre Channel ports and Ceph are on other machines.
        let sysfs_path = root.read_link(&format!("sys/class/block/{name}")).unwrap_or_default();
        let remote = ["/session", "/rport-", "/rbd"].iter().any(|part| sysfs_path.contains(part));
        let remote = remote || name.starts_with("nvme") && !nvme::is_local_drive(root, name);
        has_device
            && !hidden
            && !remote
            && root.read(&file("removable")).is_ok_and(|removable| removable == "0")
    };
    // A disk with several paths has the same world-wide id on each path, and is counted once.
    let mut seen = BTreeSet::new();
    let mut is_first_path = |name: &String| {
        let ids = ["wwid", "device/wwid"].map(|file| format!("sys/class/block/{name}/{file}"));
        let id = ids.iter().find_map(|file| root.read(file).ok()).filter(|id| !id.is_empty());
        id.is_none_or(|id| seen.insert(id))
    };
    let disks: Vec<String> =
        names.into_iter().filter(is_local_disk).filter(|name| is_first_path(name)).collect();
    let size = |name: &String| root.read_value::<u64>(&format!("sys/class/block/{name}/size")).ok();
    let sectors = disks.iter().filter_map(size).fold(0, u64::saturating_add);
    Some((disks, Bytes(sectors.saturating_mul(512))))
}
