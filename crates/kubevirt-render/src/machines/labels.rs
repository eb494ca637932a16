//! Labels and annotations of a template that its machines may have. KubeVirt copies both to the launcher pod, where some
//! act with more rights than the tenant's.

use berth_api::InfraConfigSpec;
use berth_api::names::MANAGED_BY;

/// Annotations of a disk that control how CDI imports, and nothing else.
const OF_DISKS: [&str; 3] = [
    "cdi.kubevirt.io/storage.bind.immediate.requested",
    "cdi.kubevirt.io/storage.deleteAfterCompletion",
    "cdi.kubevirt.io/storage.usePopulator",
];
/// Domains whose labels controllers act on; their subdomains too.
const RESERVED: [&str; 8] = [
    "berth.dev",
    "cluster.x-k8s.io",
    "cncf.io",
    "k8s.io",
    "kubermatic.k8c.io",
    "kubernetes.io",
    "kubevirt.io",
    "openshift.io",
];
/// Labels in a reserved domain that Kubernetes recommends for users' own objects.
const RECOMMENDED: &str = "app.kubernetes.io";

/// Whether a template may set an annotation. One without a prefix is the user's own (Kubernetes: "private to the user"),
/// and nothing acts on it. `prefixes` are InfraConfig's.
///
/// Others may act with a host's rights: `hooks.kubevirt.io/hookSidecars` runs any image in the launcher pod, and
/// `v1.multus-cni.io/default-network` and `k8s.v1.cni.cncf.io/networks` attach it to networks of other tenants.
pub(super) fn permits_annotation(key: &str, prefixes: &[String]) -> bool {
    !key.contains('/')
        || OF_DISKS.contains(&key)
        || prefixes.iter().any(|prefix| {
            InfraConfigSpec::is_annotation_prefix(prefix) && key.starts_with(prefix.as_str())
        })
}

/// Whether a template may set a label. Selectors act on labels: of KubeVirt's and Berth's controllers, and of the
/// NetworkPolicy that lets CDI's importer out.
pub(super) fn permits_label(key: &str, value: &str) -> bool {
    if key == MANAGED_BY.0 {
        return value != MANAGED_BY.1;
    }
    if key == "app" {
        return !value.starts_with("containerized-data-");
    }
    // CDI has a label that is a domain alone: `cdi.kubevirt.io: importer`.
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let is_below = |reserved: &str| {
        domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    domain == RECOMMENDED || !RESERVED.iter().any(|reserved| is_below(reserved))
}
