//! Minimum size of a host for production.

use crate::Bytes;

/// Minimum number of physical cores.
pub const MIN_CORES: u32 = 16;
/// Minimum size of the memory.
pub const MIN_MEMORY: Bytes = Bytes(64 << 30);

/// Returns true if the memory is large enough. 5 % less than the minimum is accepted, because firmware and kernel
/// reserve memory.
#[must_use]
pub const fn is_enough_memory(total: Bytes) -> bool {
    total.0 >= MIN_MEMORY.0 / 20 * 19
}
