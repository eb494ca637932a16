//! Mount namespaces of the host's processes. A drive may be mounted only in the namespace of a container, and the mount
//! table of process 1 does not contain such a mount.

use std::collections::BTreeMap;

use crate::mounts::{Mount, Mounts, parse_mountinfo};
use crate::root::{ReadError, Root};

/// File systems on which a system call may wait for a server or for another process.
const REMOTE_FILESYSTEMS: [&str; 13] = [
    "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "gfs2", "lustre", "nfs", "nfs4", "ocfs2",
    "smb3", "virtiofs",
];

/// Mounts of the host's processes.
#[derive(Debug, Default)]
pub(super) struct MountNamespaces {
    /// Namespaces by their number and by the root folder of the process: a mount table contains only the mounts below
    /// this folder.
    namespaces: BTreeMap<String, MountNamespace>,
    /// Mounts that may be mounts of drives, by device number and source. A host may have thousands of mounts, most of
    /// which each namespace has.
    drive_mounts: BTreeMap<(Option<String>, String), Mount>,
}

/// The mounts that processes have.
#[derive(Debug)]
pub(super) struct MountNamespace {
    /// Mounts of remote file systems, and other mounts below them.
    remote_mounts: Mounts,
}

impl MountNamespaces {
    /// Returns the mounts of a process, and reads them if no other process had the same. Returns `None` if the process
    /// has ended.
    pub(super) fn read_of_process(
        &mut self,
        root: &Root,
        pid: u32,
    ) -> Result<Option<&MountNamespace>, ReadError> {
        // A process that has ended has no such links, even if its parent has not reaped it.
        let link = |name: &str| match root.try_read_link(&format!("proc/{pid}/{name}")) {
            Err(error) if error.is_not_found() => Ok(None),
            read => read.map(Some),
        };
        let (Some(namespace), Some(root_folder)) = (link("ns/mnt")?, link("root")?) else {
            return Ok(None);
        };
        let key = format!("{namespace} {root_folder}");
        if !self.namespaces.contains_key(&key) {
            let text = root.read_large(&format!("proc/{pid}/mountinfo"))?;
            let table = parse_mountinfo(&text).unwrap_or_default();
            for mount in table.iter().filter(|mount| may_be_on_drive(mount)) {
                let key = (mount.device.clone(), mount.source.clone());
                self.drive_mounts.entry(key).or_insert_with(|| mount.clone());
            }
            self.namespaces.insert(key.clone(), MountNamespace::new(table));
        }
        Ok(self.namespaces.get(&key))
    }

    /// Returns the mounts of all namespaces that may be mounts of drives.
    pub(super) fn into_drive_mounts(self) -> Vec<Mount> {
        self.drive_mounts.into_values().collect()
    }
}

/// Returns false for mounts of file systems without a drive, whose device number begins with 0. That of btrfs does too,
/// but its source is a drive.
fn may_be_on_drive(mount: &Mount) -> bool {
    let has_device = mount.device.as_ref().is_none_or(|device| !device.starts_with("0:"));
    has_device || mount.source.starts_with('/')
}

impl MountNamespace {
    fn new(mut table: Vec<Mount>) -> Self {
        let remote = table.iter().filter(|mount| is_remote_filesystem(&mount.filesystem));
        let points: Vec<String> = remote.map(|mount| mount.mount_point.clone()).collect();
        table.retain(|mount| points.iter().any(|point| mount.mount_point.starts_with(point)));
        Self { remote_mounts: Mounts { table: Some(table) } }
    }

    /// Returns true if a path is on a remote file system.
    pub(super) fn is_remote(&self, path: &str) -> bool {
        is_on_remote_filesystem(&self.remote_mounts, path)
    }
}

/// Returns true if a path is on a remote file system.
pub(super) fn is_on_remote_filesystem(mounts: &Mounts, path: &str) -> bool {
    mounts.find_containing(path).is_some_and(|mount| is_remote_filesystem(&mount.filesystem))
}

fn is_remote_filesystem(filesystem: &str) -> bool {
    filesystem.starts_with("fuse") || REMOTE_FILESYSTEMS.contains(&filesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_on_remote_file_systems_are_found() {
        let text = "22 1 259:2 / / rw - ext4 /dev/a rw\n\
             23 22 0:50 / /data rw - nfs4 server:/data rw\n\
             24 23 0:51 / /data/local rw - tmpfs tmpfs rw\n\
             25 22 0:52 / /images rw - fuse.sshfs user@server:/ rw\n";
        let namespace = MountNamespace::new(parse_mountinfo(text).unwrap());
        for (path, expected) in [
            ("/data/file", true),
            ("/data/local/file", false),
            ("/database/file", false),
            ("/images/file", true),
            ("/dev/nvme0n1", false),
        ] {
            assert_eq!(namespace.is_remote(path), expected, "{path}");
        }
    }
}
