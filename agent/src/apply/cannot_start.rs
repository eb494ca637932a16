//! Reasons for which nothing is changed on a host.

use crate::host_write::WriteError;
use berth_host_facts::root::ReadError;

/// Why nothing can be done at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotStart {
    /// The found values cannot be read.
    #[error(
        "{0}; nothing is changed, as the way back would be lost. Put the file right, or move it away to start afresh from the host as it is now"
    )]
    Ledger(ReadError),
    /// The found values cannot be saved.
    #[error("{0}; what was found must be saved before anything is changed")]
    State(WriteError),
    /// A change on trial was left behind, and could not be undone.
    #[error("{0}; nothing is changed until it is undone")]
    Trial(ReadError),
    /// Without it found values belong nowhere.
    #[error("/proc/sys/kernel/random/boot_id cannot be read; found values belong to a boot")]
    BootId,
}
