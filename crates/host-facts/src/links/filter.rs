//! The nf_tables table that keeps guests' control frames from the uplinks.

use nix::errno::Errno;

use super::link::Link;
use super::table::Links;
use crate::ledger::Ledger;
use crate::nftables::{Nftables, TABLE, Table};
use crate::notes::Notes;
use crate::root::Root;

/// The table as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BridgeFilter {
    /// A captured tree does not have it, and the kernel shows it to root only.
    #[default]
    Unknown,
    /// It is not there.
    Absent,
    /// It is there.
    There(Table),
}

/// Reads the table. The kernel loads nf_tables for a question about it, and observing must not load a module: so
/// the question is asked only where nf_tables is loaded already, or where Berth has made something that needs it.
pub fn observe(root: &Root, links: &Links, ledger: &Ledger, notes: &mut Notes) -> BridgeFilter {
    if !root.is_live() || links.incomplete {
        return BridgeFilter::Unknown;
    }
    let made = links.all.iter().any(Link::is_ours);
    if !made && ledger.filter.is_none() && !root.exists("sys/module/nf_tables") {
        return BridgeFilter::Absent;
    }
    match Nftables::open() {
        // A kernel without netfilter has no table.
        Err(_) => BridgeFilter::Absent,
        Ok(mut nftables) => read(&mut nftables).unwrap_or_else(|error| {
            if made {
                let what = "whether guests' control frames are dropped is not known";
                notes.warn("nf_tables", format!("{error}; {what}"));
            }
            BridgeFilter::Unknown
        }),
    }
}

/// Asks the kernel.
///
/// # Errors
/// As [`Nftables::read`].
pub fn read(nftables: &mut Nftables) -> std::io::Result<BridgeFilter> {
    let read = nftables.read(TABLE);
    let errno = read.as_ref().err().and_then(std::io::Error::raw_os_error).map(Errno::from_raw);
    match errno {
        // No nf_tables, or not for bridges; or the table was deleted while it was read.
        Some(Errno::EOPNOTSUPP | Errno::ENOENT) => Ok(BridgeFilter::Absent),
        _ => Ok(read?.map_or(BridgeFilter::Absent, BridgeFilter::There)),
    }
}
