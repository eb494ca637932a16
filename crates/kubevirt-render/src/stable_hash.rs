//! A hash for object names that is the same in every release of Berth. The hash of the standard library may change.

/// Returns the 64-bit FNV-1a hash.
pub fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
