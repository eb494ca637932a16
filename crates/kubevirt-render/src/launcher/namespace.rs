//! Namespaces of manifests.

/// Returns the namespace of a manifest; `default` if the manifest has none, as kubectl assumes.
pub(super) fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

/// Splits `namespace/name` of a NetworkAttachmentDefinition that a machine in `namespace` names
/// (`NetAttachDefNamespacedName`). Without a namespace, the machine's namespace is used.
pub(super) fn split_network_name<'a>(namespace: &'a str, full_name: &'a str) -> (&'a str, &'a str) {
    full_name.split_once('/').unwrap_or((namespace, full_name))
}
