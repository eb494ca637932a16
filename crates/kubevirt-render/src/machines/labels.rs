//! Determines which labels and annotations a template may set on its machines. KubeVirt copies labels and annotations
//! to the launcher pod, where some of them have effects that a tenant must not cause.

use std::collections::BTreeMap;

use berth_api::InfraConfigSpec;
use berth_api::names::{CONTROL_PLANE_ROLE, MANAGED_BY_LABEL, ROLE_LABEL, WORKER_ROLE};

/// Permitted annotations of a disk, which affect only how CDI imports the disk.
const DISK_ANNOTATIONS: [&str; 3] = [
    "cdi.kubevirt.io/storage.bind.immediate.requested",
    "cdi.kubevirt.io/storage.deleteAfterCompletion",
    "cdi.kubevirt.io/storage.usePopulator",
];
/// Domains of labels that controllers read, such as `berth.dev/tenant`. Subdomains are included.
const RESERVED_DOMAINS: [&str; 8] = [
    "berth.dev",
    "cluster.x-k8s.io",
    "cncf.io",
    "k8s.io",
    "kubermatic.k8c.io",
    "kubernetes.io",
    "kubevirt.io",
    "openshift.io",
];
/// Domain of the labels that Kubernetes recommends for users' objects.
const RECOMMENDED_DOMAIN: &str = "app.kubernetes.io";

/// Returns true if a template may set an annotation. Permitted are keys without a prefix, because Kubernetes reserves
/// them for users and no controller reads them, the keys in [`DISK_ANNOTATIONS`], and keys with one of `prefixes`,
/// which are InfraConfig's `annotationPrefixes`.
///
/// Other annotations may give access to the host or to other tenants: `hooks.kubevirt.io/hookSidecars` runs any image
/// in the launcher pod, and `v1.multus-cni.io/default-network` and `k8s.v1.cni.cncf.io/networks` attach the pod to
/// networks of other tenants.
pub(super) fn is_annotation_permitted(key: &str, prefixes: &[String]) -> bool {
    !key.contains('/')
        || DISK_ANNOTATIONS.contains(&key)
        || prefixes.iter().any(|prefix| {
            InfraConfigSpec::is_valid_annotation_prefix(prefix) && key.starts_with(prefix.as_str())
        })
}

/// Returns true if a template may set a label. Not permitted are labels by which controllers of KubeVirt and Berth
/// select objects, and the label by which a NetworkPolicy permits egress from CDI's importer.
pub(super) fn is_label_permitted(key: &str, value: &str) -> bool {
    if key == MANAGED_BY_LABEL.0 {
        return value != MANAGED_BY_LABEL.1;
    }
    if key == "app" {
        return !value.starts_with("containerized-data-");
    }
    // The key of a label may consist of a domain alone. An example is CDI's label `cdi.kubevirt.io: importer`.
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let is_in_domain = |reserved: &str| {
        domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    domain == RECOMMENDED_DOMAIN || !RESERVED_DOMAINS.iter().any(|reserved| is_in_domain(reserved))
}

/// Returns the role of a template's machines: the value of the label [`ROLE_LABEL`], or `worker` if the label is not
/// set.
///
/// # Errors
///
/// Returns the value of the label if it is not a known role.
pub(super) fn machine_role(labels: &BTreeMap<String, String>) -> Result<&'static str, &str> {
    match labels.get(ROLE_LABEL).map(String::as_str) {
        None | Some(WORKER_ROLE) => Ok(WORKER_ROLE),
        Some(CONTROL_PLANE_ROLE) => Ok(CONTROL_PLANE_ROLE),
        Some(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_control_plane_or_worker() {
        let role = |value: &str| {
            let labels = BTreeMap::from([(ROLE_LABEL.to_owned(), value.to_owned())]);
            machine_role(&labels).map_err(str::to_owned)
        };
        assert_eq!(machine_role(&BTreeMap::new()), Ok("worker"));
        assert_eq!(role("worker"), Ok("worker"));
        assert_eq!(role("control-plane"), Ok("control-plane"));
        assert_eq!(role("master"), Err("master".to_owned()));
        assert_eq!(role(""), Err(String::new()));
    }
}
