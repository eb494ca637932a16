//! Objects in the cluster that a thief may try to change.

use std::collections::BTreeMap;

use berth_tests::cluster::Version;
use serde_json::{Value, json};

use crate::attempts::Attempt;
use crate::objects::{EVENTS, INFRA_NODES, LEASES, TOPOLOGIES};
use crate::request::{delete, get, merge_patch, put};
use crate::test_cluster::TestCluster;

const COLLECTIONS: [&str; 7] = [
    "/api/v1/nodes",
    "/api/v1/namespaces/berth-system/pods",
    "/api/v1/namespaces/default/configmaps",
    INFRA_NODES,
    LEASES,
    EVENTS,
    TOPOLOGIES,
];

/// Objects by path, without fields that change with each write, and the managers of the objects' fields. The managers
/// of the agent and of curl are left out, because the thief and the administrator write with these names.
pub(crate) struct ClusterSnapshot {
    objects: BTreeMap<String, Value>,
    managers: BTreeMap<String, Vec<Value>>,
}

impl PartialEq for ClusterSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.objects == other.objects
    }
}

/// First Kubernetes version that ignores the managedFields of a request for a subresource, and keeps those of the live
/// object. Verified with 1.36.
const MANAGED_FIELDS_SINCE: Version = Version(1, 30);

impl ClusterSnapshot {
    pub(crate) fn read(test_cluster: &TestCluster<'_>) -> Self {
        let lists = test_cluster.client.get_all(&test_cluster.admin_credential, &COLLECTIONS);
        let (mut all, mut holders) = (BTreeMap::new(), BTreeMap::new());
        for (collection, mut list) in COLLECTIONS.iter().zip(lists) {
            for mut object in list["items"].as_array_mut().unwrap().drain(..) {
                let metadata = object["metadata"].as_object_mut().unwrap();
                let path = format!("{collection}/{}", metadata["name"].as_str().unwrap());
                let managers_of_object =
                    metadata.get("managedFields").and_then(Value::as_array).cloned();
                let mut managers_of_object = managers_of_object.unwrap_or_default();
                managers_of_object
                    .retain(|one| one["manager"] != "curl" && one["manager"] != "berth-agent");
                managers_of_object.iter_mut().for_each(|one| drop(one["time"].take()));
                // Older servers also accept the managedFields of a request for a subresource; no policy prevents
                // this there.
                if test_cluster.version() >= MANAGED_FIELDS_SINCE {
                    holders.insert(path.clone(), managers_of_object);
                }
                for counted in ["managedFields", "resourceVersion", "generation"] {
                    metadata.remove(counted);
                }
                all.insert(path, object);
            }
        }
        Self { objects: all, managers: holders }
    }

    /// Returns true if the same managers own the same fields of the objects that existed before.
    pub(crate) fn has_same_managers(&self, before: &Self) -> bool {
        before.managers.iter().all(|(path, held)| self.managers.get(path) == Some(held))
    }

    /// Returns true if the object of an attempt has the values that the attempt expects.
    pub(crate) fn has_expected_values(&self, attempt: &Attempt) -> bool {
        let path = attempt.request.path.split('?').next().unwrap_or_default();
        let object = self.objects.get(path.trim_end_matches("/status")).unwrap_or(&Value::Null);
        let found = |pointer| object.pointer(pointer).unwrap_or(&Value::Null);
        attempt.expected_values.iter().all(|(pointer, value)| found(pointer) == value)
    }

    pub(crate) fn without_status(&self) -> Self {
        let mut all = self.objects.clone();
        for object in all.values_mut() {
            object["status"].take();
        }
        Self { objects: all, managers: BTreeMap::new() }
    }

    /// Returns the parts that no agent ever writes: specs and finalizers of Nodes and InfraNodes that existed
    /// before the attempt.
    pub(crate) fn protected_parts(&self, before: &Self) -> BTreeMap<&str, [&Value; 2]> {
        let guarded =
            |path: &str| path.starts_with("/api/v1/nodes/") || path.starts_with(INFRA_NODES);
        let objects = self
            .objects
            .iter()
            .filter(|(path, _)| guarded(path) && before.objects.contains_key(*path));
        objects
            .map(|(path, object)| (&**path, [&object["spec"], &object["metadata"]["finalizers"]]))
            .collect()
    }

    /// Returns the paths of the values that differ, for an error message.
    pub(crate) fn difference(&self, after: &Self) -> String {
        let paths = self
            .objects
            .keys()
            .chain(after.objects.keys().filter(|path| !self.objects.contains_key(*path)));
        let lines =
            paths.filter(|path| self.objects.get(*path) != after.objects.get(*path)).map(|path| {
                let text = |state: &Self| {
                    state.objects.get(path).map(Value::to_string).unwrap_or_default()
                };
                format!("  {path}\n  - {}\n  + {}\n", text(self), text(after))
            });
        lines.collect()
    }

    /// Restores the former state of the cluster as administrator.
    pub(crate) fn restore(&self, test_cluster: &TestCluster<'_>) {
        let send = |request| {
            test_cluster.client.send(&test_cluster.admin_credential, &request).into_body()
        };
        for (path, object) in &Self::read(test_cluster).objects {
            match self.objects.get(path) {
                Some(before) if before == object => {}
                Some(before) => {
                    let mut parts = vec![path.clone()];
                    if !before["status"].is_null() || !object["status"].is_null() {
                        parts.push(format!("{path}/status"));
                    }
                    for part in parts {
                        let mut before = before.clone();
                        before["metadata"]["resourceVersion"] =
                            send(get(path))["metadata"]["resourceVersion"].take();
                        send(put(&part, before));
                    }
                }
                None => {
                    if object["metadata"]["finalizers"].is_array() {
                        send(merge_patch(path, json!({"metadata": {"finalizers": null}})));
                    }
                    send(delete(path));
                }
            }
        }
        let current = Self::read(test_cluster);
        assert!(
            *self == current,
            "the state differs from the state before the attempt:\n{}",
            self.difference(&current)
        );
    }
}
