//! Simulation of hosts: creates Nodes and InfraNodes, and sends the reports that agents on the hosts would send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use berth_api::{InfraNode, TenantCluster};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{create_client, create_runtime};

/// Behaviour of the simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetBehaviour {
    /// Simulates the agents: their reports show `InfraNode.spec` as applied.
    Agents,
    /// Simulates the agents, and the controller's writes to `InfraNode.spec`: each host has one network of this name,
    /// and carries all tenants that have a VLAN.
    AgentsAndSpecs(&'static str),
}

/// Running simulation of hosts, stopped on drop.
#[derive(Debug)]
pub struct Fleet {
    runtime: Option<Runtime>,
    /// True while the simulated agents respond.
    pub is_responding: Arc<AtomicBool>,
}

impl Fleet {
    /// Creates Nodes and InfraNodes of these names, and starts the simulation.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig, or if the server refuses an object.
    pub fn start(
        kubeconfig: &std::path::Path,
        names: &[&str],
        behaviour: FleetBehaviour,
    ) -> Result<Self> {
        let runtime = create_runtime()?;
        let is_responding = Arc::new(AtomicBool::new(true));
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let client = runtime.block_on(async {
            let client = create_client(kubeconfig).await?;
            for name in &names {
                create_host(&client, name, &behaviour).await?;
            }
            anyhow::Ok(client)
        })?;
        let responding = Arc::clone(&is_responding);
        runtime.spawn(async move {
            loop {
                for name in &names {
                    // After an error, such as a conflict or a busy server, the next iteration tries again.
                    drop(
                        update_host(&client, name, &behaviour, responding.load(Ordering::SeqCst))
                            .await,
                    );
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Ok(Self { runtime: Some(runtime), is_responding })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

async fn create_host(client: &Client, name: &str, behaviour: &FleetBehaviour) -> Result<()> {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let spec = match behaviour {
        FleetBehaviour::Agents => json!({}),
        FleetBehaviour::AgentsAndSpecs(network) => json!({"networks": [
            {"name": network, "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}, "mtu": 9000},
        ]}),
    };
    let infra = InfraNode::new(name, serde_json::from_value(spec)?);
    let api: Api<InfraNode> = Api::all(client.clone());
    api.create(&PostParams::default(), &infra).await?;
    Ok(())
}

async fn update_host(
    client: &Client,
    name: &str,
    behaviour: &FleetBehaviour,
    is_responding: bool,
) -> Result<()> {
    let api: Api<InfraNode> = Api::all(client.clone());
    let params = PatchParams::default();
    if let FleetBehaviour::AgentsAndSpecs(network) = behaviour {
        let desired = desired_tenants(client, network).await?;
        let current = serde_json::to_value(&api.get(name).await?.spec.tenant_networks)?;
        if current != desired {
            let patch = json!({"spec": {"tenantNetworks": desired}});
            api.patch(name, &params, &Patch::Merge(patch)).await?;
        }
    }
    if !is_responding {
        return Ok(());
    }
    let node = api.get(name).await?;
    let observed_generation = node.status.as_ref().and_then(|status| status.observed_generation);
    if observed_generation != node.metadata.generation {
        let networks = node.spec.networks.iter().map(|network| {
            let is_on_network =
                |tenant: &&berth_api::infra_node::TenantNetworkSpec| tenant.network == network.name;
            let count = node.spec.tenant_networks.iter().filter(is_on_network).count();
            json!({"name": network.name, "ready": count, "pending": 0, "failed": 0})
        });
        let status = json!({"status": {
            "observedGeneration": node.metadata.generation, "networks": networks.collect::<Vec<_>>(),
            "capabilities": {},
        }});
        api.patch_status(name, &params, &Patch::Merge(status)).await?;
    }
    Ok(())
}

/// Returns the tenants that a host must carry according to the tenants' statuses.
async fn desired_tenants(client: &Client, network: &str) -> Result<Value> {
    // The objects are untyped: hosts carry the tenants of the status even if the rest of an object cannot be
    // parsed.
    let resource = ApiResource::erase::<TenantCluster>(&());
    let tenants: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut desired = Vec::new();
    for tenant in tenants.list(&ListParams::default()).await? {
        if let Some(vlan) = tenant.data["status"]["vlan"].as_u64() {
            let namespace = TenantCluster::namespace_of(&tenant.name_any());
            desired.push(json!({"name": namespace, "network": network, "vlan": vlan}));
        }
    }
    Ok(Value::Array(desired))
}
