//! Minimum size of a host for production.

use crate::Bytes;

/// Minimum number of physical cores.
pub const MIN_CORES: u32 = 16;
/// Minimum amount of memory: 64 GiB.
pub const MIN_MEMORY: Bytes = Bytes(64 << 30);

/// Returns true if the memory is at least 95 % of the minimum, because firmware and kernel reserve a part of the
/// installed memory.
#[must_use]
pub const fn is_enough_memory(total: Bytes) -> bool {
    total.0 >= MIN_MEMORY.0 / 20 * 19
}
