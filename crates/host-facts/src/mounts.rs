//! Mounted file systems.

use procfs::process::MountInfo;

use crate::notes::Notes;
use crate::root::Root;

/// A mounted file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount {
    pub mount_point: String,
    /// Type of the file system.
    pub filesystem: String,
    /// Source of the file system, such as its block device.
    pub source: String,
    /// Device number of the file system, as `major:minor`; `None` if the mount table has no device numbers.
    pub device: Option<String>,
}

/// All mounts, in the order in which they were mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts {
    /// The mount table; `None` if no mount table could be read.
    pub table: Option<Vec<Mount>>,
}

impl Mounts {
    /// Reads the first mount table that exists: `mountinfo`, or `mounts` in older captures, which has no device
    /// numbers. On a running host, the table of process 1 is read first, because an agent in a container has its own
    /// mount namespace.
    pub fn observe(root: &Root, notes: &mut Notes) -> Self {
        for path in ["proc/1/mountinfo", "proc/self/mountinfo"] {
            let Ok(text) = root.read_large(path) else { continue };
            match parse_mountinfo(&text) {
                Some(table) => return Self { table: Some(table) },
                None => notes.warn(format!("/{path}"), "the file is not a mountinfo table"),
            }
        }
        let table = ["proc/self/mounts", "proc/mounts"]
            .iter()
            .find_map(|path| root.read_large(path).ok())
            .map(|text| parse_mounts(&text));
        Self { table }
    }

    /// Returns the mount that contains a path: of the mounts whose mount point is the path or above it, the one with
    /// the longest mount point. If several mounts have this mount point, returns the last one.
    #[must_use]
    pub fn find_containing(&self, path: &str) -> Option<&Mount> {
        let contains_path = |point: &str| {
            let rest = path.strip_prefix(point.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let table = self.table.as_ref()?;
        table
            .iter()
            .filter(|mount| contains_path(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.len())
    }
}

/// Parses `/proc/*/mountinfo`. Invalid lines are ignored; returns `None` if no line is valid.
#[must_use]
pub fn parse_mountinfo(text: &str) -> Option<Vec<Mount>> {
    let mount = |line: &str| {
        let info = MountInfo::from_line(line).ok()?;
        Some(Mount {
            mount_point: unescape(&info.mount_point.to_string_lossy()),
            filesystem: info.fs_type,
            source: info.mount_source.unwrap_or_default(),
            device: Some(info.majmin),
        })
    };
    let table: Vec<Mount> = text.lines().filter_map(mount).collect();
    (!table.is_empty()).then_some(table)
}

/// Parses `/proc/*/mounts`, which has the format of fstab(5): device, mount point, type, options.
#[must_use]
pub fn parse_mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut words = line.split(' ').map(unescape);
        Some(Mount {
            source: words.next()?,
            mount_point: words.next()?,
            filesystem: words.next()?,
            device: None,
        })
    };
    text.lines().filter_map(mount).collect()
}

/// Decodes the escapes `\040`, `\011`, `\012` and `\134`, which the kernel writes for space, tab, newline and
/// backslash.
fn unescape(word: &str) -> String {
    let mut text = word.to_owned();
    for (code, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(code, plain);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn longest_and_last_mount_point_contains_path() {
        let text = "rootfs / rootfs rw 0 0\n/dev/a / ext4 rw 0 0\n/dev/b /var/lib xfs rw 0 0\n\
            tmpfs /var/li tmpfs rw 0 0\n/dev/c /with\\040space btrfs rw 0 0\n";
        let mounts = Mounts { table: Some(parse_mounts(text)) };
        let filesystem = |path| mounts.find_containing(path).map(|m| m.filesystem.as_str());
        assert_eq!(filesystem("/var/lib/kubelet"), Some("xfs"));
        assert_eq!(filesystem("/var/lib"), Some("xfs"));
        assert_eq!(filesystem("/var/library"), Some("ext4"));
        assert_eq!(filesystem("/with space/x"), Some("btrfs"));
    }

    #[test]
    fn mountinfo_contains_the_device() {
        let text =
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n";
        let table = parse_mountinfo(text).unwrap();
        assert_eq!(table[0].device.as_deref(), Some("98:0"));
        assert_eq!(table[0].mount_point, "/mnt2");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "([0-9 :/a-z-]{0,60}\n){0,4}|.*") {
            drop((parse_mounts(&text), parse_mountinfo(&text)));
        }
    }
}
