//! Namespaces of objects in manifests.

/// Returns the namespace of an object in a manifest; `default` if the object has none, as kubectl assumes.
pub(super) fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

/// Splits the name of a NetworkAttachmentDefinition, as a machine in `namespace` gives it, into namespace and name
/// (`NetAttachDefNamespacedName`). If `full_name` contains no namespace, returns `namespace`.
pub(super) fn split_network_name<'a>(namespace: &'a str, full_name: &'a str) -> (&'a str, &'a str) {
    full_name.split_once('/').unwrap_or((namespace, full_name))
}
