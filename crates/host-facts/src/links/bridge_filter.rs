//! State of Berth's nf_tables table, which drops guests' control frames at the uplinks.

use crate::nftables::Table;

/// State of Berth's nf_tables table in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BridgeFilter {
    /// The state is unknown, because a captured tree has no nf_tables tables, or because the process is not root.
    #[default]
    Unknown,
    /// The table does not exist.
    Absent,
    /// The table exists.
    Present(Table),
}
