//! Memory that is left to the host.

use berth_api::Bytes;

/// Returns the memory that Berth leaves to the host when it takes some: 128 MiB, or 2 % where that is more.
/// Below it the kernel swaps and kills before it says no.
pub(super) fn kept_back(total: Option<Bytes>) -> u64 {
    total.map_or(0, |total| total.0 / 50).max(128 << 20)
}
