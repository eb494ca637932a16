//! Reasons why a host is not changed.

use crate::host_write::WriteError;
use berth_host_facts::root::ReadError;

/// Reason why the host is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyBlocked {
    /// The rollback ledger could not be read.
    #[error(
        "{0}; no change is applied, because a rollback would be impossible. Repair the file, or remove it to use the current values as original values"
    )]
    LedgerNotRead(ReadError),
    /// The rollback ledger could not be saved before the changes.
    #[error("{0}; original values must be saved before the first change")]
    LedgerNotSaved(WriteError),
    /// An earlier agent process did not finish a trial, and the change could not be rolled back.
    #[error("{0}; no change is applied until the unfinished trial has been rolled back")]
    TrialNotRolledBack(ReadError),
    /// The ID of the running boot is unknown, so that original values of an earlier boot could not be recognised.
    #[error(
        "/proc/sys/kernel/random/boot_id cannot be read; original values are valid for one boot only"
    )]
    UnknownBootId,
}
