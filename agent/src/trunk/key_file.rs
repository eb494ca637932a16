//! Reads the key file: the keys that the agents of all hosts share to authenticate probes of trunks.

use std::path::Path;

use berth_host_facts::root::{ReadError, ReadProblem, Root, RootError};
use berth_trunk_probe::{KeyError, ProbeKeys};
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

/// Mask of the permission bits in a file's mode.
const PERMISSIONS: u32 = 0o7777;
/// Mask of the permissions for users other than the owner and the group.
const OTHER_USERS: u32 = 0o007;

/// Reason why the agent has no keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoKeys {
    /// There is no key file.
    #[error(
        "no key file: write the output of `openssl rand -hex 32` to {path} on all hosts, or to the Secret \
         berth-system/berth-trunk-key"
    )]
    Absent {
        /// Path of the file.
        path: String,
    },
    /// Every user of the host can read the file.
    #[error(
        "every user can read {path} (mode {mode:04o}), so the key is not secret: chmod 600 {path}, and replace the key; if \
         the file is from a Secret, set the defaultMode of its volume to 0400"
    )]
    Exposed {
        /// Path of the file.
        path: String,
        /// Permissions of the file.
        mode: u32,
    },
    /// The file cannot be read.
    #[error("failed to read the key file {path}: {cause}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Error of the read.
        cause: String,
    },
    /// The content of the file is not a valid key.
    #[error("{path}: {cause}")]
    Invalid {
        /// Path of the file.
        path: String,
        /// Fault of the content.
        cause: KeyError,
    },
}

/// Reads a key file. `file` is a path of the agent's own file system, not a path below the root of the host.
pub(super) fn read_keys(file: &Path) -> Result<ProbeKeys, NoKeys> {
    let path = file.display().to_string();
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|n| n.to_str()))
    else {
        return Err(NoKeys::Absent { path });
    };
    let folder = match Root::open(folder) {
        Ok(folder) => folder,
        Err(RootError { .. }) => return Err(NoKeys::Absent { path }),
    };
    // If the file does not exist, mode 0 passes the check, and the read below returns the error.
    let mode = fstatat(folder.folder(), name, AtFlags::empty()).map_or(0, |stat| stat.st_mode);
    if mode & OTHER_USERS != 0 {
        return Err(NoKeys::Exposed { path, mode: mode & PERMISSIONS });
    }
    match folder.read(name) {
        Ok(text) => {
            ProbeKeys::parse(&text).map_err(|cause| NoKeys::Invalid { path: path.clone(), cause })
        }
        Err(ReadError { problem: ReadProblem::NotFound, .. }) => Err(NoKeys::Absent { path }),
        Err(error) => Err(NoKeys::Unreadable { path, cause: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(file: &Path, mode: u32) {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn message_names_file_and_remedy_but_never_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trunk.key");
        let absent = read_keys(&file).unwrap_err().to_string();
        assert!(absent.contains("trunk.key") && absent.contains("openssl rand"), "{absent}");
        std::fs::write(&file, "hunter2").unwrap();
        set_mode(&file, 0o644);
        let exposed = read_keys(&file).unwrap_err().to_string();
        assert!(exposed.contains("trunk.key (mode 0644)"), "{exposed}");
        assert!(exposed.contains("chmod 600"), "{exposed}");
        set_mode(&file, 0o640);
        let invalid = read_keys(&file).unwrap_err().to_string();
        assert!(invalid.contains("trunk.key: line 1 has 7 characters"), "{invalid}");
        assert!(!invalid.contains("hunter2"));
        std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
        assert!(read_keys(&file).is_ok());
    }
}
