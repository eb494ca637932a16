//! A Node of a tenant, reduced to the fields that are needed to find, to label and to drain it.

use std::collections::BTreeMap;

use berth_runtime::untrusted::{BoundedMap, BoundedVec, Versioned};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::keys::describes_node_itself;

/// Largest number of bytes of a Node that is stored. A usual Node has less than 4 KiB.
const MAX_NODE_BYTES: usize = 1 << 16;
/// Number of bytes that a stored Node, and each of its labels, needs in addition to its texts.
const NODE_OVERHEAD: usize = 256;
const LABEL_OVERHEAD: usize = 128;
/// Largest number of labels of a Node, and of its field managers. The API server stores at most ten managers of updates.
const MAX_LABELS: usize = 1024;
const MAX_MANAGERS: usize = 128;
/// Largest number of conditions that are read. The kubelet writes five.
const MAX_CONDITIONS: usize = 64;
/// Type of the condition that is true if the kubelet is ready.
const READY: &str = "Ready";
/// Largest length of a name in Kubernetes.
const MAX_NAME_LENGTH: usize = 253;
/// Largest number of characters of a field manager in messages.
const MAX_MANAGER_LENGTH: usize = 64;

/// A Node in an answer of a tenant's API server. Fields that are not needed are not parsed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
    resource_version: String,
    labels: Option<BoundedMap<String, MAX_LABELS>>,
    annotations: Option<Annotations>,
    managed_fields: Option<BoundedVec<FieldsEntry, MAX_MANAGERS>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    /// [`berth_api::names::CORDONED_ANNOTATION`].
    #[serde(rename = "berth.dev/cordoned")]
    cordoned: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    unschedulable: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Option<BoundedVec<NodeCondition, MAX_CONDITIONS>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    last_transition_time: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct FieldsEntry {
    manager: String,
    operation: String,
    subresource: String,
    #[serde(rename = "fieldsV1")]
    fields: Option<Fields>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:metadata")]
    metadata: Option<MetadataFields>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MetadataFields {
    #[serde(rename = "f:labels")]
    labels: Option<BoundedMap<IgnoredAny, MAX_LABELS>>,
}

impl Versioned for NodeObject {
    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl NodeObject {
    /// Returns the name of the Node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

/// A Node of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantNode {
    /// Name of the Node, which is valid as a part of a URL.
    pub name: String,
    /// UID of the Node.
    pub uid: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// Time since which the Node has been ready; `None` if it is not ready.
    pub ready_since: Option<Timestamp>,
    /// `spec.unschedulable`.
    pub is_unschedulable: bool,
    /// True if Berth has cordoned the Node, and has to uncordon it if the removal of its machine is called off.
    pub is_cordoned_by_berth: bool,
    /// Labels of the Node.
    pub labels: BTreeMap<String, NodeLabel>,
}

/// A label of a tenant's Node, and its owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabel {
    /// Value of the label.
    pub value: String,
    /// True if Berth owns the label through an apply.
    pub is_own: bool,
    /// Another manager that owns the label.
    pub other_manager: Option<String>,
}

/// Reason why a Node is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnusableNode {
    /// The name is not a name of an object.
    InvalidName,
    /// The labels, or other fields, are too long.
    TooLarge,
}

impl Status {
    /// Returns the time since which the Node has been ready. An invalid time is one that has passed.
    fn ready_since(self) -> Option<Timestamp> {
        let mut conditions = self.conditions.unwrap_or_default().items.into_iter();
        let ready = conditions.find(|one| one.type_ == READY && one.status == "True")?;
        let time = ready.last_transition_time.and_then(|time| time.parse().ok());
        Some(time.unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

impl TenantNode {
    /// Reads a Node. `own_manager` is the field manager of Berth.
    ///
    /// # Errors
    /// Returns an error if the Node cannot be stored.
    pub fn from_object(object: NodeObject, own_manager: &str) -> Result<Self, UnusableNode> {
        let metadata = object.metadata;
        if !is_valid_name(&metadata.name) {
            return Err(UnusableNode::InvalidName);
        }
        let labels = metadata.labels.unwrap_or_default();
        let managers = metadata.managed_fields.unwrap_or_default();
        if labels.is_truncated || managers.is_truncated {
            return Err(UnusableNode::TooLarge);
        }
        let labels = labels
            .entries
            .into_iter()
            .map(|(key, value)| (key, NodeLabel { value, ..NodeLabel::default() }));
        let spec = object.spec.unwrap_or_default();
        let mut node = Self {
            name: metadata.name,
            uid: metadata.uid,
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            ready_since: object.status.and_then(|status| status.ready_since()),
            is_unschedulable: spec.unschedulable == Some(true),
            is_cordoned_by_berth: metadata.annotations.is_some_and(|all| all.cordoned.is_some()),
            labels: labels.collect(),
        };
        for entry in managers.items {
            node.add_owner(&entry, own_manager);
        }
        // Labels that are never copied need no memory.
        node.labels.retain(|key, label| label.is_own || !describes_node_itself(key));
        if node.byte_count() > MAX_NODE_BYTES { Err(UnusableNode::TooLarge) } else { Ok(node) }
    }

    fn add_owner(&mut self, entry: &FieldsEntry, own_manager: &str) {
        let fields = entry.fields.as_ref().and_then(|fields| fields.metadata.as_ref());
        let is_own = entry.manager == own_manager
            && entry.operation == "Apply"
            && entry.subresource.is_empty();
        let labels = fields.and_then(|fields| fields.labels.as_ref());
        for path in labels.into_iter().flat_map(|labels| labels.entries.keys()) {
            let Some(label) = path.strip_prefix("f:").and_then(|key| self.labels.get_mut(key))
            else {
                continue;
            };
            if is_own {
                label.is_own = true;
            } else if label.other_manager.is_none() {
                label.other_manager = Some(printable(&entry.manager));
            }
        }
    }

    /// Returns the approximate number of bytes of the Node.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        let labels = self.labels.iter().map(|(key, label)| {
            let manager = label
                .other_manager
                .as_ref()
                .map_or(LABEL_OVERHEAD, |one| LABEL_OVERHEAD.saturating_add(one.len()));
            key.len().saturating_add(label.value.len()).saturating_add(manager)
        });
        let id = self.provider_id.as_ref().map_or(0, String::len);
        let fixed = self.name.len().saturating_add(self.uid.len()).saturating_add(id);
        labels.fold(fixed.saturating_add(NODE_OVERHEAD), |sum, length| sum.saturating_add(length))
    }

    /// Returns the labels that Berth owns.
    pub fn own_labels(&self) -> impl Iterator<Item = (&String, &NodeLabel)> {
        self.labels.iter().filter(|(_, label)| label.is_own)
    }
}

/// Returns true for a name of an object, which is then valid as a part of a URL.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !name.is_empty()
        && name.len() <= MAX_NAME_LENGTH
        && !name.starts_with('.')
        && !name.contains("..")
        && name.chars().all(is_valid)
}

/// Returns the part of a field manager's name that can be shown in messages.
fn printable(manager: &str) -> String {
    let shown = manager.chars().filter(char::is_ascii_graphic).take(MAX_MANAGER_LENGTH).collect();
    if manager.is_empty() { "an unknown manager".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read(object: Value) -> Result<TenantNode, UnusableNode> {
        TenantNode::from_object(serde_json::from_value(object).unwrap(), "berth-controller")
    }

    #[test]
    fn labels_have_their_owners() {
        let entry = |manager: &str, operation: &str, labels: Value| {
            json!({
                "manager": manager, "operation": operation, "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": labels}, "f:spec": {"f:taints": {}}},
            })
        };
        let node = read(json!({
            "metadata": {
                "name": "web-1", "uid": "u", "labels": {"a": "1", "b": "2", "c": "3"},
                "managedFields": [
                    entry("berth-controller", "Apply", json!({"f:a": {}, "f:b": {}, "f:gone": {}})),
                    entry("kubelet", "Update", json!({".": {}, "f:b": {}})),
                    {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": null},
                ],
            },
            "spec": {"providerID": "kubevirt://web-1", "taints": [{"key": "x"}]},
            "status": {"images": [1, 2]},
        }))
        .unwrap();
        assert_eq!(node.provider_id.as_deref(), Some("kubevirt://web-1"));
        let own: Vec<&str> = node.own_labels().map(|(key, _)| key.as_str()).collect();
        assert_eq!(own, ["a", "b"]);
        assert_eq!(node.labels["b"].other_manager.as_deref(), Some("kubelet"));
        assert_eq!(node.labels["c"], NodeLabel { value: "3".to_owned(), ..Default::default() });
    }

    #[test]
    fn readiness_and_cordoning_are_read() {
        let node = |annotations: Value, status: &str| {
            let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": "2026-05-01T12:00:00Z"});
            read(json!({
                "metadata": {"name": "a", "annotations": annotations}, "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "DiskPressure", "status": "True"}, ready]},
            }))
            .unwrap()
        };
        let cordoned = node(json!({berth_api::names::CORDONED_ANNOTATION: "removal"}), "True");
        assert_eq!(cordoned.ready_since, Some("2026-05-01T12:00:00Z".parse().unwrap()));
        assert!(cordoned.is_unschedulable && cordoned.is_cordoned_by_berth);
        let other = node(json!({"a": "b"}), "Unknown");
        assert_eq!((other.ready_since, other.is_cordoned_by_berth), (None, false));
    }

    #[test]
    fn an_update_of_the_same_manager_is_no_apply() {
        let node = read(json!({"metadata": {"name": "a", "labels": {"k": "v"}, "managedFields": [
            {"manager": "berth-controller", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:k": {}}}}},
        ]}}));
        assert_eq!(node.unwrap().labels["k"].other_manager.as_deref(), Some("berth-controller"));
    }

    #[test]
    fn hostile_nodes_are_not_stored() {
        for name in ["", "a/b", "..", "a..b", "A", "a?x", "a%2f"] {
            let node = read(json!({"metadata": {"name": name}}));
            assert_eq!(node, Err(UnusableNode::InvalidName), "{name}");
        }
        let long = "x".repeat(MAX_NODE_BYTES);
        let node = read(json!({"metadata": {"name": "a", "labels": {"k": long}}}));
        assert_eq!(node, Err(UnusableNode::TooLarge));
        let many: BTreeMap<String, &str> =
            (0..=MAX_LABELS).map(|number| (format!("k{number}"), "")).collect();
        for metadata in [
            json!({"name": "a", "labels": many}),
            json!({"name": "a", "managedFields": vec![json!({}); MAX_MANAGERS + 1]}),
        ] {
            assert_eq!(read(json!({"metadata": metadata})), Err(UnusableNode::TooLarge));
        }
        let manager = format!("a\n\u{202e}{}", "b".repeat(500));
        assert_eq!(printable(&manager).len(), MAX_MANAGER_LENGTH);
    }

    proptest! {
        #[test]
        fn any_text_gives_a_node_or_an_error(text in "\\PC{0,80}") {
            if let Ok(object) = serde_json::from_str::<NodeObject>(&text) {
                drop(TenantNode::from_object(object, "x"));
            }
        }
    }
}
