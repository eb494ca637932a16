//! Creates the objects that exist before the first tenant: a control plane with the CustomResourceDefinitions, and
//! hosts with simulated agents.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use berth_tests::cluster::{ControlPlane, Parts, registered};
use serde_json::{Value, json};

use crate::cluster::{Caller, Cluster, New};

/// The host network of all tenants.
pub(super) const NETWORK: &str = "trunk";
/// Range of the VLAN pool.
pub(super) const VLANS: &str = "100-4094";
/// Time between two checks of a simulated agent. A real agent debounces changes too.
const ROUND: Duration = Duration::from_secs(1);
const INFRA_NODES: &str = "/apis/berth.dev/v1alpha1/infranodes";

/// Starts a control plane with all CustomResourceDefinitions, including the CustomResourceDefinitions of KubeVirt.
pub(super) fn start() -> Result<ControlPlane> {
    let plane = ControlPlane::start(Parts::default())?;
    plane.deploy(&["base/rbac-controller.yaml"])?;
    plane.define_attachments()?;
    plane.define_machine_deployments()?;
    plane.define_kubevirt(&[
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancetypes.instancetype.kubevirt.io",
        "virtualmachinepreferences.instancetype.kubevirt.io",
    ])?;
    Ok(plane)
}

/// Creates Nodes, InfraNodes and the configuration of the hosts. The simulated agents run until the cluster is
/// dropped.
pub(super) fn make_hosts(cluster: &Cluster, count: u32) -> Result<()> {
    let names: Vec<String> = (1..=count).map(|number| format!("host-{number}")).collect();
    let trunk = json!({"name": NETWORK, "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}, "mtu": 9000});
    let ours = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let pools = json!({"vlanPools": [{"network": NETWORK, "ranges": [VLANS]}]});
    let mut all = vec![
        New::at("/apis/berth.dev/v1alpha1/infraconfigs", &ours("InfraConfig", "default", pools)),
        New::at(
            "/apis/berth.dev/v1alpha1/hostprofiles",
            &ours("HostProfile", "all", json!({"class": "Standard", "networks": [trunk]})),
        ),
    ];
    for name in &names {
        all.push(New::at("/api/v1/nodes", &registered(name)));
        all.push(New::at(INFRA_NODES, &ours("InfraNode", name, json!({}))));
    }
    cluster.create(&all)?;
    for name in names {
        cluster.beside(agent(cluster.caller(), name));
    }
    Ok(())
}

/// Waits until the spec of every InfraNode has the network and the status has observed the spec.
pub(super) fn await_hosts(cluster: &Cluster, count: u32) -> Result<()> {
    cluster.until("hosts have the network", Duration::from_secs(60), |cluster| {
        let all = cluster.cached(INFRA_NODES)?;
        let is_so = |host: &&Value| {
            host["spec"]["networks"][0]["name"] == NETWORK
                && host["status"]["observedGeneration"] == host["metadata"]["generation"]
        };
        let so = all.iter().filter(is_so).count();
        Ok(if so == usize::try_from(count)? {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(format!("{so} of {count}"))
        })
    })
}

/// Simulates an agent: updates the status a short time after a change of the spec.
async fn agent(caller: Caller, name: String) {
    loop {
        // Ignores an error of a busy API server and retries in the next round.
        drop(answer(&caller, &name).await);
        tokio::time::sleep(ROUND).await;
    }
}

async fn answer(caller: &Caller, name: &str) -> Result<()> {
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
    caller.say(INFRA_NODES, name, &status).await
}
