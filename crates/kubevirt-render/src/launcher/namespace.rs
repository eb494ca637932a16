//! Namespaces of manifests.

/// Returns `default` for an absent namespace, as clients do.
pub(super) fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}
