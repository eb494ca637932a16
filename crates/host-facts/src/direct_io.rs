//! Tests whether files in the folders for images and volumes can be opened with O_DIRECT, as QEMU opens disks with
//! `cache=none`.

use std::path::Path;

use berth_api::Bytes;
use berth_api::infra_node::{DirectIo, UnknownReason};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use sysinfo::{DiskRefreshKind, Disks};

use super::mounts::Mounts;
use crate::notes::Notes;
use crate::root::Root;

/// Folders in which a KubeVirt host stores images, volumes and containers.
pub const DEFAULT_PATHS: [&str; 4] =
    ["/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/kubevirt"];

/// Maximum number of a folder's entries that are tried until a file can be opened.
const MAX_ENTRIES: usize = 256;

/// Tests each existing path of `paths`. The result has no entry for a path that does not exist.
pub fn observe(root: &Root, paths: &[String], mounts: &Mounts, notes: &mut Notes) -> Vec<DirectIo> {
    let (existing, missing): (Vec<&String>, Vec<&String>) =
        paths.iter().partition(|path| root.exists(path));
    // Default paths that do not exist are not used on this host. A missing path that the user passed is probably a
    // mistake, so it is reported.
    for path in missing.iter().filter(|path| !DEFAULT_PATHS.contains(&path.as_str())) {
        notes.warn(path.as_str(), "the folder does not exist, so O_DIRECT cannot be tested");
        let message = format!("{path} does not exist");
        notes.add_unknown("capabilities.directIO", UnknownReason::NotFound, message);
    }
    // Only the sizes of the disks are read: reading the I/O counters would cost one more file per disk.
    let sizes = DiskRefreshKind::nothing().with_storage();
    let live = root.is_live() && !existing.is_empty();
    let disks = live.then(|| Disks::new_with_refreshed_list_specifics(sizes).ok()).flatten();
    existing
        .into_iter()
        .enumerate()
        .map(|(index, path)| {
            let mount = mounts.find_containing(path);
            let size = mount.zip(disks.as_ref()).and_then(|(mount, disks)| {
                let disk = disks
                    .iter()
                    .find(|disk| disk.mount_point() == Path::new(&mount.mount_point))?;
                Some(Bytes(disk.total_space()))
            });
            let result = if root.is_live() {
                supports_direct_io(root, path)
            } else {
                Err((
                    UnknownReason::CapturedTree,
                    "O_DIRECT can be tested only on a running host".to_owned(),
                ))
            };
            let supported = result.map_err(|(reason, message)| {
                let field = format!("capabilities.directIO[{index}].supported");
                notes.add_unknown(field, reason, format!("{path}: {message}"));
            });
            DirectIo {
                path: path.clone(),
                filesystem: mount.map(|mount| mount.filesystem.clone()),
                size,
                supported: supported.ok(),
            }
        })
        .collect()
}

/// Returns true if a file in the folder can be opened with O_DIRECT: an existing file for reading or, in a folder
/// without files, an unnamed file (O_TMPFILE), which the kernel removes when it is closed.
fn supports_direct_io(root: &Root, path: &str) -> Result<bool, (UnknownReason, String)> {
    let folder = root.path().join(path.trim_start_matches('/'));
    let names = root.list(path).map_err(|error| (error.reason(), error.to_string()))?;
    let flags = OFlag::O_DIRECT | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    for name in names.iter().take(MAX_ENTRIES) {
        let file = folder.join(name);
        if !file.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        match open(&file, OFlag::O_RDONLY | flags, Mode::empty()) {
            Ok(_) => return Ok(true),
            Err(Errno::EINVAL) => return Ok(false),
            Err(_) => {}
        }
    }
    let tmpfile_flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_DIRECT | OFlag::O_CLOEXEC;
    match open(&folder, tmpfile_flags, Mode::from_bits_truncate(0o600)) {
        Ok(_) => Ok(true),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno @ (Errno::EACCES | Errno::EPERM)) => {
            Err((UnknownReason::NoPermission, format!("{}; run as root", errno.desc())))
        }
        Err(errno) => Err((UnknownReason::Unreadable, errno.desc().to_owned())),
    }
}
