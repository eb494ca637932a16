//! Classification of objects by kind: placement ignores some kinds, and an object whose kind or apiVersion is
//! probably a mistake is left out.

use serde_json::Value;

use berth_api::Problem;
use berth_kubevirt_render::machines::{MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND};

/// Kinds that placement reads, with their groups; the name of the core group is empty. Dumps of clusters also contain
/// kinds of the same names in the groups of other projects (Longhorn has a Node, Cluster API has a
/// MachineDeployment).
const PLACEMENT_KINDS: [(&str, &str); 30] = [
    ("InfraNode", BERTH_GROUP),
    ("HostProfile", BERTH_GROUP),
    ("TenantCluster", BERTH_GROUP),
    ("InfraConfig", BERTH_GROUP),
    ("VlanClaim", BERTH_GROUP),
    (MACHINE_DEPLOYMENT_KIND, MACHINE_DEPLOYMENT_GROUP),
    ("Node", ""),
    ("Pod", ""),
    ("Namespace", ""),
    ("ResourceQuota", ""),
    ("Secret", ""),
    ("ConfigMap", ""),
    ("PersistentVolume", ""),
    ("PersistentVolumeClaim", ""),
    ("RuntimeClass", "node.k8s.io"),
    ("StorageClass", "storage.k8s.io"),
    ("CSIDriver", "storage.k8s.io"),
    ("CSIStorageCapacity", "storage.k8s.io"),
    ("StorageProfile", "cdi.kubevirt.io"),
    ("CDI", "cdi.kubevirt.io"),
    ("DataVolume", "cdi.kubevirt.io"),
    ("VolumeSnapshotClass", "snapshot.storage.k8s.io"),
    ("NetworkAttachmentDefinition", "k8s.cni.cncf.io"),
    ("VirtualMachine", "kubevirt.io"),
    ("VirtualMachineInstance", "kubevirt.io"),
    ("KubeVirt", "kubevirt.io"),
    ("VirtualMachineInstancetype", INSTANCETYPE_GROUP),
    ("VirtualMachineClusterInstancetype", INSTANCETYPE_GROUP),
    ("VirtualMachinePreference", INSTANCETYPE_GROUP),
    ("VirtualMachineClusterPreference", INSTANCETYPE_GROUP),
];
/// API group of Berth's kinds.
const BERTH_GROUP: &str = "berth.dev";
/// API group of KubeVirt's instance types and preferences.
const INSTANCETYPE_GROUP: &str = "instancetype.kubevirt.io";

/// Kinds of the core group (Kubernetes API reference, `v1`). The list is complete, so any other kind in this group is
/// misspelt.
const CORE_KINDS: [&str; 23] = [
    "Binding",
    "ComponentStatus",
    "ConfigMap",
    "Endpoints",
    "Event",
    "LimitRange",
    "List",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "ResourceQuota",
    "Secret",
    "SerializedReference",
    "Service",
    "ServiceAccount",
    "Status",
    "PodStatusResult",
    "RangeAllocation",
    "NodeProxyOptions",
];

/// Kinds of Berth that placement does not read.
const OTHER_BERTH_KINDS: [&str; 5] =
    ["AddressClaim", "HostLeases", "PrefixClaim", "TenantQuota", "TenantRequest"];

/// Groups of Kubernetes whose names contain no dot. All other group names contain a dot, because the group of a
/// CustomResourceDefinition must be a domain name.
const DOTLESS_GROUPS: [&str; 5] = ["apps", "batch", "autoscaling", "policy", "extensions"];

/// Returns the group of an `apiVersion`; empty for the core group.
pub(super) fn group_of_api_version(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// Formats a kind with its group, as `kubectl api-resources` does: `kind.group`.
pub(super) fn format_kind(kind: &str, group: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

/// Returns the value at a path of field names, such as `/metadata/name`. The path must not contain escape sequences or
/// positions in lists. [`Value::pointer`] supports both, but allocates two strings for each field name.
pub(super) fn value_at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('/').skip(1).try_fold(object, |value, field| value.get(field))
}

/// Returns the string at a path of field names, as in [`value_at`]; an empty string if there is none.
pub(super) fn string_at<'a>(object: &'a Value, path: &str) -> &'a str {
    value_at(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// Checks the kind and apiVersion of an object.
///
/// # Errors
/// Returns an error with the object and the field if the object must be left out because of a mistake.
pub(crate) fn check_kind(location: &str, object: &Value) -> Result<(), Problem> {
    let kind = string_at(object, "/kind");
    let describe_object = || {
        let (namespace, name) =
            (string_at(object, "/metadata/namespace"), string_at(object, "/metadata/name"));
        let qualified_name =
            if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        format!("{location}: {kind} {qualified_name}").trim_end().to_owned()
    };
    let reject = |field: &str, value: &str, message: String| {
        Err(Problem::new(describe_object(), field, value, message).into_fatal("left out"))
    };
    let version = match object.get("apiVersion") {
        None | Some(Value::Null) => "",
        Some(Value::String(version)) => version.as_str(),
        Some(other) => {
            return reject("apiVersion", &other.to_string(), "is not a string".to_owned());
        }
    };
    let mut expected =
        PLACEMENT_KINDS.iter().filter(|(known, _)| *known == kind).map(|(_, group)| *group);
    let expected = expected.next().map_or_else(String::new, |group| match group {
        "" => " (expected: v1)".to_owned(),
        group => format!(" (expected: group {group})"),
    });
    if version.is_empty() {
        return reject("apiVersion", "", format!("is missing{expected}"));
    }
    let group = group_of_api_version(version);
    let parts = version.split('/').count();
    let is_bare = !group.is_empty() && !group.contains('.') && !DOTLESS_GROUPS.contains(&group);
    if parts > 2 || version.split('/').any(str::is_empty) || is_bare {
        return reject("apiVersion", version, format!("is not a group and version{expected}"));
    }
    let is_known = match group {
        "" => CORE_KINDS.contains(&kind),
        BERTH_GROUP => {
            PLACEMENT_KINDS.contains(&(kind, BERTH_GROUP)) || OTHER_BERTH_KINDS.contains(&kind)
        }
        _ => true,
    };
    if !is_known {
        return reject("kind", kind, format!("there is no such kind in {version}{expected}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unsupported_kinds_are_reported() {
        for (object, words) in [
            (
                json!({"kind": "Node", "metadata": {"name": "a"}}),
                "f: Node a: apiVersion: is missing (expected: v1)",
            ),
            (
                json!({"kind": "VirtualMachine", "metadata": {"namespace": "s", "name": "w"}}),
                "VirtualMachine s/w: apiVersion: is missing (expected: group kubevirt.io)",
            ),
            (json!({"kind": "Thing"}), "f: Thing: apiVersion: is missing; left out"),
            (json!({"kind": "Node", "apiVersion": 1}), "apiVersion: `1`: is not a string"),
            (
                json!({"kind": "VirtualMachine", "apiVersion": "v1"}),
                "kind: `VirtualMachine`: there is no such kind in v1",
            ),
            (
                json!({"kind": "InfraNodes", "apiVersion": "berth.dev/v1alpha1"}),
                "kind: `InfraNodes`: there is no such",
            ),
            (
                json!({"kind": "VirtualMachine", "apiVersion": "kubevirt/v1"}),
                "apiVersion: `kubevirt/v1`: is not a group",
            ),
            (
                json!({"kind": "Pod", "apiVersion": "a.b/v1/x"}),
                "`a.b/v1/x`: is not a group and version",
            ),
            (json!({"kind": "Pod", "apiVersion": "/v1"}), "`/v1`: is not a group and version"),
        ] {
            let problem = check_kind("f", &object).unwrap_err();
            assert!(problem.is_fatal && problem.to_string().contains(words), "{problem}");
        }
    }

    #[test]
    fn all_kinds_of_berth_are_known() {
        for crd in berth_api::all_crds() {
            let names = crd.spec.names;
            let object = json!({"kind": names.kind, "apiVersion": "berth.dev/v1alpha1"});
            assert!(check_kind("f", &object).is_ok(), "{object}");
        }
    }

    #[test]
    fn values_are_found_by_path() {
        let object = json!({"kind": "A", "metadata": {"name": "a", "finalizers": ["b"]}});
        for path in ["/kind", "/metadata/name", "/metadata", "/name", "/metadata/name/b", ""] {
            assert_eq!(value_at(&object, path), object.pointer(path), "{path}");
        }
        assert_eq!(string_at(&object, "/metadata/name"), "a");
        assert_eq!(string_at(&object, "/metadata/finalizers"), "");
    }

    #[test]
    fn irrelevant_kinds_are_not_reported() {
        for (kind, version) in [
            ("Service", "v1"),
            ("Deployment", "apps/v1"),
            ("PodDisruptionBudget", "policy/v1"),
            ("Node", "longhorn.io/v1beta2"),
            ("MachineDeployment", "cluster.x-k8s.io/v1beta1"),
            ("VirtualMachineInstanceMigration", "kubevirt.io/v1"),
            ("VirtualMachineClusterPreference", "instancetype.kubevirt.io/v1beta1"),
        ] {
            check_kind("f", &json!({"kind": kind, "apiVersion": version})).unwrap();
        }
        assert_eq!(format_kind("Node", group_of_api_version("longhorn.io/v1")), "Node.longhorn.io");
        assert_eq!(format_kind("Service", group_of_api_version("v1")), "Service");
    }
}
