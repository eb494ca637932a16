//! State of the nf_tables table that drops guests' control frames at the uplinks.

use crate::nftables::Table;

/// State of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BridgeFilter {
    /// The state is unknown: a captured tree does not have the table, and the kernel shows it to root only.
    #[default]
    Unknown,
    /// The table does not exist.
    Absent,
    /// The table exists.
    There(Table),
}
