//! A hash for object names that is the same in every release of Berth, and its text. The hash of the standard library may change.

/// Returns the 64-bit FNV-1a hash.
pub fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Encodes a number with the alphabet of `rand.SafeEncodeString` of Kubernetes, with which no English words can be
/// formed.
pub fn safe_encode(mut number: u64, count: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |_| {
        let index = usize::try_from(number % 27).unwrap_or(0);
        number /= 27;
        char::from(LETTERS[index])
    };
    (0..count).map(letter).collect()
}
