//! Keys of the labels, annotations and taints that are copied from hosts to tenants' Nodes.

use std::collections::{BTreeMap, BTreeSet};

/// Labels that are copied even if the InfraConfig does not list them: region and zone, which cloud controller managers
/// also set.
const DEFAULT_LABELS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];
/// Labels that describe the Node on which they are. They are never copied.
const NODE_LABELS: [&str; 4] = [
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
];
/// Prefixes of labels that describe the Node on which they are, or the programs that run on this Node. They are never
/// copied.
const NODE_LABEL_PREFIXES: [&str; 4] = [
    "beta.kubernetes.io/",
    "kubelet.kubernetes.io/",
    "node-role.kubernetes.io/",
    "node.kubernetes.io/exclude-",
];
/// Prefixes of annotations that are never copied: of programs that run on a Node, and of controllers that read their
/// own annotations. Some, such as `kubevirt.io/heartbeat`, change every minute.
const NODE_ANNOTATION_PREFIXES: [&str; 10] = [
    "alpha.kubernetes.io/",
    "berth.dev/",
    "cluster.x-k8s.io/",
    "csi.volume.kubernetes.io/",
    "kubeadm.alpha.kubernetes.io/",
    "kubectl.kubernetes.io/",
    "kubevirt.io/",
    "node.alpha.kubernetes.io/",
    "node.kubernetes.io/",
    "volumes.kubernetes.io/",
];
/// Prefixes of taints that are never copied: they describe the state or the role of the Node, and the node lifecycle
/// controller and cloud controller managers set them.
const NODE_TAINT_PREFIXES: [&str; 4] = [
    "kubevirt.io/",
    "node-role.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "node.kubernetes.io/",
];
/// Maximum number of labels, of annotations and of taints that are copied to a Node. A prefix in the InfraConfig may
/// match more keys of a host.
pub(super) const MAX_COPIED: usize = 64;

/// Kind of a field that is copied from a host to a tenant's Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldKind {
    #[default]
    Label,
    Annotation,
    Taint,
}

impl FieldKind {
    /// Returns the name of the kind in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::Taint => "taint",
        }
    }

    /// Returns true if a key describes the Node on which it is, so that the value on a host is wrong for a tenant's
    /// Node.
    #[must_use]
    pub fn describes_node_itself(self, key: &str) -> bool {
        let prefixes = match self {
            Self::Label => NODE_LABEL_PREFIXES.as_slice(),
            Self::Annotation => NODE_ANNOTATION_PREFIXES.as_slice(),
            Self::Taint => NODE_TAINT_PREFIXES.as_slice(),
        };
        let is_node_label = self == Self::Label && NODE_LABELS.contains(&key);
        is_node_label || prefixes.iter().any(|prefix| key.starts_with(prefix))
    }
}

/// Keys, and prefixes of keys, that are copied for one kind of field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicatedKeys {
    kind: FieldKind,
    keys: BTreeSet<String>,
    prefixes: BTreeSet<String>,
}

impl ReplicatedKeys {
    /// Reads a list of keys in the InfraConfig. Invalid entries match no key; a condition of the InfraConfig names
    /// them.
    #[must_use]
    pub fn new(kind: FieldKind, entries: &[String]) -> Self {
        let mut all = Self { kind, ..Self::default() };
        for entry in entries {
            match entry.strip_suffix('*') {
                Some("") => {}
                Some(prefix) => drop(all.prefixes.insert(prefix.to_owned())),
                None => drop(all.keys.insert(entry.clone())),
            }
        }
        all
    }

    /// Returns the labels that are copied even if the InfraConfig does not list them.
    #[must_use]
    pub fn default_labels() -> Self {
        let keys = DEFAULT_LABELS.map(str::to_owned).into();
        Self { kind: FieldKind::Label, keys, prefixes: BTreeSet::new() }
    }

    /// Returns the labels or annotations of a host that are copied, at most 64.
    #[must_use]
    pub fn select(&self, host: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let selected = host.iter().filter(|(key, _)| self.contains(key));
        selected.take(MAX_COPIED).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Returns true if a key is copied.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        !self.kind.describes_node_itself(key)
            && (self.keys.contains(key)
                || self.prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(list: Option<&[&str]>, labels: &[&str]) -> Vec<String> {
        select_kind(FieldKind::Label, list, labels)
    }

    fn select_kind(kind: FieldKind, list: Option<&[&str]>, fields: &[&str]) -> Vec<String> {
        let entries = list.unwrap_or_default().iter().map(|one| (*one).to_owned());
        let keys = match list {
            Some(_) => ReplicatedKeys::new(kind, &entries.collect::<Vec<_>>()),
            None => ReplicatedKeys::default_labels(),
        };
        let fields = fields.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        keys.select(&fields).into_keys().collect()
    }

    #[test]
    fn region_and_zone_are_copied_without_a_list() {
        let labels =
            ["rack", "topology.kubernetes.io/region", "topology.kubernetes.io/zone", "zone"];
        assert_eq!(select(None, &labels), labels[1..3]);
        assert!(select(Some(&[]), &labels).is_empty(), "an empty list copies nothing");
        let old_name = ["failure-domain.beta.kubernetes.io/zone"];
        assert!(select(None, &old_name).is_empty());
        assert_eq!(select(Some(&old_name), &old_name), old_name);
    }

    #[test]
    fn keys_and_prefixes_select_labels() {
        let labels =
            ["example.com/rack", "example.com/row", "example.community/x", "rack", "rack2"];
        assert_eq!(
            select(Some(&["rack", "example.com/*"]), &labels),
            [labels[0], labels[1], "rack"]
        );
        assert_eq!(select(Some(&["ra*"]), &labels), ["rack", "rack2"]);
        assert!(select(Some(&["*", "a*b"]), &labels).is_empty());
    }

    #[test]
    fn labels_of_the_node_itself_are_never_copied() {
        let labels =
            ["kubernetes.io/hostname", "kubernetes.io/x", "node-role.kubernetes.io/worker"];
        let list = ["kubernetes.io/*", "kubernetes.io/hostname", "node-role.kubernetes.io/*"];
        assert_eq!(select(Some(&list), &labels), ["kubernetes.io/x"]);
        let annotations = ["kubernetes.io/x", "kubevirt.io/heartbeat"];
        let list = Some(["kube*"].as_slice());
        assert_eq!(select_kind(FieldKind::Annotation, list, &annotations), ["kubernetes.io/x"]);
        assert!(FieldKind::Taint.describes_node_itself("node.kubernetes.io/unschedulable"));
        assert!(!FieldKind::Label.describes_node_itself("node.kubernetes.io/x"));
    }

    #[test]
    fn the_number_of_labels_is_limited() {
        let labels: Vec<String> = (0..200).map(|number| format!("a/{number:03}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        assert_eq!(select(Some(&["a/*"]), &labels).len(), MAX_COPIED);
    }
}
