//! Memory that stays available to the host.

use berth_api::Bytes;

/// Returns the memory that must stay available to the host when Berth allocates memory: 128 MiB, or 2 % if
/// that is more. With less free memory, the kernel swaps and kills processes before it refuses an
/// allocation.
pub(super) fn host_memory_reserve(total: Option<Bytes>) -> u64 {
    total.map_or(0, |total| total.0 / 50).max(128 << 20)
}
