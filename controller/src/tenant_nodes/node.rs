//! A Node in a tenant's cluster, reduced to the fields that are needed to find the Node of a machine, to copy fields of
//! the host to it, and to drain it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use berth_api::names::{CORDONED_ANNOTATION, REPLICATED_TAINTS_ANNOTATION};
use berth_runtime::object_name::is_valid_name;
use berth_runtime::untrusted::{BoundedMap, BoundedVec, Versioned};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::keys::FieldKind;
use super::replicated_taint::{NodeTaint, parse_recorded};
use crate::tenant_object::{FieldsEntry, MAX_FIELDS, TenantMetadata, printable_manager};

/// Maximum size of a stored Node in bytes. A Node usually has less than 4 KiB.
const MAX_NODE_BYTES: usize = 1 << 16;
/// Memory that each stored Node needs, in bytes, in addition to its texts and to its labels, annotations and taints.
const NODE_OVERHEAD: usize = 256;
/// Memory that each label, annotation and taint of a stored Node needs, in bytes, in addition to its texts.
const FIELD_OVERHEAD: usize = 128;
/// Maximum number of taints of a Node that are read.
const MAX_TAINTS: usize = 256;
/// Maximum length of a stored value, in bytes. Of a longer value, only a digest is stored, which is sufficient for
/// comparisons.
const MAX_VALUE_LENGTH: usize = 128;
/// Maximum number of conditions of a Node that are read. The kubelet writes five.
const MAX_CONDITIONS: usize = 64;
/// Type of the condition that is true if the kubelet is ready.
const READY: &str = "Ready";

/// A Node in an answer of a tenant's API server. Only the fields that are needed are parsed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    metadata: TenantMetadata<Fields>,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    taints: Option<BoundedVec<NodeTaint, MAX_TAINTS>>,
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
struct Fields {
    #[serde(rename = "f:metadata")]
    metadata: Option<MetadataFields>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MetadataFields {
    #[serde(rename = "f:labels")]
    labels: Option<BoundedMap<IgnoredAny, MAX_FIELDS>>,
    #[serde(rename = "f:annotations")]
    annotations: Option<BoundedMap<IgnoredAny, MAX_FIELDS>>,
}

impl Versioned for NodeObject {
    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl NodeObject {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    #[must_use]
    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// Returns `spec.providerID`.
    #[must_use]
    pub fn provider_id(&self) -> Option<&str> {
        self.spec.as_ref()?.provider_id.as_deref()
    }

    /// Returns the taints of the Node, at most 256.
    #[must_use]
    pub fn taints(&self) -> &[NodeTaint] {
        let taints = self.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        taints.map(|taints| taints.items.as_slice()).unwrap_or_default()
    }

    /// Returns the taints that Berth has added, which an annotation of the Node lists.
    #[must_use]
    pub fn recorded_taints(&self) -> BTreeSet<NodeTaint> {
        let recorded = self.metadata.annotation(REPLICATED_TAINTS_ANNOTATION);
        recorded.map(parse_recorded).unwrap_or_default()
    }

    /// Returns true if an annotation of the Node records that Berth has cordoned it.
    fn is_cordoned_by_berth(&self) -> bool {
        self.metadata.annotation(CORDONED_ANNOTATION).is_some()
    }

    /// Returns true if the Node has annotations.
    #[must_use]
    pub fn has_annotations(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|all| !all.entries.is_empty())
    }

    fn is_truncated(&self) -> bool {
        let taints = self.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        self.metadata.is_truncated() || taints.is_some_and(|taints| taints.is_truncated)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantNode {
    /// Name of the Node, which is valid as a path segment of a URL.
    pub name: String,
    pub uid: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// Time since which the Node has been ready; `None` if it is not ready.
    pub ready_since: Option<Timestamp>,
    /// `spec.unschedulable`.
    pub is_unschedulable: bool,
    /// True if Berth has cordoned the Node, and has to uncordon it if the removal of its machine is cancelled.
    pub is_cordoned_by_berth: bool,
    pub labels: BTreeMap<String, NodeField>,
    pub annotations: BTreeMap<String, NodeField>,
    /// Taints of the Node, except those with keys that are never copied.
    pub taints: BTreeSet<NodeTaint>,
    /// Taints that Berth has added, which an annotation of the Node lists.
    pub recorded_taints: BTreeSet<NodeTaint>,
}

/// A label or an annotation of a tenant's Node, and its owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeField {
    /// Value of the label. For an annotation, the result of [`value_or_digest`].
    pub value: String,
    /// True if Berth owns the field through an apply.
    pub is_own: bool,
    /// Another manager that owns the field; `None` if there is none.
    pub other_manager: Option<String>,
}

/// Returns the value itself, or the digest of a long value, because annotations may have 256 KiB.
#[must_use]
pub fn value_or_digest(value: &str) -> Cow<'_, str> {
    if value.len() <= MAX_VALUE_LENGTH {
        return value.into();
    }
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{} bytes, digest {:016x}", value.len(), hasher.finish()).into()
}

/// Reason why a Node is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnusableNode {
    /// The name is not a name of an object.
    InvalidName,
    /// The Node has too many bytes.
    TooLarge,
}

impl Status {
    /// Returns the time since which the Node has been ready; `None` if the Node is not ready. If the time in the
    /// condition is invalid, a time in the distant past is returned.
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
        if !is_valid_name(object.name()) {
            return Err(UnusableNode::InvalidName);
        }
        if object.is_truncated() {
            return Err(UnusableNode::TooLarge);
        }
        let recorded_taints = object.recorded_taints();
        let is_cordoned_by_berth = object.is_cordoned_by_berth();
        let kept = object.taints().iter().filter(|taint| {
            recorded_taints.contains(*taint) || !FieldKind::Taint.describes_node_itself(&taint.key)
        });
        let taints = kept.cloned().collect();
        let metadata = object.metadata;
        let spec = object.spec.unwrap_or_default();
        let field = |value: String| NodeField { value, ..NodeField::default() };
        let labels = metadata.labels.unwrap_or_default().entries.into_iter();
        let annotations = metadata.annotations.unwrap_or_default().entries.into_iter();
        let mut node = Self {
            name: metadata.name,
            uid: metadata.uid,
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            ready_since: object.status.and_then(|status| status.ready_since()),
            is_unschedulable: spec.unschedulable == Some(true),
            is_cordoned_by_berth,
            labels: labels.map(|(key, value)| (key, field(value))).collect(),
            annotations: annotations
                .map(|(key, value)| (key, field(value_or_digest(&value).into_owned())))
                .collect(),
            taints,
            recorded_taints,
        };
        for entry in metadata.managed_fields.unwrap_or_default().items {
            node.add_owner(&entry, own_manager);
        }
        // Fields with keys that are never copied are not stored.
        let is_kept = |kind: FieldKind| {
            move |key: &String, field: &mut NodeField| {
                field.is_own || !kind.describes_node_itself(key)
            }
        };
        node.labels.retain(is_kept(FieldKind::Label));
        node.annotations.retain(is_kept(FieldKind::Annotation));
        if node.byte_count() > MAX_NODE_BYTES { Err(UnusableNode::TooLarge) } else { Ok(node) }
    }

    fn add_owner(&mut self, entry: &FieldsEntry<Fields>, own_manager: &str) {
        let Some(owned) = entry.fields.as_ref().and_then(|fields| fields.metadata.as_ref()) else {
            return;
        };
        let is_own = entry.is_applied_by(own_manager);
        let both = [(&owned.labels, &mut self.labels), (&owned.annotations, &mut self.annotations)];
        for (paths, fields) in both {
            for path in paths.iter().flat_map(|paths| paths.entries.keys()) {
                let key = path.strip_prefix("f:");
                let Some(field) = key.and_then(|key| fields.get_mut(key)) else { continue };
                if is_own {
                    field.is_own = true;
                } else if field.other_manager.is_none() {
                    field.other_manager = Some(printable_manager(&entry.manager));
                }
            }
        }
    }

    /// Returns the approximate size of the Node in memory, in bytes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        let fields = self.labels.iter().chain(&self.annotations).map(|(key, field)| {
            [key.len(), field.value.len(), field.other_manager.as_ref().map_or(0, String::len)]
        });
        let taints = self.taints.iter().chain(&self.recorded_taints);
        let taints = taints.map(|taint| [taint.key.len(), taint.effect.len(), taint.value.len()]);
        let id = self.provider_id.as_ref().map_or(0, String::len);
        let fixed = self.name.len().saturating_add(self.uid.len()).saturating_add(id);
        fields.chain(taints).fold(fixed.saturating_add(NODE_OVERHEAD), |sum, lengths| {
            lengths.into_iter().fold(sum.saturating_add(FIELD_OVERHEAD), usize::saturating_add)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::tenant_object::{MAX_MANAGER_LENGTH, MAX_MANAGERS};

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
                    entry("berth-controller", "Apply", json!({"f:a": {}, "f:b": {}, "f:deleted": {}})),
                    entry("kubelet", "Update", json!({".": {}, "f:b": {}})),
                    {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": null},
                ],
            },
            "spec": {"providerID": "kubevirt://web-1", "taints": [{"key": "x"}]},
            "status": {"images": [1, 2]},
        }))
        .unwrap();
        assert_eq!(node.provider_id.as_deref(), Some("kubevirt://web-1"));
        let own = node.labels.iter().filter(|(_, label)| label.is_own);
        assert_eq!(own.map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(node.labels["b"].other_manager.as_deref(), Some("kubelet"));
        assert_eq!(node.labels["c"], NodeField { value: "3".to_owned(), ..Default::default() });
    }

    #[test]
    fn annotations_and_taints_are_read() {
        let annotations = json!({
            REPLICATED_TAINTS_ANNOTATION: "gpu:NoSchedule", "example.com/a": "x".repeat(200),
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        });
        let fields = json!({"f:metadata": {"f:annotations": {"f:example.com/a": {}}}});
        let owner =
            json!({"manager": "berth-controller", "operation": "Apply", "fieldsV1": fields});
        let node = read(json!({
            "metadata": {"name": "web-1", "annotations": annotations, "managedFields": [owner]},
            "spec": {"taints": [
                {"key": "gpu", "effect": "NoSchedule", "timeAdded": null},
                {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
            ]},
        }))
        .unwrap();
        assert_eq!(node.annotations.keys().collect::<Vec<_>>(), ["example.com/a"]);
        assert!(node.annotations["example.com/a"].is_own);
        assert!(node.annotations["example.com/a"].value.starts_with("200 bytes, digest"));
        assert_eq!(node.taints, node.recorded_taints);
        assert_eq!(node.taints.len(), 1);
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
        let cordoned = node(json!({CORDONED_ANNOTATION: "removal"}), "True");
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
            (0..=MAX_FIELDS).map(|number| (format!("k{number}"), "")).collect();
        for metadata in [
            json!({"name": "a", "labels": many}),
            json!({"name": "a", "annotations": many}),
            json!({"name": "a", "managedFields": vec![json!({}); MAX_MANAGERS + 1]}),
        ] {
            assert_eq!(read(json!({"metadata": metadata})), Err(UnusableNode::TooLarge));
        }
        let taints = vec![json!({"key": "a"}); MAX_TAINTS + 1];
        let node = read(json!({"metadata": {"name": "a"}, "spec": {"taints": taints}}));
        assert_eq!(node, Err(UnusableNode::TooLarge));
        let manager = format!("a\n\u{202e}{}", "b".repeat(500));
        assert_eq!(printable_manager(&manager).len(), MAX_MANAGER_LENGTH);
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
