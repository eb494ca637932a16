//! Hashes in names of objects.

use ring::digest::{Algorithm, digest};

/// Returns the first `length` hexadecimal digits of the hash of a text.
pub(crate) fn hex_digest(algorithm: &'static Algorithm, text: &str, length: usize) -> String {
    let hash = digest(algorithm, text.as_bytes());
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    digits.chars().take(length).collect()
}
