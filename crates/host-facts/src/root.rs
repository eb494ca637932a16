//! Access to the host's files.
//!
//! Files in `/proc`, `/sys`, `/etc` and `/var` are always read relative to a [`Root`], which is `/` on a running host,
//! or a folder with a captured tree. Therefore a test can use a capture of any machine, and a symbolic link in a
//! captured tree never leads to files of this machine.
//!
//! Reading a file never blocks, whatever kind of file it is, and never reads more than a maximum size.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use berth_api::excerpt;
use berth_api::infra_node::UnknownReason;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, major, minor};

/// The folder that contains the host's files.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    folder: OwnedFd,
    is_live: bool,
}

/// Error when a root cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "--root {path}: {problem}; specify the folder that contains proc/ and sys/",
    path = path.display()
)]
pub struct RootError {
    path: PathBuf,
    problem: &'static str,
}

/// Error when a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("/{path}: {problem}")]
pub struct ReadError {
    /// Path of the file, relative to the root.
    pub path: String,
    /// Reason why the file cannot be read.
    pub problem: ReadProblem,
}

/// Reason why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadProblem {
    /// The file does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The current user has no permission to read the file.
    #[error("permission denied; run as root")]
    NoPermission,
    /// The path is a folder, pipe, socket or device instead of a file.
    #[error("not a regular file")]
    NotRegularFile,
    /// The file has more than this number of bytes, although the kernel and the kubelet write no files of this size.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The content of the file is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The kernel returned another error.
    #[error("{}", .0.desc())]
    Io(Errno),
}

impl ReadError {
    /// Returns the corresponding reason for the list `status.unknown` of the InfraNode.
    #[must_use]
    pub const fn reason(&self) -> UnknownReason {
        match self.problem {
            ReadProblem::NotFound => UnknownReason::NotFound,
            ReadProblem::NoPermission => UnknownReason::NoPermission,
            ReadProblem::Malformed(_) => UnknownReason::Malformed,
            ReadProblem::NotRegularFile | ReadProblem::TooLarge(_) | ReadProblem::Io(_) => {
                UnknownReason::Unreadable
            }
        }
    }

    /// Returns true if the file does not exist, which is normal for most files.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.problem == ReadProblem::NotFound
    }
}

/// Maximum size of a sysfs attribute in bytes, which is one page (`sysfs_emit`).
const PAGE_SIZE: usize = 4096;
/// Maximum size of ordinary files in bytes. A sysfs attribute has at most one page, and procfs tables are much smaller
/// than this limit.
const MAX_SMALL_FILE_BYTES: usize = 1 << 20;
/// Maximum size of large files in bytes. `cpuinfo` of 8,192 CPUs has about 12 MB; the kubelet's checkpoint of 1,000
/// pods is smaller.
const MAX_LARGE_FILE_BYTES: usize = 64 << 20;
/// Maximum number of openat2 calls for one file if the calls fail because of renames. Two or three calls are sufficient
/// on a busy machine.
const MAX_OPEN_ATTEMPTS: usize = 100;
/// Maximum number of entries that are read from a folder. `/proc` of a busy host has about ten thousand entries.
const MAX_FOLDER_ENTRIES: usize = 1 << 18;

impl Root {
    /// Returns the root of this running machine.
    ///
    /// # Errors
    /// Returns an error if `/` cannot be opened, which does not happen on a working system.
    pub fn open_live() -> Result<Self, RootError> {
        Self::open(Path::new("/"))
    }

    /// Returns the root of this running machine for an agent in a container. `path` is the folder at which the host's
    /// `/` or its folders `proc/`, `sys/`, ... are mounted.
    ///
    /// # Errors
    /// Returns an error if the path is not a folder that can be opened.
    pub fn open_live_mounted_at(path: &Path) -> Result<Self, RootError> {
        Ok(Self { is_live: true, ..Self::open(path)? })
    }

    /// Returns the root of a captured tree. `path` is the folder with the tree's `proc/`, `sys/`, ...; `/` means this
    /// running machine.
    ///
    /// # Errors
    /// Returns an error if the path is not a folder that can be opened.
    pub fn open(path: &Path) -> Result<Self, RootError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = open(path, flags, Mode::empty()).map_err(|errno| RootError {
            path: path.to_owned(),
            problem: match errno {
                Errno::ENOENT => "no such folder",
                Errno::ENOTDIR => "not a folder",
                Errno::EACCES => "permission denied",
                _ => "cannot be opened",
            },
        })?;
        let live = path.canonicalize().is_ok_and(|path| path == Path::new("/"));
        Ok(Self { path: path.to_owned(), folder, is_live: live })
    }

    /// Returns true if this is the running machine, so that ioctls, netlink and CPUID can also be used. Returns false
    /// for a captured tree.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns true if this is the running machine as seen from a container, so that `/dev` is not that of the host.
    #[must_use]
    pub fn is_from_container(&self) -> bool {
        self.is_live && self.path != Path::new("/")
    }

    /// Returns the open folder of this root. It was opened with `O_PATH`, so it can only be used to open files below
    /// it.
    #[must_use]
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Returns the path of the root's folder, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the text of a file. White space and NUL bytes at the beginning and the end, which some kernels leave in
    /// attributes, are removed. Invalid UTF-8 is replaced by replacement characters.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, may not be read, is not a regular file, or has more than 1 MiB.
    pub fn read(&self, path: &str) -> Result<String, ReadError> {
        self.read_text_up_to(path, MAX_SMALL_FILE_BYTES)
    }

    /// Reads the text of a file like [`Self::read`], but up to 64 MiB.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub fn read_large(&self, path: &str) -> Result<String, ReadError> {
        self.read_text_up_to(path, MAX_LARGE_FILE_BYTES)
    }

    /// Reads the text of a file and parses it as a value.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`], and an error if the text cannot be parsed.
    pub fn read_value<T: FromStr>(&self, path: &str) -> Result<T, ReadError> {
        let text = self.read(path)?;
        text.parse().map_err(|_| {
            let found = excerpt(&text);
            new_read_error(path, ReadProblem::Malformed(format!("`{found}` is not a valid value")))
        })
    }

    /// Opens a file to read it line by line. At most `MAX_LARGE_FILE_BYTES` bytes are read.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub fn open_lines(&self, path: &str) -> Result<BufReader<impl Read + use<>>, ReadError> {
        Ok(BufReader::with_capacity(
            64 << 10,
            self.open_file(path)?.take(MAX_LARGE_FILE_BYTES as u64),
        ))
    }

    /// Reads the bytes of a file unchanged, for files such as `cmdline` with its NUL separators.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub fn read_bytes(&self, path: &str) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        self.read_into(path, MAX_SMALL_FILE_BYTES, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the names of a folder's entries, sorted. Names that are not UTF-8 are omitted.
    ///
    /// # Errors
    /// Returns an error if the folder does not exist, may not be read, or cannot be read to its end.
    pub fn list(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        let read_error = |errno: Errno| new_read_error(path, problem_from_errno(errno));
        let mut folder = Dir::from_fd(self.open_fd(path, flags)?).map_err(read_error)?;
        let entries = folder
            .iter()
            .map(|entry| entry.map(|entry| entry.file_name().to_str().ok().map(str::to_owned)));
        collect_names(entries).map_err(read_error)
    }

    /// Returns the entries of a folder whose names consist of `prefix` and a decimal number: `cpu0`, `cpu1`, ..., but
    /// not `cpufreq`. Each entry has its number and its name, and the entries are sorted by number. The list is empty
    /// if the folder does not exist.
    ///
    /// # Errors
    /// Returns an error if the folder exists, but may not be read or cannot be read to its end.
    pub fn list_numbered(&self, path: &str, prefix: &str) -> Result<Vec<(u32, String)>, ReadError> {
        let number = |name: &str| {
            let digits = name.strip_prefix(prefix)?;
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse().ok()).flatten()
        };
        let names = match self.list(path) {
            Err(error) if error.is_not_found() => Vec::new(),
            listed => listed?,
        };
        let mut found: Vec<(u32, String)> =
            names.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Returns true if the path exists, as a file, folder, device or other object.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.open_fd(path, OFlag::O_PATH).is_ok()
    }

    /// Returns the time of the last change of a file or folder, as the duration since 1970. For a symbolic link,
    /// returns the time of the link or of its target, whichever is later. On a running host, the time is `ctime`, which
    /// no program can set. In a captured tree, the time is `mtime`, because archives store only `mtime`.
    #[must_use]
    pub fn change_time(&self, path: &str) -> Option<Duration> {
        let time = |flags| {
            let stat = fstat(self.open_fd(path, OFlag::O_PATH | flags).ok()?).ok()?;
            let (seconds, nanoseconds) = if self.is_live {
                (stat.st_ctime, stat.st_ctime_nsec)
            } else {
                (stat.st_mtime, stat.st_mtime_nsec)
            };
            Some(Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?))
        };
        Some(time(OFlag::empty())?.max(time(OFlag::O_NOFOLLOW)?))
    }

    /// Returns the device number of a device node, as in the names of udev's database: `b259:0` for a block device,
    /// `c10:196` for a character device. The path may also be a link to an open file in `/proc/<pid>/fd`. Returns `None`
    /// for other files, and in a captured tree, which has no device nodes.
    #[must_use]
    pub fn device_number(&self, path: &str) -> Option<String> {
        if !self.is_live {
            return None;
        }
        let path = path.trim_start_matches('/');
        let stat = fstatat(&self.folder, path, AtFlags::empty()).ok()?;
        let file_type = stat.st_mode & SFlag::S_IFMT.bits();
        let kind = if file_type == SFlag::S_IFBLK.bits() {
            'b'
        } else if file_type == SFlag::S_IFCHR.bits() {
            'c'
        } else {
            return None;
        };
        Some(format!("{kind}{}:{}", major(stat.st_rdev), minor(stat.st_rdev)))
    }

    /// Returns the target of a symbolic link exactly as the link contains it.
    #[must_use]
    pub fn read_link(&self, path: &str) -> Option<String> {
        self.try_read_link(path).ok()
    }

    /// Returns the target of a symbolic link exactly as the link contains it.
    ///
    /// # Errors
    /// Returns an error if the link does not exist, may not be read, is no symbolic link, or is not UTF-8.
    pub fn try_read_link(&self, path: &str) -> Result<String, ReadError> {
        let read_error = |errno: Errno| new_read_error(path, problem_from_errno(errno));
        let target = if self.is_live {
            readlinkat(&self.folder, path).map_err(read_error)?
        } else {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
            readlinkat(self.open_fd(path, flags)?, "").map_err(read_error)?
        };
        target.into_string().map_err(|_| {
            new_read_error(path, ReadProblem::Malformed("the target is not UTF-8".to_owned()))
        })
    }

    /// Returns the last component of a symbolic link's target, such as the name of a driver or the number of an IOMMU
    /// group.
    #[must_use]
    pub fn read_link_name(&self, path: &str) -> Option<String> {
        let target = self.read_link(path)?;
        target.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned)
    }

    fn read_text_up_to(&self, path: &str, limit: usize) -> Result<String, ReadError> {
        let mut bytes = Vec::new();
        self.read_into(path, limit, &mut bytes)?;
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|broken| String::from_utf8_lossy(broken.as_bytes()).into_owned());
        let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        Ok(if trimmed.len() == text.len() { text } else { trimmed.to_owned() })
    }

    fn read_into(&self, path: &str, limit: usize, bytes: &mut Vec<u8>) -> Result<(), ReadError> {
        let mut file = self.open_to_read(path)?;
        let io_error = |io| {
            new_read_error(path, problem_from_errno(Errno::try_from(io).unwrap_or(Errno::EIO)))
        };
        let mut page = [0; PAGE_SIZE];
        let first = match file.read(&mut page) {
            Ok(first) if first > 0 => first,
            // Almost all files have content, so their type is not read, which would be a quarter of the system calls of a
            // report. What a read that does not block returns of another kind of file is as limited as a file.
            nothing => {
                check_type(&file, path)?;
                nothing.map_err(io_error)?
            }
        };
        bytes.extend_from_slice(page.get(..first).unwrap_or_default());
        // sysfs returns a whole attribute in one read, so the end of the file need not be detected by a second read,
        // which would double the number of system calls of a report.
        let is_complete = first < PAGE_SIZE && path.trim_start_matches('/').starts_with("sys/");
        if !is_complete && first > 0 {
            file.take((limit + 1 - first.min(limit)) as u64)
                .read_to_end(bytes)
                .map_err(io_error)?;
        }
        if bytes.len() > limit {
            return Err(new_read_error(path, ReadProblem::TooLarge(limit)));
        }
        Ok(())
    }

    fn open_file(&self, path: &str) -> Result<File, ReadError> {
        let file = self.open_to_read(path)?;
        check_type(&file, path)?;
        Ok(file)
    }

    /// Opens a file of any kind.
    fn open_to_read(&self, path: &str) -> Result<File, ReadError> {
        // With O_NONBLOCK, opening a named pipe in a captured tree does not block.
        self.open_fd(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).map(File::from)
    }

    fn open_fd(&self, path: &str, flags: OFlag) -> Result<OwnedFd, ReadError> {
        self.open_in_root(path, flags)
            .map_err(|errno| new_read_error(path, problem_from_errno(errno)))
    }

    fn open_in_root(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlag::O_CLOEXEC;
        let relative = path.trim_start_matches('/');
        if self.is_live {
            openat(&self.folder, relative, flags, Mode::empty())
        } else {
            // RESOLVE_IN_ROOT: symbolic links, even absolute ones, are resolved as if the captured tree were `/`.
            let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT);
            // openat2 fails with EAGAIN if a file on the machine was renamed while `..` was resolved, because the
            // kernel then cannot exclude that the path has left the tree. The call must be repeated.
            let mut attempts = (0..MAX_OPEN_ATTEMPTS).map(|_| openat2(&self.folder, relative, how));
            match attempts.find(|opened| !matches!(opened, Err(Errno::EAGAIN))) {
                None | Some(Err(Errno::ENOSYS | Errno::EPERM)) => {
                    self.open_without_openat2(relative, flags)
                }
                Some(opened) => opened,
            }
        }
    }

    /// Opens a file without openat2, which kernels before 5.6 lack and some sandboxes forbid. As with openat2, no file
    /// outside the tree is opened: symbolic links are resolved first, and refused if they lead out of the tree.
    fn open_without_openat2(&self, relative: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let path = self.path.join(relative);
        let errno = |io: std::io::Error| Errno::try_from(io).unwrap_or(Errno::EIO);
        let root = self.path.canonicalize().map_err(errno)?;
        let resolved = if flags.contains(OFlag::O_NOFOLLOW) {
            let folder = path.parent().ok_or(Errno::ENOENT)?.canonicalize().map_err(errno)?;
            folder.join(path.file_name().ok_or(Errno::ENOENT)?)
        } else {
            path.canonicalize().map_err(errno)?
        };
        if resolved.starts_with(&root) {
            open(&resolved, flags, Mode::empty())
        } else {
            Err(Errno::ENOENT)
        }
    }
}

/// Returns the sorted names of the entries of a folder, where `None` is a name that is not UTF-8. The names before an
/// error are not returned, because a part of a folder would be taken for the whole folder.
fn collect_names(
    entries: impl Iterator<Item = nix::Result<Option<String>>>,
) -> nix::Result<Vec<String>> {
    let mut names = Vec::new();
    for name in entries.take(MAX_FOLDER_ENTRIES) {
        names.extend(name?.filter(|name| name != "." && name != ".."));
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns an error unless the file is a regular file.
fn check_type(file: &File, path: &str) -> Result<(), ReadError> {
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(()),
        _ => Err(new_read_error(path, ReadProblem::NotRegularFile)),
    }
}

fn new_read_error(path: &str, problem: ReadProblem) -> ReadError {
    ReadError { path: path.trim_start_matches('/').to_owned(), problem }
}

const fn problem_from_errno(errno: Errno) -> ReadProblem {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV | Errno::ENXIO => ReadProblem::NotFound,
        Errno::EACCES | Errno::EPERM => ReadProblem::NoPermission,
        other => ReadProblem::Io(other),
    }
}

#[cfg(test)]
mod tests;
