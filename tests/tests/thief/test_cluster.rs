//! Cluster with two nodes and an agent's pod on each node, before the theft.

use std::time::Duration;

use berth_tests::cluster::{ADMIN_TOKEN, ControlPlane, Version};
use serde_json::{Value, json};

use crate::objects::{
    EVENTS, INFRA_NODES, SERVICE_ACCOUNTS, TOPOLOGIES, event, infra_node, node_object, node_path,
    node_status_path, token_request,
};
use crate::request::{Credential, CurlClient, Request, Response, dry_run_apply, get, post};
use crate::{OTHER_NODE, OWN_NODE};

const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct TestCluster<'a> {
    plane: &'a ControlPlane,
    pub(crate) client: CurlClient,
    pub(crate) admin_credential: Credential,
    /// Token of node-a's pod.
    pub(crate) thief_credential: Credential,
    /// True if the server can restrict agents to their Nodes.
    pub(crate) has_policy: bool,
}

impl<'a> TestCluster<'a> {
    pub(crate) fn start(plane: &'a ControlPlane) -> Self {
        let admin = Credential::Token(ADMIN_TOKEN.to_owned());
        let client = CurlClient::new(plane);
        let mut test_cluster = Self {
            plane,
            client,
            thief_credential: admin.clone(),
            admin_credential: admin,
            has_policy: false,
        };
        test_cluster.deploy();
        for name in [OWN_NODE, OTHER_NODE] {
            test_cluster.create("/api/v1/nodes?fieldManager=kubelet", registered_node(name));
        }
        for (pod, name) in [("berth-agent-a", OWN_NODE), ("berth-agent-b", OTHER_NODE)] {
            test_cluster.create("/api/v1/namespaces/berth-system/pods", agent_pod(pod, name));
        }
        test_cluster.create(INFRA_NODES, infra_node(&test_cluster, OTHER_NODE));
        let regarding = ["berth.dev/v1alpha1", "InfraNode", OTHER_NODE];
        test_cluster.create(EVENTS, event(&test_cluster, json!({"name": "foreign"}), regarding));
        // The controllers would create this ServiceAccount.
        test_cluster.create(
            "/api/v1/namespaces/kube-system/serviceaccounts",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        );
        let pod = test_cluster.read("/api/v1/namespaces/berth-system/pods/berth-agent-a");
        test_cluster.thief_credential = test_cluster.token(json!({
            "apiVersion": "v1", "kind": "Pod", "name": "berth-agent-a", "uid": pod["metadata"]["uid"],
        }));
        test_cluster.apply_policy();
        test_cluster
    }

    /// Applies the objects of `kubectl apply -k deploy/` that need no kubelet, except the policy, and one
    /// additional permission.
    fn deploy(&self) {
        self.plane.deploy(&["components/node-resource-topology/rbac.yaml"]).unwrap();
        self.plane.apply(&minimal_topology_crd().to_string()).unwrap();
        let crd = "crd/noderesourcetopologies.topology.node.k8s.io";
        self.plane.kubectl(&["wait", "--for=condition=Established", crd, "--timeout=30s"]).unwrap();
        // A CRD with the condition Established is not necessarily served yet.
        for path in [INFRA_NODES, TOPOLOGIES] {
            self.wait_until("the new kinds are served", || {
                self.send(&self.admin_credential, &get(path)).is_success()
            });
        }
    }

    /// Applies the policy on servers that support policies, and waits until permissions and policies take effect.
    fn apply_policy(&mut self) {
        let label = |labels: Value| {
            dry_run_apply(
                &node_status_path(OWN_NODE),
                node_object(OWN_NODE, labels, json!({}), json!([])),
            )
        };
        let own = label(json!({"host.berth.dev/x": "1"}));
        self.wait_until("agents have their permissions", || {
            self.send(&self.thief_credential, &own).is_success()
        });
        self.has_policy = self.supports("the admission policy", Version(1, 30));
        if self.has_policy {
            let policy = berth_tests::repository().join("deploy/base/admission-policy.yaml");
            self.plane.apply_file(&policy).unwrap();
            let not_own = label(json!({"berth.dev/class": "x"}));
            self.wait_until("the policy is in effect", || {
                !self.send(&self.thief_credential, &not_own).is_success()
            });
        }
    }

    /// Grants all permissions to the agents, as a careless administrator might.
    pub(crate) fn grant_all_permissions(&self) {
        self.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "all-permissions"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [
                    {"kind": "ServiceAccount", "name": "berth-agent", "namespace": "berth-system"},
                    {"kind": "Group", "name": "berth:agents", "apiGroup": "rbac.authorization.k8s.io"},
                ],
            }),
        );
        self.wait_until("agents have all permissions", || {
            self.send(&self.thief_credential, &get("/api/v1/secrets")).is_success()
        });
    }

    /// Returns true if the server has at least the version `since`; see [`ControlPlane::supports`].
    pub(crate) fn supports(&self, what: &str, since: Version) -> bool {
        self.plane.supports(what, since)
    }

    pub(crate) fn version(&self) -> Version {
        self.plane.version()
    }

    pub(crate) fn uid(&self, node: &str) -> Value {
        self.read(&node_path(node))["metadata"]["uid"].take()
    }

    /// Returns a token of the agents' ServiceAccount, bound to an object or to none. kubectl supports `create
    /// token` only since 1.24.
    pub(crate) fn token(&self, bound: Value) -> Credential {
        let response =
            self.create(&format!("{SERVICE_ACCOUNTS}/berth-agent/token"), token_request(bound));
        Credential::Token(response["status"]["token"].as_str().unwrap().to_owned())
    }

    /// Returns a client certificate like that of an agent under systemd.
    pub(crate) fn certificate(&self, user: &str) -> Credential {
        // curl parses a colon in a file name as the start of a password.
        let name = user.replace(':', "-");
        let [certificate, key] =
            self.plane.create_certificate(&name, user, "berth:agents").unwrap();
        Credential::Certificate { certificate, key }
    }

    fn send(&self, credential: &Credential, request: &Request) -> Response {
        self.client.send(credential, request)
    }

    fn read(&self, path: &str) -> Value {
        self.send(&self.admin_credential, &get(path)).into_body()
    }

    fn create(&self, path: &str, object: Value) -> Value {
        self.send(&self.admin_credential, &post(path, object)).into_body()
    }

    fn wait_until(&self, description: &str, condition: impl Fn() -> bool) {
        self.plane.wait_until(description, SHORT_TIMEOUT, |_| condition().then_some(())).unwrap();
    }
}

/// Returns a Node as its kubelet registers it, with a value in each field that a thief may try to change.
fn registered_node(name: &str) -> Value {
    let amounts =
        json!({"cpu": "96", "memory": "512Gi", "pods": "110", "devices.kubevirt.io/kvm": "1k"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/os": "linux", "zone": "z1"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["registry.example/a:1"], "sizeBytes": 1}],
            "nodeInfo": {"kernelVersion": "6.1.0", "kubeletVersion": "v1.33.0", "machineID": "m"},
        },
    })
}

/// Returns the pod of the DaemonSet with the fields that tokens need.
fn agent_pod(pod: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
        "spec": {
            "nodeName": node, "serviceAccountName": "berth-agent",
            "containers": [{"name": "agent", "image": "berth-agent:0.1.0"}],
        },
    })
}

/// Returns a minimal CRD of the scheduler-plugins project.
fn minimal_topology_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "noderesourcetopologies.topology.node.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a copy for tests"},
        },
        "spec": {
            "group": "topology.node.k8s.io", "scope": "Cluster",
            "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies", "singular": "noderesourcetopology"},
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}
