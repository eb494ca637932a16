//! Detects whether the tested scheduler has the bug of kubernetes issue 141526, with the reproduction that the issue
//! describes.

use serde_json::{Value, json};

use crate::scheduling_client::SchedulingClient;

pub(crate) fn has_namespace_selector_bug(client: &SchedulingClient) -> bool {
    let (node, namespace) = ("/api/v1/nodes/flaw", "flawed");
    let amounts = json!({"cpu": "1", "memory": "1Gi", "pods": "5"});
    let node_object = json!({
        "metadata": {"name": "flaw", "labels": {"flaw": "here"}},
        "status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    });
    client.post("/api/v1/nodes", &node_object);
    let mut current = client.get(node);
    current["spec"]["taints"] = Value::Null;
    client.put(node, &current);
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}));
    let account = json!({"metadata": {"name": "default"}});
    client.post(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let pod = |name: &str, affinity: Value| {
        json!({
            "metadata": {"name": name, "labels": {"flaw": "here"}},
            "spec": {"affinity": affinity, "nodeSelector": {"flaw": "here"}, "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none"}]},
        })
    };
    client.post(&pods, &pod("first", Value::Null));
    client.wait_until_bound(&format!("{pods}/first"));
    let other_namespaces =
        json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]});
    let term = json!({"topologyKey": "flaw", "labelSelector": {"matchLabels": {"flaw": "here"}},
        "namespaceSelector": {"matchExpressions": [other_namespaces]}});
    let anti =
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    client.post(&pods, &pod("second", anti));
    let second = client.wait_until_scheduled(&format!("{pods}/second"));
    for name in ["first", "second"] {
        client.delete(&format!("{pods}/{name}"));
    }
    client.delete(node);
    second["spec"]["nodeName"].is_null()
}
