//! Objects in the form in which the agent writes them.

use berth_tests::cluster::Version;
use serde_json::{Value, json};

use crate::test_cluster::TestCluster;
use crate::{OTHER_NODE, OWN_NODE};

pub(crate) const INFRA_NODES: &str = "/apis/berth.dev/v1alpha1/infranodes";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases";
pub(crate) const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
pub(crate) const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
pub(crate) const SERVICE_ACCOUNTS: &str = "/api/v1/namespaces/berth-system/serviceaccounts";
pub(crate) const TIMESTAMP: &str = "2026-01-01T00:00:00Z";
const MICRO_TIMESTAMP: &str = "2026-01-01T00:00:00.000000Z";

pub(crate) fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

pub(crate) fn node_status_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}/status")
}

/// Returns a Node for an apply to its status. Like the agent, this function sets maps without entries to empty maps and
/// does not omit them: if an apply omits a map that the previous apply had, the server deletes the map with all fields
/// that have no owner in `managedFields`. Fields that a kubelet sets at registration have no owner.
pub(crate) fn node_object(name: &str, labels: Value, resources: Value, conditions: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"capacity": resources, "allocatable": resources, "conditions": conditions},
    })
}

pub(crate) fn host_tuned_condition() -> Value {
    json!({"type": "berth.dev/HostTuned", "status": "True", "reason": "Applied", "message": "the host matches the spec", "lastTransitionTime": TIMESTAMP})
}

pub(crate) fn extended_resources() -> Value {
    json!({"berth.dev/pinnable-cpus": "4", "bridge.network.kubevirt.io/br-tenant": "1k"})
}

pub(crate) fn owner_reference(test_cluster: &TestCluster<'_>, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": test_cluster.uid(name)})
}

/// Returns an empty InfraNode that its Node owns, as the agent creates it.
pub(crate) fn infra_node(test_cluster: &TestCluster<'_>, name: &str) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
        "metadata": {
            "name": name,
            "annotations": {"berth.dev/created-by": "berth-agent"},
            "ownerReferences": [owner_reference(test_cluster, name)],
        },
        "spec": {},
    })
}

pub(crate) fn infra_node_status(name: &str, status: Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": name}, "status": status})
}

pub(crate) fn lease(
    test_cluster: &TestCluster<'_>,
    name: &str,
    namespace: &str,
    minute: u8,
) -> Value {
    // If the name is no Node's name, any owner is sufficient.
    let owner = if [OWN_NODE, OTHER_NODE].contains(&name) { name } else { OWN_NODE };
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [self::owner_reference(test_cluster, owner)]},
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 120,
            "renewTime": format!("2026-01-01T00:{minute:02}:00.000000Z"),
        },
    })
}

/// Returns an Event about an object, which is given as `apiVersion kind name`.
pub(crate) fn event(
    test_cluster: &TestCluster<'_>,
    metadata: Value,
    regarding: [&str; 3],
) -> Value {
    let [version, kind, name] = regarding;
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": metadata, "eventTime": MICRO_TIMESTAMP,
        "reportingController": "berth-agent", "reportingInstance": OWN_NODE, "action": "Shape", "reason": "Applied",
        "type": "Normal", "note": "n",
        "regarding": {"apiVersion": version, "kind": kind, "name": name, "uid": "u"},
    });
    // Before 1.23, the API server accepts an Event about a cluster-scoped object only in `kube-system`, because of a
    // bug: https://github.com/kubernetes/kubernetes/pull/100125. With `regarding.namespace: default`, it accepts the
    // Event in `default`, where a thief would create it.
    if test_cluster.version() < Version(1, 23) {
        event["regarding"]["namespace"] = "default".into();
    }
    event
}

/// Returns the count of an Event and the time of its last occurrence.
pub(crate) fn event_series() -> Value {
    json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}})
}

pub(crate) fn topology(name: &str) -> Value {
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
        "zones": [],
    })
}

pub(crate) fn token_request(bound: Value) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600, "boundObjectRef": bound},
    })
}
