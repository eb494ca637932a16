//! Namespaces of manifests.

/// Returns the namespace of a manifest; `default` if the manifest has none, as kubectl assumes.
pub(super) fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}
