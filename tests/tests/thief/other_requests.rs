//! Attempts on all other objects, which an agent does not need.

use std::process::Command;

use base64::Engine as _;
use serde_json::{Value, json};

use crate::OWN_NODE;
use crate::attempts::ExpectedResult::{DeniedByRbac, DeniedByRbacOnly, Succeeds};
use crate::attempts::{Attempt, new_attempt};
use crate::objects::{INFRA_NODES, LEASES, SERVICE_ACCOUNTS, token_request};
use crate::request::{delete, get, merge_patch, post};

/// Path of the agent's pod on node-b.
const POD_PATH: &str = "/api/v1/namespaces/berth-system/pods/berth-agent-b";

pub(crate) fn write_attempts() -> Vec<Attempt> {
    let denied =
        |what: &str, path: &str, body: Value| new_attempt(DeniedByRbac, what, post(path, body));
    let mut all = credential_attempts();
    all.extend([
        denied(
            "create a Secret",
            "/api/v1/namespaces/berth-system/secrets",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": OWN_NODE}}),
        ),
        denied(
            "create a ConfigMap with the name of its Node",
            "/api/v1/namespaces/default/configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OWN_NODE}}),
        ),
        denied(
            "create a pod",
            "/api/v1/namespaces/berth-system/pods",
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": OWN_NODE},
                "spec": {"serviceAccountName": "berth-agent", "containers": [{"name": "c", "image": "x"}]},
            }),
        ),
        new_attempt(DeniedByRbac, "delete a pod", delete(POD_PATH)),
        denied(
            "evict a pod",
            &format!("{POD_PATH}/eviction"),
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "berth-agent-b"}}),
        ),
        denied("exec in a pod", &format!("{POD_PATH}/exec?command=id"), Value::Null),
        denied(
            "bind a pod to its Node",
            &format!("{POD_PATH}/binding"),
            json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "berth-agent-b"},
                "target": {"name": OWN_NODE},
            }),
        ),
        denied("run a command through a kubelet", "/api/v1/nodes/node-b/proxy/run", Value::Null),
    ]);
    all
}

/// Returns requests with which the thief would act as another user.
fn credential_attempts() -> Vec<Attempt> {
    let denied =
        |what: &str, path: &str, body: Value| new_attempt(DeniedByRbac, what, post(path, body));
    let policies = "/apis/admissionregistration.k8s.io/v1";
    vec![
        denied(
            "a token of its own account",
            &format!("{SERVICE_ACCOUNTS}/berth-agent/token"),
            token_request(Value::Null),
        ),
        denied(
            "a token of another account",
            "/api/v1/namespaces/kube-system/serviceaccounts/default/token",
            token_request(Value::Null),
        ),
        denied(
            "request a certificate",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            json!({
                "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": OWN_NODE},
                "spec": {
                    "request": create_signing_request(), "signerName": "kubernetes.io/kube-apiserver-client",
                    "usages": ["client auth"],
                },
            }),
        ),
        denied(
            "bind itself to cluster-admin",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": OWN_NODE},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "berth-agent", "namespace": "berth-system"}],
            }),
        ),
        new_attempt(
            DeniedByRbac,
            "change the CRD",
            merge_patch(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/infranodes.berth.dev",
                json!({"metadata": {"labels": {"a": "b"}}}),
            ),
        ),
        new_attempt(
            DeniedByRbacOnly,
            "delete the binding of the policy",
            delete(&format!("{policies}/validatingadmissionpolicybindings/berth-agent-own-node")),
        ),
        new_attempt(
            DeniedByRbacOnly,
            "set the failure policy to Ignore",
            merge_patch(
                &format!("{policies}/validatingadmissionpolicies/berth-agent-own-node"),
                json!({"spec": {"failurePolicy": "Ignore"}}),
            ),
        ),
    ]
}

/// Returns a valid signing request: servers validate the request before they call policies.
fn create_signing_request() -> String {
    let output = Command::new("openssl")
        .args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-keyout", "/dev/null", "-subj", "/CN=other-user"])
        .output()
        .unwrap();
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    base64::engine::general_purpose::STANDARD.encode(output.stdout)
}

pub(crate) fn read_attempts() -> Vec<Attempt> {
    let denied = |what: &str, path: &str| new_attempt(DeniedByRbacOnly, what, get(path));
    let permitted = |what: &str, path: &str| new_attempt(Succeeds, what, get(path));
    vec![
        permitted("all Nodes", "/api/v1/nodes"),
        permitted("all InfraNodes", INFRA_NODES),
        permitted("its Lease", &format!("{LEASES}/{OWN_NODE}")),
        denied("the names of all Leases", LEASES),
        denied("secrets of berth-system", "/api/v1/namespaces/berth-system/secrets"),
        denied("all secrets", "/api/v1/secrets"),
        denied("ConfigMaps", "/api/v1/namespaces/default/configmaps"),
        denied("all pods", "/api/v1/pods"),
        denied("pods of berth-system", "/api/v1/namespaces/berth-system/pods"),
        denied("a pod's log", &format!("{POD_PATH}/log")),
        denied(
            "the configuration of its kubelet",
            &format!("/api/v1/nodes/{OWN_NODE}/proxy/configz"),
        ),
    ]
}
