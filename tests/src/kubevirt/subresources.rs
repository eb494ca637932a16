//! Subresources of KubeVirt in the API server: virt-api, or a simulation of it, serves them.

use std::fs;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::objects::NAMESPACE;
use crate::cluster::ControlPlane;

/// Names in the certificate of the server: the API server expects that of the Service.
pub const SERVING_NAMES: &str = "IP:127.0.0.1,DNS:localhost,DNS:virt-api.kubevirt.svc";

/// Publishes the subresources that a server on a port of the loopback serves, with a certificate of the control plane's CA for
/// [`SERVING_NAMES`], and waits until they are available. The control plane needs
/// [`has_kubevirt`](crate::cluster::ControlPlaneOptions::has_kubevirt). The Service has the type ExternalName, because the
/// server is a process and has no pod.
///
/// # Errors
/// Fails if the API server refuses an object, or does not reach the server.
pub fn publish_subresources(plane: &ControlPlane, port: u16) -> Result<()> {
    let authority = STANDARD.encode(fs::read(plane.authority())?);
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    plane.apply(&namespace.to_string())?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "virt-api", "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    });
    create(plane, &service)?;
    let name = "v1.subresources.kubevirt.io";
    let published = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
        "spec": {
            "group": "subresources.kubevirt.io", "version": "v1", "caBundle": authority,
            "groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"namespace": NAMESPACE, "name": "virt-api", "port": port},
        },
    });
    create(plane, &published)?;
    let wait = ["wait", "--for=condition=Available", "apiservice", name, "--timeout=120s"];
    plane.kubectl(&wait).map(drop)
}

/// Creates an object without server-side apply, for which Kubernetes 1.20 fails with an internal error.
fn create(plane: &ControlPlane, object: &Value) -> Result<()> {
    let arguments = ["create", "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &arguments, &object.to_string()).map(drop)
}
