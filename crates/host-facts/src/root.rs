//! Access to the host's files.
//!
//! All files that are read in `/proc`, `/sys`, `/etc` and `/var` are named relative to a [`Root`]: `/` on a live
//! host, or a folder with a captured tree. So a capture of any machine can be a test, and a symbolic link in a
//! captured tree never leads to files of this machine.
//!
//! A read never blocks and has a size limit, for any kind of file.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use berth_api::infra_node::UnknownReason;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, fstat};

/// The folder of the host's files.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    folder: OwnedFd,
    live: bool,
}

/// Error of opening a root.
#[derive(Debug, thiserror::Error)]
#[error("--root {path}: {problem}; give the folder that holds proc/ and sys/", path = path.display())]
pub struct RootError {
    path: PathBuf,
    problem: &'static str,
}

/// Error of reading a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("/{path}: {problem}")]
pub struct ReadError {
    /// Path of the file, relative to the root.
    pub path: String,
    /// Problem of the file.
    pub problem: ReadProblem,
}

/// Problem of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadProblem {
    /// The file does not exist.
    #[error("not there")]
    NotFound,
    /// This user may not read the file.
    #[error("no permission to read it; run as root to see it")]
    NoPermission,
    /// The path is a folder, pipe, socket or device, and a file was expected.
    #[error("not a regular file")]
    NotAFile,
    /// The file is larger than any that the kernel writes.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The content is malformed.
    #[error("{0}")]
    Malformed(String),
    /// Another error of the kernel.
    #[error("{}", .0.desc())]
    Io(Errno),
}

impl ReadError {
    /// Returns the reason for the `unknown` list of the report.
    #[must_use]
    pub const fn reason(&self) -> UnknownReason {
        match self.problem {
            ReadProblem::NotFound => UnknownReason::NotFound,
            ReadProblem::NoPermission => UnknownReason::NoPermission,
            ReadProblem::Malformed(_) => UnknownReason::Malformed,
            ReadProblem::NotAFile | ReadProblem::TooLarge(_) | ReadProblem::Io(_) => {
                UnknownReason::Unreadable
            }
        }
    }

    /// Returns true if the file does not exist, which is ordinary for most files.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.problem == ReadProblem::NotFound
    }
}

/// Maximum length of a sysfs attribute (`sysfs_emit`).
const PAGE: usize = 4096;
/// Size limit of ordinary files: a sysfs attribute is at most a page, and procfs tables are far smaller than this.
const SMALL: usize = 1 << 20;
/// Size limit of large files: `cpuinfo` of 8,192 CPUs has some 12 MB, a kubelet state file of 1,000 pods less.
const LARGE: usize = 64 << 20;
/// Maximum number of openat2 calls if renames disturb them; a busy machine needs two or three.
const RETRIES: usize = 100;
/// Maximum number of entries of a folder. `/proc` of a busy host has some ten thousand.
const ENTRIES: usize = 1 << 18;

impl Root {
    /// Returns the root of this machine.
    ///
    /// # Errors
    /// If `/` cannot be opened, which does not happen on a working system.
    pub fn live() -> Result<Self, RootError> {
        Self::open(Path::new("/"))
    }

    /// Returns the root of this machine, seen from a container: its `proc/`, `sys/`, ... are mounted below a folder.
    ///
    /// # Errors
    /// If the path is not a folder that can be opened.
    pub fn live_below(path: &Path) -> Result<Self, RootError> {
        Ok(Self { live: true, ..Self::open(path)? })
    }

    /// Returns the root of a folder with `proc/`, `sys/`, ... ; `/` means the live machine.
    ///
    /// # Errors
    /// If the path is not a folder that can be opened.
    pub fn open(path: &Path) -> Result<Self, RootError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = open(path, flags, Mode::empty()).map_err(|errno| RootError {
            path: path.to_owned(),
            problem: match errno {
                Errno::ENOENT => "there is no such folder",
                Errno::ENOTDIR => "that is not a folder",
                Errno::EACCES => "no permission to open it",
                _ => "it cannot be opened",
            },
        })?;
        let live = path.canonicalize().is_ok_and(|path| path == Path::new("/"));
        Ok(Self { path: path.to_owned(), folder, live })
    }

    /// Returns true if this is the running machine, which has ioctls, netlink and CPUID besides files.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// Returns true if this is the running machine seen from a container, whose `/dev` is not the host's.
    #[must_use]
    pub fn is_from_container(&self) -> bool {
        self.live && self.path != Path::new("/")
    }

    /// Returns the open folder. It is opened with `O_PATH`, so it serves only to open files below it.
    #[must_use]
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Returns the folder, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the text of a file without surrounding white space and NUL bytes, which some kernels leave in
    /// attributes. A replacement character takes the place of each byte that is not UTF-8.
    ///
    /// # Errors
    /// If the file does not exist, may not be read, is not a regular file, or is larger than the limit.
    pub fn read(&self, path: &str) -> Result<String, ReadError> {
        self.read_up_to(path, SMALL)
    }

    /// Reads the text of a file as [`Self::read`] does, for files that may have many megabytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_large(&self, path: &str) -> Result<String, ReadError> {
        self.read_up_to(path, LARGE)
    }

    /// Reads the text of a file and parses it as a value.
    ///
    /// # Errors
    /// As [`Self::read`], and if the text cannot be parsed.
    pub fn parse<T: FromStr>(&self, path: &str) -> Result<T, ReadError> {
        let text = self.read(path)?;
        text.parse().map_err(|_| {
            let found: String = text.chars().take(60).collect();
            error(path, ReadProblem::Malformed(format!("`{found}` is not a valid value")))
        })
    }

    /// Opens a file for reading line by line, up to `LARGE` bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn lines(&self, path: &str) -> Result<BufReader<impl Read + use<>>, ReadError> {
        Ok(BufReader::with_capacity(64 << 10, self.open_file(path)?.take(LARGE as u64)))
    }

    /// Reads the raw bytes of a file, such as `cmdline` with its NUL separators.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        self.read_into(path, SMALL, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the names in a folder, sorted, without names that are not UTF-8.
    ///
    /// # Errors
    /// If the folder does not exist or may not be read.
    pub fn list(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        let fd = self.open_fd(path, flags)?;
        let mut folder = Dir::from_fd(fd).map_err(|errno| error(path, problem(errno)))?;
        let mut names: Vec<String> = folder
            .iter()
            .take(ENTRIES)
            .map_while(Result::ok)
            .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Reads the names in a folder that are `prefix` and a decimal number, with the number, sorted by number: `cpu0`,
    /// `cpu1`, ... but not `cpufreq`. Returns an empty list if the folder does not exist.
    #[must_use]
    pub fn numbered(&self, path: &str, prefix: &str) -> Vec<(u32, String)> {
        let number = |name: &str| {
            let digits = name.strip_prefix(prefix)?;
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let names = self.list(path).unwrap_or_default();
        let mut found: Vec<(u32, String)> =
            names.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
        found.sort_unstable();
        found
    }

    /// Returns true if the path exists, as a file, folder or device.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.open_fd(path, OFlag::O_PATH).is_ok()
    }

    /// Returns the time of the last change of a file or folder, since 1970; for a symbolic link, the later time of
    /// the link and its target. On a live host this is `ctime`, which no program can set; archives have only `mtime`,
    /// so this is used in a captured tree.
    #[must_use]
    pub fn changed(&self, path: &str) -> Option<Duration> {
        let time = |flags| {
            let stat = fstat(self.open_fd(path, OFlag::O_PATH | flags).ok()?).ok()?;
            let (seconds, nanoseconds) = if self.live {
                (stat.st_ctime, stat.st_ctime_nsec)
            } else {
                (stat.st_mtime, stat.st_mtime_nsec)
            };
            Some(Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?))
        };
        Some(time(OFlag::empty())?.max(time(OFlag::O_NOFOLLOW)?))
    }

    /// Returns the target of a symbolic link, as written.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        let target = if self.live {
            readlinkat(&self.folder, path).ok()?
        } else {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
            readlinkat(self.open_fd(path, flags).ok()?, "").ok()?
        };
        target.into_string().ok()
    }

    /// Returns the last part of a link's target, such as the name of a driver or the number of a group.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path)?;
        target.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned)
    }

    fn read_up_to(&self, path: &str, limit: usize) -> Result<String, ReadError> {
        let mut bytes = Vec::new();
        self.read_into(path, limit, &mut bytes)?;
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|broken| String::from_utf8_lossy(broken.as_bytes()).into_owned());
        let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        Ok(if trimmed.len() == text.len() { text } else { trimmed.to_owned() })
    }

    fn read_into(&self, path: &str, limit: usize, bytes: &mut Vec<u8>) -> Result<(), ReadError> {
        let mut file = self.open_file(path)?;
        let failed = |io| error(path, problem(Errno::try_from(io).unwrap_or(Errno::EIO)));
        let mut page = [0; PAGE];
        let first = file.read(&mut page).map_err(failed)?;
        bytes.extend_from_slice(page.get(..first).unwrap_or_default());
        // sysfs returns a whole attribute in one read; a second read to find the end would double the system calls of
        // a report.
        let whole = first < PAGE && path.trim_start_matches('/').starts_with("sys/");
        if !whole && first > 0 {
            file.take((limit + 1 - first.min(limit)) as u64).read_to_end(bytes).map_err(failed)?;
        }
        if bytes.len() > limit {
            return Err(error(path, ReadProblem::TooLarge(limit)));
        }
        Ok(())
    }

    fn open_file(&self, path: &str) -> Result<File, ReadError> {
        // O_NONBLOCK: a named pipe in a captured tree must not block for ever.
        let fd = self.open_fd(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
        let file = File::from(fd);
        match file.metadata() {
            Ok(metadata) if metadata.is_file() => Ok(file),
            _ => Err(error(path, ReadProblem::NotAFile)),
        }
    }

    fn open_fd(&self, path: &str, flags: OFlag) -> Result<OwnedFd, ReadError> {
        self.open_any(path, flags).map_err(|errno| error(path, problem(errno)))
    }

    fn open_any(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlag::O_CLOEXEC;
        let relative = path.trim_start_matches('/');
        if self.live {
            openat(&self.folder, relative, flags, Mode::empty())
        } else {
            // Links, even absolute links, are resolved as if the tree were "/".
            let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT);
            // EAGAIN: a file on the machine was renamed while `..` was resolved, and the kernel could not rule out
            // that the path had left the tree. The call must be repeated.
            let mut tries = (0..RETRIES).map(|_| openat2(&self.folder, relative, how));
            match tries.find(|opened| !matches!(opened, Err(Errno::EAGAIN))) {
                None | Some(Err(Errno::ENOSYS | Errno::EPERM)) => {
                    self.open_without_openat2(relative, flags)
                }
                Some(opened) => opened,
            }
        }
    }

    /// Opens a file on kernels before 5.6 and in sandboxes that forbid openat2, with the same guarantee: links are
    /// resolved first, and refused if they lead out of the tree.
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

fn error(path: &str, problem: ReadProblem) -> ReadError {
    ReadError { path: path.trim_start_matches('/').to_owned(), problem }
}

const fn problem(errno: Errno) -> ReadProblem {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV | Errno::ENXIO => ReadProblem::NotFound,
        Errno::EACCES | Errno::EPERM => ReadProblem::NoPermission,
        other => ReadProblem::Io(other),
    }
}

#[cfg(test)]
mod tests;
