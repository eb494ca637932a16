//! State of the nf_tables table that drops guests' control frames at the uplinks.

use crate::nftables::Table;

/// State of Berth's nf_tables table in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BridgeFilter {
    /// The state is unknown, because a captured tree does not contain the table, or because only root can read the
    /// table.
    #[default]
    Unknown,
    /// The table does not exist.
    Absent,
    /// The table exists.
    Present(Table),
}
