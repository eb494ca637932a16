//! Fields of pods and Nodes that the rules read, as Kubernetes API types.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;

use berth_kubelet_admission::pod::{Pod, Resources};

/// The fields of a pod that affect its own placement and that of other pods.
#[derive(Clone, Copy, Debug)]
pub struct PodFields<'a> {
    /// `metadata.namespace`; an empty namespace means `default`.
    pub namespace: &'a str,
    /// Field `metadata.labels`.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// True if `metadata.deletionTimestamp` is set.
    pub is_terminating: bool,
    /// Field `spec.nodeSelector`.
    pub node_selector: Option<&'a BTreeMap<String, String>>,
    /// Field `spec.affinity`.
    pub affinity: Option<&'a v1::Affinity>,
    /// Field `spec.tolerations`.
    pub tolerations: &'a [v1::Toleration],
    /// Field `spec.topologySpreadConstraints`.
    pub spread_constraints: &'a [v1::TopologySpreadConstraint],
    /// The pod's containers, with their requests.
    pub containers: &'a Pod,
    /// Names of the PersistentVolumeClaims of the pod's volumes. Empty for a pod on a host, because its volumes restrict
    /// no further choice.
    pub claims: &'a [String],
}

impl<'a> PodFields<'a> {
    /// Returns the fields of a pod, without claims. `containers` must have been read from the same pod.
    #[must_use]
    pub fn from_pod(pod: &'a v1::Pod, containers: &'a Pod) -> Self {
        let spec = pod.spec.as_ref();
        Self {
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
            labels: pod.metadata.labels.as_ref(),
            is_terminating: pod.metadata.deletion_timestamp.is_some(),
            node_selector: spec.and_then(|spec| spec.node_selector.as_ref()),
            affinity: spec.and_then(|spec| spec.affinity.as_ref()),
            tolerations: spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default(),
            spread_constraints: spec
                .and_then(|spec| spec.topology_spread_constraints.as_deref())
                .unwrap_or_default(),
            containers,
            claims: &[],
        }
    }

    /// Returns the fields without the pod's rules about hosts and other pods. Labels and resources remain, because they
    /// affect the placement of other pods.
    #[must_use]
    pub const fn without_rules(self) -> Self {
        Self {
            node_selector: None,
            affinity: None,
            tolerations: &[],
            spread_constraints: &[],
            claims: &[],
            ..self
        }
    }
}

/// The fields of a Node that determine which pods may run on it.
#[derive(Clone, Copy, Debug)]
pub struct NodeFields<'a> {
    /// Field `metadata.name`.
    pub name: &'a str,
    /// Field `metadata.labels`.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Field `spec.taints`.
    pub taints: &'a [v1::Taint],
    /// Field `spec.unschedulable`.
    pub is_cordoned: bool,
    /// `status.allocatable`, without `pods`.
    pub allocatable: &'a Resources,
    /// Field `status.allocatable.pods`.
    pub pods_limit: u64,
}

impl<'a> NodeFields<'a> {
    /// Returns the fields of a Node. `allocatable` and `pods_limit` must have been read from the same Node.
    #[must_use]
    pub fn from_node(node: &'a v1::Node, allocatable: &'a Resources, pods_limit: u64) -> Self {
        let spec = node.spec.as_ref();
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default(),
            labels: node.metadata.labels.as_ref(),
            taints: spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default(),
            is_cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            allocatable,
            pods_limit,
        }
    }
}
