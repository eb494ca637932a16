//! Labels, annotations and taints of a host that Berth copies to the Nodes of the VMs on the host.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::InfraConfigSpec;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::keys::{FieldKind, MAX_COPIED, ReplicatedKeys};
use super::replicated_taint::NodeTaint;

/// Maximum length of an annotation that is copied, in bytes.
const MAX_ANNOTATION_LENGTH: usize = 4096;

/// Keys of the labels, annotations and taints that Berth copies from hosts. The same keys apply to all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationConfig {
    labels: ReplicatedKeys,
    annotations: ReplicatedKeys,
    taints: ReplicatedKeys,
}

/// Labels, annotations and taints of a host that are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFields {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub taints: BTreeSet<NodeTaint>,
}

impl ReplicationConfig {
    /// Reads the lists of keys in the InfraConfig.
    #[must_use]
    pub fn from_config(config: &InfraConfigSpec) -> Self {
        let labels = config.replicated_node_labels.as_deref();
        let labels = labels.map(|list| ReplicatedKeys::new(FieldKind::Label, list));
        let annotations = &config.replicated_node_annotations;
        Self {
            labels: labels.unwrap_or_else(ReplicatedKeys::default_labels),
            annotations: ReplicatedKeys::new(FieldKind::Annotation, annotations),
            taints: ReplicatedKeys::new(FieldKind::Taint, &config.replicated_node_taints),
        }
    }

    /// Returns the fields of a host that are copied: at most 64 labels, 64 annotations and 64 taints.
    #[must_use]
    pub fn select(&self, host: &Node) -> HostFields {
        let taints = host.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let taints = taints.filter(|taint| self.taints.contains(&taint.key)).take(MAX_COPIED);
        HostFields {
            labels: self.labels.select(host.labels()),
            annotations: self.annotations.select(host.annotations()),
            taints: taints.map(NodeTaint::of_host).collect(),
        }
    }
}

/// Returns true if an annotation of a host can be copied. Stores may omit all other annotations.
#[must_use]
pub fn is_copyable_annotation(key: &str, value: &str) -> bool {
    value.len() <= MAX_ANNOTATION_LENGTH && !FieldKind::Annotation.describes_node_itself(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_lists_select_fields_of_the_host() {
        let host = json!({
            "metadata": {
                "labels": {"rack": "7", "topology.kubernetes.io/zone": "a"},
                "annotations": {"example.com/power": "2", "other": "x"},
            },
            "spec": {"taints": [
                {"key": "example.com/gpu", "value": "a100", "effect": "NoSchedule"},
                {"key": "example.com/old", "effect": "PreferNoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            ]},
        });
        let host: Node = serde_json::from_value(host).unwrap();
        let select = |config: serde_json::Value| {
            let config: InfraConfigSpec = serde_json::from_value(config).unwrap();
            ReplicationConfig::from_config(&config).select(&host)
        };
        let fields = select(json!({}));
        assert_eq!(fields.labels.into_keys().collect::<Vec<_>>(), ["topology.kubernetes.io/zone"]);
        assert!(fields.annotations.is_empty() && fields.taints.is_empty(), "only if listed");
        let fields = select(json!({
            "replicatedNodeLabels": ["rack"], "replicatedNodeAnnotations": ["example.com/*"],
            "replicatedNodeTaints": ["example.com/*", "node.kubernetes.io/unschedulable"],
        }));
        assert_eq!(fields.labels.into_keys().collect::<Vec<_>>(), ["rack"]);
        assert_eq!(fields.annotations.into_keys().collect::<Vec<_>>(), ["example.com/power"]);
        let taints: Vec<String> = fields.taints.iter().map(NodeTaint::to_string).collect();
        assert_eq!(taints, ["example.com/gpu=a100:NoSchedule", "example.com/old:PreferNoSchedule"]);
    }

    #[test]
    fn long_annotations_are_not_copied() {
        assert!(is_copyable_annotation("a", &"x".repeat(4096)));
        assert!(!is_copyable_annotation("a", &"x".repeat(4097)));
        assert!(!is_copyable_annotation("kubevirt.io/heartbeat", ""));
    }
}
