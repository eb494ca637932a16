//! Disks of the host, for the question whether there is room for images at all.

use berth_api::Bytes;

use crate::root::Root;

/// Disks and the sum of their sizes; `None` if the tree has no block devices.
#[must_use]
pub fn observe(root: &Root) -> Option<(Vec<String>, Bytes)> {
    let names = root.list("sys/block").or_else(|_| root.list("sys/class/block")).ok()?;
    let physical = |name: &String| {
        let file = |attribute: &str| format!("sys/class/block/{name}/{attribute}");
        // Loop, RAM, mapped and multi disks have no device of their own; partitions are parts of one.
        let own = root.link(&file("device")).is_some() && !root.exists(&file("partition"));
        own && root.read(&file("removable")).is_ok_and(|removable| removable == "0")
    };
    let disks: Vec<String> = names.into_iter().filter(physical).collect();
    let size = |name: &String| root.parse::<u64>(&format!("sys/class/block/{name}/size")).ok();
    let sectors = disks.iter().filter_map(size).fold(0, u64::saturating_add);
    Some((disks, Bytes(sectors.saturating_mul(512))))
}
