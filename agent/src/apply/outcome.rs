//! Outcomes of changes.

use berth_api::infra_node::{ChangeResult, ChangeStatus, Removal};
use nix::errno::Errno;
use serde::Serialize;

use crate::host_write::WriteError;
use crate::plan::network::id::LinkChangeId;
use crate::plan::{Change, ChangeId};

/// Outcome of one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The identity of the change.
    #[serde(skip)]
    pub id: ChangeId,
    /// The change as text: `hugepages 2Mi zone 1: 0 -> 1024`.
    pub what: String,
    pub result: ChangeResult,
    /// True if the change corrects drift: Berth set the value before, and another program changed it.
    pub drift: bool,
    /// Details of the result: the reached and the desired value, the kernel's error with its meaning, or the reason why
    /// the change is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Result of a change, with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApplyResult {
    /// Applied, and confirmed by a read.
    Done(Option<String>),
    /// Applied in part; the message states the reached and the desired value, or what is missing.
    Partial(String),
    /// Not tried; the message states the reason.
    Blocked(String),
    /// Tried and failed; the message states the error.
    Failed(String),
}

/// Result of a function that applies a change. `Err` is also a result of the change, and allows the `?` operator.
pub(super) type Result = std::result::Result<ApplyResult, ApplyResult>;

impl From<WriteError> for ApplyResult {
    fn from(error: WriteError) -> Self {
        Self::Failed(error_with_hint(&error))
    }
}

impl Outcome {
    pub(super) fn new(change: &Change, result: ApplyResult) -> Self {
        let (result, message) = match result {
            ApplyResult::Done(message) => (ChangeResult::Done, message),
            ApplyResult::Partial(message) => (ChangeResult::Partial, Some(message)),
            ApplyResult::Blocked(message) => (ChangeResult::Blocked, Some(message)),
            ApplyResult::Failed(message) => (ChangeResult::Failed, Some(message)),
        };
        Self {
            id: change.id.clone(),
            what: change.description(),
            result,
            drift: change.drift,
            message,
        }
    }

    /// Returns the outcome of a change that is not tried.
    pub(super) fn new_blocked(change: &Change) -> Self {
        Self::new(change, ApplyResult::Blocked(change.blocked.clone().unwrap_or_default()))
    }

    /// Returns the outcome for a rollback ledger that could not be saved after the changes.
    pub(super) fn new_ledger_failure(error: &WriteError) -> Self {
        Self {
            id: ChangeId::RollbackLedger,
            what: ChangeId::RollbackLedger.to_string(),
            result: ChangeResult::Failed,
            drift: false,
            message: Some(format!("{}; the original values are saved", error_with_hint(error))),
        }
    }

    /// Returns the entry in `status.changes`.
    #[must_use]
    pub fn status(&self) -> ChangeStatus {
        let truncate =
            |text: &str, max_chars: usize| text.chars().take(max_chars).collect::<String>();
        ChangeStatus {
            what: truncate(&self.what, 256),
            result: self.result,
            message: self.message.as_ref().map(|message| truncate(message, 1024)),
            removes: self.tenant_removal(),
        }
    }

    /// Returns the tenant networks that the change removes, for the field `removes` of the status.
    fn tenant_removal(&self) -> Option<Removal> {
        match &self.id {
            ChangeId::Links(LinkChangeId::RemoveVlans { vlans, .. }) => {
                Some(Removal { tenant: None, vlans: Some(vlans.clone().into()) })
            }
            ChangeId::Links(LinkChangeId::RemoveLinks { tenant: Some(tenant), .. }) => {
                Some(Removal { tenant: Some(tenant.clone()), vlans: None })
            }
            _ => None,
        }
    }
}

/// Returns the kernel's error, its meaning for this file, and a remedy.
pub(super) fn error_with_hint(error: &WriteError) -> String {
    let hint = match error.errno {
        Errno::EACCES | Errno::EPERM | Errno::EROFS if is_driver_file(&error.path) => {
            "; the sandbox of the daemon does not permit changes of drivers, unless it has the drop-in \
             berth-agent-vfio.conf or the component vfio-root-equivalent"
        }
        Errno::EACCES | Errno::EPERM => {
            "; run as root, on the host and not in an unprivileged container"
        }
        Errno::EROFS if error.path.starts_with("sys/bus/pci/") => {
            "; the sandbox of the agent does not permit changes of drivers: docs/hosts.md, section PCI devices for VMs"
        }
        Errno::EROFS => {
            "; the file system is mounted read-only for the agent: mount it writable in a container; under systemd, \
             restart berth-agent if the folder was created after its start"
        }
        Errno::ENOENT => "; this kernel has no such setting",
        Errno::ELOOP => {
            "; a symbolic link in the path is not owned by root, or is in a folder that other users can write to: it is not followed"
        }
        Errno::EBUSY => "; the device or file is in use, retry later",
        Errno::EINVAL => "; the kernel rejects this value",
        Errno::ENOSPC if error.path.starts_with("proc/irq/") => {
            "; no interrupt vectors are left on those CPUs: reserve more CPUs"
        }
        Errno::ENOSPC | Errno::EDQUOT => "; free space on that file system",
        Errno::ENOMEM => "; the kernel has no free memory, retry later",
        _ => "",
    };
    format!("{error}{hint}")
}

/// Returns true for files that bind PCI functions to drivers, and those that send events of drives.
fn is_driver_file(path: &str) -> bool {
    path.starts_with("sys/bus/pci") || path.starts_with("sys/class/block")
}
