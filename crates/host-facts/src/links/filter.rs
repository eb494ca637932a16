//! Reads Berth's nf_tables table, which drops control frames of guests at the uplinks.

use nix::errno::Errno;

use super::bridge_filter::BridgeFilter;
use super::link::Link;
use super::table::Links;
use crate::ledger::Ledger;
use crate::nftables::{NftablesReader, TABLE_NAME};
use crate::notes::Notes;
use crate::root::Root;

/// Reads the state of the table. A netlink request for the table would load the kernel module nf_tables, but an
/// observation must not load a module. Therefore the table is requested only if nf_tables is already loaded, or if
/// Berth has created a link or the table in this boot.
pub fn observe(root: &Root, links: &Links, ledger: &Ledger, notes: &mut Notes) -> BridgeFilter {
    if !root.is_live() || links.is_incomplete {
        return BridgeFilter::Unknown;
    }
    let has_berth_links = links.all.iter().any(Link::is_created_by_berth);
    if !has_berth_links && ledger.filter.is_none() && !root.exists("sys/module/nf_tables") {
        return BridgeFilter::Absent;
    }
    match NftablesReader::open() {
        // nf_tables is not available: a kernel without netfilter cannot have the table.
        Err(_) => BridgeFilter::Absent,
        Ok(mut nftables) => read_filter(&mut nftables).unwrap_or_else(|error| {
            if has_berth_links {
                let consequence = "it is unknown whether control frames of guests are dropped";
                notes.warn("nf_tables", format!("{error}; {consequence}"));
            }
            BridgeFilter::Unknown
        }),
    }
}

/// Requests the table from the kernel.
///
/// # Errors
/// Returns the errors of [`NftablesReader::read`].
pub fn read_filter(nftables: &mut NftablesReader) -> std::io::Result<BridgeFilter> {
    let result = nftables.read(TABLE_NAME);
    let errno = result.as_ref().err().and_then(std::io::Error::raw_os_error).map(Errno::from_raw);
    match errno {
        // The kernel does not support nf_tables for bridges, or the table was deleted while it was read.
        Some(Errno::EOPNOTSUPP | Errno::ENOENT) => Ok(BridgeFilter::Absent),
        _ => Ok(result?.map_or(BridgeFilter::Absent, BridgeFilter::Present)),
    }
}
