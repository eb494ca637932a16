//! Creates everything that exists before the first tenant: a control plane with the CustomResourceDefinitions, and
//! hosts with simulated agents.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, registered_node};
use berth_tests::golden_images;
use serde_json::{Value, json};

use super::machines::IMAGE;
use crate::cluster::{Cluster, CountingClient, NewObject, collection_path};

/// The host network of all tenants.
pub(super) const NETWORK: &str = "trunk";
/// VLANs of the pool from which tenants get their VLANs.
pub(super) const VLAN_RANGE: &str = "100-4094";
/// Interval at which a simulated agent checks its InfraNode. A real agent also reacts after a delay (debounce).
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const INFRA_NODES: &str = "/apis/berth.dev/v1alpha1/infranodes";

/// Starts a control plane with a StorageClass, the namespace of golden images, and all CustomResourceDefinitions, including
/// those of KubeVirt and CDI.
pub(super) fn start() -> Result<ControlPlane> {
    let plane = ControlPlane::start(ControlPlaneOptions::default())?;
    plane.deploy(&["base/rbac-controller.yaml"])?;
    plane.define_network_attachments()?;
    plane.define_machine_deployments()?;
    golden_images::define_kinds(&plane)?;
    golden_images::create_storage_class(&plane)?;
    plane.kubectl(&["create", "namespace", golden_images::NAMESPACE])?;
    plane.install_kubevirt_crds(&[
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancetypes.instancetype.kubevirt.io",
        "virtualmachinepreferences.instancetype.kubevirt.io",
    ])?;
    Ok(plane)
}

/// Creates Nodes and InfraNodes, an InfraConfig and a HostProfile. With `has_golden_image`, the image of the machines is
/// imported once. The simulated agents run until `cluster` is dropped.
pub(super) fn create_hosts(cluster: &Cluster, count: u32, has_golden_image: bool) -> Result<()> {
    let names: Vec<String> = (1..=count).map(|number| format!("host-{number}")).collect();
    let trunk = json!({"name": NETWORK, "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}, "mtu": 9000});
    let ours = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let mut config = json!({
        "vlanPools": [{"network": NETWORK, "ranges": [VLAN_RANGE]}],
        "infraStorageClasses": [{"name": golden_images::STORAGE_CLASS, "isDefaultClass": true}],
    });
    if has_golden_image {
        let entry = json!({"image": IMAGE, "size": "10Gi", "preload": true});
        config["images"] = json!({"namespace": golden_images::NAMESPACE, "catalog": [entry]});
    }
    let mut all = vec![
        NewObject::new(
            "/apis/berth.dev/v1alpha1/infraconfigs",
            &ours("InfraConfig", "default", config),
        ),
        NewObject::new(
            "/apis/berth.dev/v1alpha1/hostprofiles",
            &ours("HostProfile", "all", json!({"class": "Standard", "networks": [trunk]})),
        ),
    ];
    for name in &names {
        all.push(NewObject::new("/api/v1/nodes", &registered_node(name)));
        all.push(NewObject::new(INFRA_NODES, &ours("InfraNode", name, json!({}))));
    }
    cluster.create(&all)?;
    for name in names {
        cluster.spawn(simulate_agent(cluster.counting_client(), name));
    }
    Ok(())
}

/// Waits until the spec of every InfraNode has the networks of the tenants, and its status refers to the current
/// generation.
pub(super) fn wait_for_hosts(cluster: &Cluster, count: u32) -> Result<()> {
    cluster.wait_until("hosts have the network", Duration::from_secs(60), |cluster| {
        let all = cluster.list_from_cache(INFRA_NODES)?;
        let is_ready = |host: &&Value| {
            host["spec"]["networks"][0]["name"] == NETWORK
                && host["status"]["observedGeneration"] == host["metadata"]["generation"]
        };
        let ready_count = all.iter().filter(is_ready).count();
        Ok(if ready_count == usize::try_from(count)? {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(format!("{ready_count} of {count}"))
        })
    })
}

/// Waits until the controller has created the import of the golden image, and completes the import, as CDI does.
pub(super) fn complete_import(cluster: &Cluster) -> Result<()> {
    cluster.wait_until("the image is imported", Duration::from_secs(60), |cluster| {
        let Some(import) = cluster.list_from_cache(&imports_path())?.pop() else {
            return Ok(ControlFlow::Continue("no import".to_owned()));
        };
        let name = import["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        // The kind DataVolume has no status subresource here.
        cluster.merge(&imports_path(), "", &[(name, json!({"status": {"phase": "Succeeded"}}))])?;
        Ok(ControlFlow::Break(()))
    })
}

/// Returns the URL path of the DataVolumes of golden images.
fn imports_path() -> String {
    collection_path("cdi.kubevirt.io/v1beta1", golden_images::NAMESPACE, "datavolumes")
}

/// Simulates an agent: updates the status of the InfraNode a short time after its spec has changed.
async fn simulate_agent(caller: CountingClient, name: String) {
    loop {
        // If the API server is busy, ignores the error and retries in the next iteration.
        drop(report_status(&caller, &name).await);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn report_status(caller: &CountingClient, name: &str) -> Result<()> {
    let host = caller.get(INFRA_NODES, name).await?;
    let generation = &host["metadata"]["generation"];
    if host["status"]["observedGeneration"] == *generation {
        return Ok(());
    }
    let tenants = host["spec"]["tenantNetworks"].as_array().map_or(0, Vec::len);
    let networks = match host["spec"]["networks"].as_array() {
        Some(_) => json!([{"name": NETWORK, "ready": tenants, "pending": 0, "failed": 0}]),
        None => json!([]),
    };
    let status =
        json!({"observedGeneration": generation, "networks": networks, "capabilities": {}});
    caller.update_status(INFRA_NODES, name, &status).await
}
