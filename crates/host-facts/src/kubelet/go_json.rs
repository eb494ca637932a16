//! Deserialises JSON as Go writes it.

/// Deserialises `null` as an empty list or map, because Go writes a nil slice or map as `null`.
pub(super) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + serde::Deserialize<'de>,
{
    <Option<T> as serde::Deserialize>::deserialize(deserializer).map(Option::unwrap_or_default)
}
