//! Simulation of the kubelets of a tenant's machines: each running VM has a Node in the tenant's cluster, which is
//! Ready while the Node of the VM's host is Ready.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use berth_api::names::REMOVAL_ANNOTATION;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cluster::registered_node;
use crate::simulated::{create_client, create_runtime};

/// Time between two iterations of the simulation.
const INTERVAL: Duration = Duration::from_secs(2);

/// Running simulation, stopped on drop.
#[derive(Debug)]
pub(super) struct MachineNodes(Option<Runtime>);

impl MachineNodes {
    /// Starts the simulation for the machines in a namespace of the infra cluster.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub(super) fn start(infra: &Path, tenant: &Path, namespace: &'static str) -> Result<Self> {
        let runtime = create_runtime()?;
        let infra = runtime.block_on(create_client(infra))?;
        let tenant = runtime.block_on(create_client(tenant))?;
        runtime.spawn(async move {
            // A Node that Berth has deleted is not created again.
            let mut joined = BTreeSet::new();
            loop {
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                if let Err(error) = sync_nodes(&infra, &tenant, namespace, &mut joined).await {
                    writeln!(std::io::stderr(), "simulated kubelets of machines: {error:#}")
                        .unwrap_or_default();
                }
                tokio::time::sleep(INTERVAL).await;
            }
        });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for MachineNodes {
    fn drop(&mut self) {
        self.0.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

async fn sync_nodes(
    infra: &Client,
    tenant: &Client,
    namespace: &str,
    joined: &mut BTreeSet<String>,
) -> Result<()> {
    let machines = list_kind(infra, namespace, "VirtualMachine").await?;
    let instances = list_kind(infra, namespace, "VirtualMachineInstance").await?;
    let hosts: Api<Node> = Api::all(infra.clone());
    let hosts = hosts.list(&ListParams::default()).await?.items;
    let running = running_machines(&instances, &hosts);
    let nodes: Api<Node> = Api::all(tenant.clone());
    for node in nodes.list(&ListParams::default()).await?.items {
        let name = node.name_any();
        let is_running = running.contains(&name);
        if is_ready(&node) != is_running {
            let patch = Patch::Strategic(json!({"status": {"conditions": conditions(is_running)}}));
            nodes.patch_status(&name, &PatchParams::default(), &patch).await?;
        }
    }
    for name in joining_machines(&machines, &running) {
        if !joined.contains(&name) {
            create_node(&nodes, &name).await?;
            joined.insert(name);
        }
    }
    Ok(())
}

/// Returns the names of the VMs that run on a host that is ready.
fn running_machines(instances: &[DynamicObject], hosts: &[Node]) -> BTreeSet<String> {
    let runs = |instance: &&DynamicObject| {
        let status = &instance.data["status"];
        let host = hosts.iter().find(|host| status["nodeName"] == host.name_any().as_str());
        status["phase"] == "Running" && host.is_some_and(is_ready)
    };
    instances.iter().filter(runs).map(|instance| instance.name_any()).collect()
}

/// Returns the names of the running machines that are not being removed.
fn joining_machines(machines: &[DynamicObject], running: &BTreeSet<String>) -> Vec<String> {
    let stays = |machine: &&DynamicObject| {
        machine.metadata.deletion_timestamp.is_none()
            && !machine.annotations().contains_key(REMOVAL_ANNOTATION)
    };
    let names = machines.iter().filter(stays).map(|machine| machine.name_any());
    names.filter(|name| running.contains(name)).collect()
}

async fn list_kind(client: &Client, namespace: &str, kind: &str) -> Result<Vec<DynamicObject>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    Ok(api.list(&ListParams::default()).await?.items)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Creates a Node as a kubelet registers it, with the providerID that KubeVirt's cloud controller manager sets.
async fn create_node(nodes: &Api<Node>, name: &str) -> Result<()> {
    let mut node = registered_node(name);
    node["spec"] = json!({"providerID": format!("kubevirt://{name}")});
    node["status"]["conditions"] = conditions(true);
    let node: Node = serde_json::from_value(node)?;
    match nodes.create(&PostParams::default(), &node).await {
        // An earlier request succeeded, but its response was lost.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

fn conditions(is_ready: bool) -> Value {
    let now = Timestamp::now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let (status, reason) =
        if is_ready { ("True", "KubeletReady") } else { ("Unknown", "NodeStatusUnknown") };
    json!([{
        "type": "Ready", "status": status, "reason": reason, "message": "set by the demo",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, annotations: Value, status: Value) -> DynamicObject {
        let metadata = json!({"name": name, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    #[test]
    fn running_machines_join_unless_they_are_removed() {
        let host = |name: &str, is_ready: bool| -> Node {
            let status = json!({"conditions": conditions(is_ready)});
            serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap()
        };
        let hosts = [host("a", true), host("b", false)];
        let on = |host: &str, phase: &str| json!({"nodeName": host, "phase": phase});
        let instances = [
            object("web-1", json!({}), on("a", "Running")),
            object("web-2", json!({}), on("a", "Running")),
            object("web-3", json!({}), on("b", "Running")),
            object("web-4", json!({}), on("a", "Scheduled")),
        ];
        let running = running_machines(&instances, &hosts);
        assert_eq!(running.iter().collect::<Vec<_>>(), ["web-1", "web-2"]);
        let removed = json!({REMOVAL_ANNOTATION: "HostDrain"});
        let machines = [
            object("web-1", json!({}), json!({})),
            object("web-2", removed, json!({})),
            object("web-3", json!({}), json!({})),
        ];
        assert_eq!(joining_machines(&machines, &running), ["web-1"]);
    }
}
