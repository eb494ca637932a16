//! State of the nf_tables table that keeps guests' control frames from the uplinks.

use crate::nftables::Table;

/// State of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BridgeFilter {
    /// Not known: a captured tree does not have it, and the kernel shows it to root only.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    There(Table),
}
