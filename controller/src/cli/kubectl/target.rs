//! Finds the machine that a user names: a VirtualMachine, a VirtualMachineInstance, or a launcher pod.

use std::collections::BTreeSet;

use berth_views::{ObjectName, Snapshot};

/// Maximum number of machines that a message names.
const MAX_NAMES: usize = 5;

/// Reason why the machine is not found.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error(
        "machine {name} does not exist, or may not be read: `kubectl berth machines` shows all; \
         -n NAMESPACE selects a namespace"
    )]
    NotFound { name: String },
    #[error("several machines have the name {name}: specify one of {}", .all.join(", "))]
    Ambiguous { name: String, all: Vec<String> },
}

/// Splits `NAME` or `NAMESPACE/NAME` into the namespace and the name.
pub(super) fn split_name(wanted: &str) -> (Option<&str>, &str) {
    match wanted.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, wanted),
    }
}

/// Returns the machine with a name, `NAME` or `NAMESPACE/NAME`. `namespace` limits the search.
///
/// # Errors
/// Returns an error if no machine has the name, or if machines of several namespaces have it.
pub(super) fn find_machine(
    snapshot: &Snapshot,
    wanted: &str,
    namespace: Option<&str>,
) -> Result<ObjectName, TargetError> {
    let (named, name) = split_name(wanted);
    let namespace = named.or(namespace);
    let is_wanted = |one: &&ObjectName| {
        one.name == name && namespace.is_none_or(|namespace| one.namespace == namespace)
    };
    let machines = snapshot.machines.keys().chain(snapshot.instances.keys());
    let mut found: BTreeSet<ObjectName> = machines.filter(is_wanted).cloned().collect();
    if found.is_empty() {
        let pods = snapshot.pods.iter().filter(|(pod, _)| is_wanted(pod));
        found.extend(pods.filter_map(|(pod, fields)| {
            Some(ObjectName::new(pod.namespace.as_str(), fields.vm.clone()?))
        }));
    }
    let name = || wanted.to_owned();
    if found.len() > 1 {
        let all = found.iter().take(MAX_NAMES).map(ToString::to_string).collect();
        return Err(TargetError::Ambiguous { name: name(), all });
    }
    found.into_iter().next().ok_or_else(|| TargetError::NotFound { name: name() })
}

#[cfg(test)]
mod tests {
    use berth_views::Kind;
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_are_found_by_their_names_and_pods() {
        let mut snapshot = Snapshot::default();
        for (namespace, name) in
            [("cluster-a", "web-1"), ("cluster-b", "web-1"), ("cluster-a", "db")]
        {
            let vm = json!({"metadata": {"namespace": namespace, "name": name}});
            snapshot.add(Kind::VirtualMachine, &vm);
        }
        let pod = json!({"metadata": {
            "namespace": "cluster-a", "name": "virt-launcher-db-x", "labels": {"vm.kubevirt.io/name": "db"},
        }});
        snapshot.add(Kind::LauncherPod, &pod);
        let find = |name: &str, namespace| {
            find_machine(&snapshot, name, namespace).map(|found| found.to_string())
        };
        assert_eq!(find("db", None).unwrap(), "cluster-a/db");
        assert_eq!(find("virt-launcher-db-x", None).unwrap(), "cluster-a/db");
        assert_eq!(find("web-1", Some("cluster-b")).unwrap(), "cluster-b/web-1");
        assert_eq!(find("cluster-a/web-1", None).unwrap(), "cluster-a/web-1");
        let ambiguous = find("web-1", None).unwrap_err().to_string();
        assert!(ambiguous.contains("cluster-a/web-1, cluster-b/web-1"), "{ambiguous}");
        assert!(matches!(find("x", None), Err(TargetError::NotFound { .. })));
    }
}
