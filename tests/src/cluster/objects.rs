//! Objects in a cluster with agents: the objects of `deploy/`, Nodes as kubelets register them, and edits of
//! InfraNodes as an operator edits them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use berth_api::all_crds;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::ControlPlane;
use super::write::{JSON, MERGE_PATCH};
use crate::repository;

/// Address of the Service of the cluster's DNS.
pub const CLUSTER_DNS: &str = "10.96.0.10";

impl ControlPlane {
    /// Applies the objects of `kubectl apply -k deploy/` that need neither a kubelet nor a recent Kubernetes version,
    /// and the given extra files of `deploy/`.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn deploy(&self, extra_files: &[&str]) -> Result<()> {
        let base = [
            "crds/infranodes.berth.dev.yaml",
            "crds/hostprofiles.berth.dev.yaml",
            "crds/infraconfigs.berth.dev.yaml",
            "crds/tenantclusters.berth.dev.yaml",
            "crds/vlanclaims.berth.dev.yaml",
            "crds/prefixclaims.berth.dev.yaml",
            "crds/addressclaims.berth.dev.yaml",
            "crds/hostleases.berth.dev.yaml",
            "crds/tenantquotas.berth.dev.yaml",
            "crds/tenantrequests.berth.dev.yaml",
            "base/namespace.yaml",
            "base/service-account.yaml",
            "base/rbac.yaml",
        ];
        for file in base.iter().chain(extra_files) {
            self.create_file(&repository().join("deploy").join(file))?;
        }
        let names: Vec<String> = all_crds().iter().map(|crd| crd.name_any()).collect();
        names.iter().try_for_each(|name| self.wait_until_served(name))
    }

    /// Creates the objects of a file. Applies the file if the server does not create all of them, for example because
    /// one exists.
    pub(super) fn create_file(&self, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).with_context(|| file.display().to_string())?;
        if objects.iter().all(|object| self.try_create(object)) {
            return Ok(());
        }
        self.apply_file(file)
    }

    /// Creates the Service of the cluster DNS, as kubeadm does, and labels the namespace `kube-system` with its name.
    /// API servers since 1.21 set this label themselves.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn create_dns_service(&self) -> Result<()> {
        let labels = json!({"kubernetes.io/metadata.name": "kube-system"});
        let path = "/api/v1/namespaces/kube-system?fieldManager=kubectl-label";
        self.send("PATCH", path, MERGE_PATCH, &json!({"metadata": {"labels": labels}}))?;
        let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol, "targetPort": 53});
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
            "spec": {
                "clusterIP": CLUSTER_DNS, "selector": {"k8s-app": "kube-dns"},
                "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
            },
        });
        self.apply(&service.to_string()).map(drop)
    }

    /// Applies the objects of a file.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn apply_file(&self, file: &Path) -> Result<()> {
        // kubectl before 1.25 does not support validation rules in CRDs.
        let file = file.display().to_string();
        self.kubectl(&["apply", "--validate=false", "-f", &file]).map(drop)
    }

    /// Creates a Node as a kubelet registers it.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn create_node(&self, name: &str) -> Result<()> {
        let node = registered_node(name);
        self.create(&node)?;
        // A client that creates a Node may set its status. This update sets the status again, as kubelets do
        // repeatedly.
        let path = format!("/api/v1/nodes/{name}/status");
        let mut current = self.get_json(&["node", name])?;
        current["status"] = node["status"].clone();
        // The controllers also update the Node, and an outdated resource version would cause a conflict, so this update
        // has no resource version.
        current["metadata"]["resourceVersion"].take();
        self.send("PUT", &path, JSON, &current).map(drop)
    }

    /// Returns a token of one of Berth's ServiceAccounts, like the token of a pod, valid for two hours. The token
    /// is not bound to an object, because there is no pod.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn create_token(&self, account: &str) -> Result<String> {
        self.create_token_in("berth-system", account)
    }

    /// Returns a token of a ServiceAccount in a namespace, like [`Self::create_token`].
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`].
    pub fn create_token_in(&self, namespace: &str, account: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200},
        });
        let answer = self.send("POST", &path, JSON, &request)?;
        let answer: Value = serde_json::from_str(&answer)?;
        let token = answer["status"]["token"]
            .as_str()
            .context("the response to the TokenRequest has no token")?;
        Ok(token.to_owned())
    }

    /// Returns an InfraNode, or null if the InfraNode does not exist.
    #[must_use]
    pub fn infra_node(&self, name: &str) -> Value {
        self.get_json(&["infranode", name]).unwrap_or_default()
    }

    /// Changes the spec of an InfraNode as an operator does.
    ///
    /// # Errors
    /// Fails like [`Self::kubectl`]: the schema may refuse the spec.
    pub fn set_infra_node_spec(&self, name: &str, spec: &Value) -> Result<()> {
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{name}?fieldManager=kubectl-patch");
        self.send("PATCH", &path, MERGE_PATCH, &json!({"spec": spec})).map(drop)
    }
}

/// Returns a Node as a kubelet registers it.
#[must_use]
pub fn registered_node(name: &str) -> Value {
    let amounts = json!({"cpu": "96", "memory": "512Gi", "pods": "110"});
    let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    })
}

/// Returns the MachineDeployment `web` of a tenant, with two CPUs and 2 GiB of memory for each machine.
#[must_use]
pub fn web_deployment(namespace: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"name": "web"}},
            "template": {
                "metadata": {"labels": {"name": "web"}},
                "spec": {"providerSpec": {"value": {
                    "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
                    "cloudProviderSpec": {"virtualMachine": {"template": {
                        "cpus": "2", "memory": "2Gi",
                        "primaryDisk": {"osImage": "http://images.example/ubuntu.img", "size": "10Gi"},
                    }}},
                }}},
            },
        },
    })
}

/// Returns a Deployment whose pods have the label `app` and are spread over the Nodes.
#[must_use]
pub fn spread_workload(app: &str, namespace: &str, pods: usize) -> Value {
    let labels = json!({"app": app});
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app, "namespace": namespace},
        "spec": {
            "replicas": pods, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "topologySpreadConstraints": spread,
                    "containers": [{"name": app, "image": format!("{app}.example/{app}:1")}],
                },
            },
        },
    })
}

/// Returns a condition of an object, or null if the object has no condition of this type.
#[must_use]
pub fn condition<'a>(object: &'a Value, name: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == name)).unwrap_or(&Value::Null)
}
