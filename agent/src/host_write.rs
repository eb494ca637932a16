//! Writes to host files below a [`Root`]. Only `apply` and the state folder use it.
//!
//! Paths may come from other programs (the flags of a kubelet), and the agent is root. So a symbolic link is
//! followed only if no other user can have created it. `/var/lib/kubelet` may be a link to another disk, which is
//! followed; a link in a folder that other users can write to is refused. `RESOLVE_NO_SYMLINKS` would refuse both.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};

use berth_host_facts::root::Root;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("/{path}: {errno:?} ({})", .errno.desc())]
pub struct WriteError {
    /// The file, relative to the root.
    pub path: String,
    /// Error number of the kernel.
    pub errno: Errno,
}

/// Reason why the lock of the state folder was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock; its process ID, if the lock file contains it.
    #[error("another berth-agent{} is running on this host; wait until it ends, or stop it", .0.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    HeldByProcess(Option<u32>),
    /// The lock file cannot be created.
    #[error(
        "{0}; Berth saves its rollback ledger in this folder, and applies no change without it"
    )]
    Unavailable(WriteError),
}

/// The acquired lock, which is held until this value is dropped. If the process ends, the kernel releases the lock.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not used")] Flock<File>);

/// Writes to files below a root.
pub trait HostWrite {
    /// Writes a value to a file of the kernel (sysfs, procfs) with one system call, because the kernel takes the data
    /// of one call as the whole value.
    ///
    /// # Errors
    /// Returns the error of the kernel, also if the file does not exist. The file is never created.
    fn write(&self, path: &str, text: &str) -> Result<(), WriteError>;

    /// Creates or replaces an ordinary file, so that it has either the old or the new content after a
    /// power failure: the new content is written to a temporary file in the same folder, synced and
    /// renamed, and the folder is synced.
    ///
    /// # Errors
    /// Returns the error of the kernel; the file is then unchanged.
    fn replace(&self, path: &str, content: &[u8]) -> Result<(), WriteError>;

    /// Renames a file within its folder, durably.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn rename(&self, path: &str, new_name: &str) -> Result<(), WriteError>;

    /// Removes a file, durably. A missing file is not an error.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn remove(&self, path: &str) -> Result<(), WriteError>;

    /// Creates a folder that only root can read. An existing folder is not an error.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn create_folder(&self, path: &str) -> Result<(), WriteError>;

    /// Acquires the lock, which at most one process of the host can hold. The lock file contains the process ID of the
    /// process that holds the lock.
    ///
    /// # Errors
    /// If another process holds the lock, or the file cannot be created.
    fn lock(&self, path: &str) -> Result<Lock, LockError>;
}

impl HostWrite for Root {
    fn write(&self, path: &str, text: &str) -> Result<(), WriteError> {
        let write_error = |errno| write_error(path, errno);
        let (folder, name) = open_parent(self, path).map_err(|error| write_error(error.errno))?;
        let flags = OFlag::O_WRONLY
            | OFlag::O_TRUNC
            | OFlag::O_NOCTTY
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC;
        let fd = openat(&folder, name, flags, Mode::empty()).map_err(write_error)?;
        let written = nix::unistd::write(fd.as_fd(), text.as_bytes()).map_err(write_error)?;
        if written == text.len() { Ok(()) } else { Err(write_error(Errno::EIO)) }
    }

    fn replace(&self, path: &str, content: &[u8]) -> Result<(), WriteError> {
        let write_error = |errno| write_error(path, errno);
        let (folder, name) = open_parent(self, path)?;
        let temporary = format!(".{name}.berth-new");
        let create_flags = OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_TRUNC
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let result = openat(&folder, temporary.as_str(), create_flags, mode).and_then(|fd| {
            let mut file = File::from(fd);
            let write = file.write_all(content).and_then(|()| file.sync_all());
            write.map_err(|io| Errno::try_from(io).unwrap_or(Errno::EIO))?;
            renameat(&folder, temporary.as_str(), &folder, name)?;
            fsync(&folder)
        });
        result.map_err(|errno| {
            // A temporary file that cannot be removed is overwritten by the next attempt.
            unlinkat(&folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir).unwrap_or_default();
            write_error(errno)
        })
    }

    fn rename(&self, path: &str, new_name: &str) -> Result<(), WriteError> {
        let (folder, name) = open_parent(self, path)?;
        let result = renameat(&folder, name, &folder, new_name).and_then(|()| fsync(&folder));
        result.map_err(|errno| write_error(path, errno))
    }

    fn remove(&self, path: &str) -> Result<(), WriteError> {
        let (folder, name) = match open_parent(self, path) {
            Err(error) if error.errno == Errno::ENOENT => return Ok(()),
            found => found?,
        };
        match unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => fsync(&folder).map_err(|errno| write_error(path, errno)),
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(write_error(path, errno)),
        }
    }

    fn create_folder(&self, path: &str) -> Result<(), WriteError> {
        let (parent, name) = open_parent(self, path)?;
        match mkdirat(&parent, name, Mode::S_IRWXU) {
            Ok(()) => fsync(&parent).map_err(|errno| write_error(path, errno)),
            Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(write_error(path, errno)),
        }
    }

    fn lock(&self, path: &str) -> Result<Lock, LockError> {
        let unavailable = |errno| LockError::Unavailable(write_error(path, errno));
        let (folder, name) = open_parent(self, path).map_err(LockError::Unavailable)?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd =
            openat(&folder, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(unavailable)?;
        match Flock::lock(File::from(fd), FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // The process ID is for the error message of a second process; the lock works
                // without it.
                let written = lock.set_len(0).and_then(|()| lock.rewind());
                written.and_then(|()| write!(lock, "{}", std::process::id())).unwrap_or_default();
                Ok(Lock(lock))
            }
            Err((mut file, Errno::EAGAIN)) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).unwrap_or_default();
                Err(LockError::HeldByProcess(pid.trim().parse().ok()))
            }
            Err((_, errno)) => Err(unavailable(errno)),
        }
    }
}

fn open_parent<'a>(root: &Root, path: &'a str) -> Result<(OwnedFd, &'a str), WriteError> {
    let path = path.trim_start_matches('/');
    let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
    let fd = open_folder(root, folder).map_err(|errno| write_error(folder, errno))?;
    Ok((fd, name))
}

/// Opens a folder in which files are changed, one path component at a time. `..` and absolute symbolic links are
/// relative to this root.
fn open_folder(root: &Root, path: &str) -> Result<OwnedFd, Errno> {
    let folder_flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open_component =
        |from: &OwnedFd, name: &str, flags| openat(from, name, flags, Mode::empty());
    let mut open_folders =
        vec![openat(root.folder(), ".", folder_flags | OFlag::O_PATH, Mode::empty())?];
    let mut remaining: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
    let mut link_count = 0;
    while let Some(part) = remaining.pop() {
        let Some(current) = open_folders.last() else { break };
        match part.as_str() {
            "" | "." => {}
            ".." if open_folders.len() > 1 => _ = open_folders.pop(),
            ".." => {}
            name => match open_component(current, name, folder_flags | OFlag::O_PATH) {
                Ok(next) => open_folders.push(next),
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    let target = read_trusted_symlink(current, name)?;
                    link_count += 1;
                    if link_count > MAX_SYMLINKS {
                        return Err(Errno::ELOOP);
                    }
                    if target.starts_with('/') {
                        open_folders.truncate(1);
                    }
                    remaining.extend(target.rsplit('/').map(str::to_owned));
                }
                Err(errno) => return Err(errno),
            },
        }
    }
    open_component(open_folders.last().ok_or(Errno::ENOENT)?, ".", folder_flags | OFlag::O_RDONLY)
}
/// The kernel's limit of symbolic links in a path.
const MAX_SYMLINKS: usize = 40;

/// Returns the target of a symbolic link that root (or the user of this process) owns, in a folder that no other user
/// can change.
fn read_trusted_symlink(folder: &OwnedFd, name: &str) -> Result<String, Errno> {
    let link_stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if link_stat.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFLNK.bits() {
        return Err(Errno::ENOTDIR);
    }
    // In a captured tree, the files belong to the user of this process and not to root.
    let is_owned_by_root = |stat: &FileStat| stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
    let folder_stat = fstat(folder)?;
    let group_or_other_write = Mode::S_IWGRP | Mode::S_IWOTH;
    if !is_owned_by_root(&link_stat)
        || !is_owned_by_root(&folder_stat)
        || folder_stat.st_mode & group_or_other_write.bits() != 0
    {
        return Err(Errno::ELOOP);
    }
    readlinkat(folder, name)?.into_string().map_err(|_| Errno::EINVAL)
}

fn write_error(path: &str, errno: Errno) -> WriteError {
    WriteError { path: path.trim_start_matches('/').to_owned(), errno }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn temporary_root() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        (folder, root)
    }

    #[test]
    fn kernel_files_are_written_and_never_created() {
        let (_folder, root) = temporary_root();
        root.create_folder("sys").unwrap();
        assert_eq!(root.write("sys/run", "1").unwrap_err().errno, Errno::ENOENT);
        root.replace("sys/run", b"0\n").unwrap();
        root.write("sys/run", "1").unwrap();
        assert_eq!(root.read("sys/run").unwrap(), "1");
    }

    #[test]
    fn replacing_a_file_leaves_no_temporary_file() {
        let (_folder, root) = temporary_root();
        root.create_folder("state").unwrap();
        root.create_folder("state").unwrap();
        root.replace("state/a", b"1").unwrap();
        root.replace("state/a", b"2").unwrap();
        root.rename("state/a", "b").unwrap();
        assert_eq!(root.list("state").unwrap(), ["b"]);
        assert_eq!(root.read("state/b").unwrap(), "2");
        root.remove("state/b").unwrap();
        root.remove("state/b").unwrap();
        root.remove("nowhere/b").unwrap();
        assert!(root.list("state").unwrap().is_empty());
    }

    #[test]
    fn failed_replacement_keeps_the_file_and_names_its_path() {
        let (folder, root) = temporary_root();
        root.create_folder("state").unwrap();
        root.create_folder("state/a").unwrap();
        let error = root.replace("state/a", b"1").unwrap_err();
        assert_eq!((error.path.as_str(), error.errno), ("state/a", Errno::EISDIR));
        assert_eq!(root.list("state").unwrap(), ["a"]);
        assert!(folder.path().join("state/a").is_dir());
        assert_eq!(root.replace("none/a", b"1").unwrap_err().errno, Errno::ENOENT);
    }

    #[test]
    fn writes_stay_inside_the_tree() {
        let (outside, _) = temporary_root();
        let (folder, root) = temporary_root();
        let target: &Path = outside.path();
        std::os::unix::fs::symlink(target, folder.path().join("state")).unwrap();
        assert!(root.replace("state/a", b"1").is_err());
        assert_eq!(target.read_dir().unwrap().count(), 0);
    }

    #[test]
    fn symlinks_created_by_root_are_followed() {
        let (folder, root) = temporary_root();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        };
        for name in ["data", "data/kubelet", "var", "etc", "shared"] {
            root.create_folder(name).unwrap();
        }
        link("/data/kubelet", "var/kubelet");
        link("../../etc", "data/kubelet/up");
        root.replace("var/kubelet/a", b"1").unwrap();
        assert_eq!(root.read("data/kubelet/a").unwrap(), "1");
        root.replace("var/kubelet/up/b", b"1").unwrap();
        assert_eq!(root.read("etc/b").unwrap(), "1");
        link("loop", "loop");
        assert_eq!(root.remove("loop/b").unwrap_err().errno, Errno::ELOOP);
        // Any user may have created the link.
        let world_writable = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(folder.path().join("shared"), world_writable).unwrap();
        link("../etc", "shared/x");
        for error in [
            root.remove("shared/x/b").unwrap_err(),
            root.replace("shared/x/b", b"2").unwrap_err(),
            root.rename("shared/x/b", "c").unwrap_err(),
            root.create_folder("shared/x/c").unwrap_err(),
        ] {
            assert_eq!(error.errno, Errno::ELOOP, "{error}");
        }
        // The last component of a path is never followed: if it is a symbolic link, a write fails, and a removal
        // removes the link itself.
        link("../etc/b", "var/b");
        assert_eq!(root.write("var/b", "2").unwrap_err().errno, Errno::ELOOP);
        root.remove("var/b").unwrap();
        assert_eq!(root.read("etc/b").unwrap(), "1");
    }

    #[test]
    fn second_lock_attempt_gets_the_id_of_the_holder() {
        let (_folder, root) = temporary_root();
        let first = root.lock("lock").unwrap();
        let second = root.lock("lock").unwrap_err();
        assert_eq!(second, LockError::HeldByProcess(Some(std::process::id())));
        drop(first);
        root.lock("lock").unwrap();
        assert!(matches!(root.lock("no/lock"), Err(LockError::Unavailable(_))));
    }
}
