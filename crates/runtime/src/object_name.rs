//! Names of objects in requests.

/// Maximum length of an object name in Kubernetes, in characters.
const MAX_NAME_LENGTH: usize = 253;

/// Returns true if a text is a valid object name, which is then also valid as a path segment of a URL.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !name.is_empty()
        && name.len() <= MAX_NAME_LENGTH
        && !name.starts_with('.')
        && !name.contains("..")
        && name.chars().all(is_valid)
}
