//! Hosts as the hosts' reconciler and their agents would keep them: what tenants' statuses say is asked for, and done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::{InfraNode, TenantCluster};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;
use tokio::runtime::Runtime;

/// A client as the administrator.
pub(crate) async fn client(kubeconfig: &std::path::Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A controller that is ended, wherever it is, when this is dropped.
pub(crate) struct Controller(Option<Runtime>);

impl Controller {
    pub(crate) fn start(kubeconfig: &std::path::Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let path = kubeconfig.to_owned();
        runtime.spawn(async move {
            let client = client(&path).await;
            // Without a server it would end; that is the test's end then.
            berth_controller::run::tenants::run(client).await.map(drop).unwrap();
        });
        Self(Some(runtime))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Hosts with one network.
pub(crate) struct Fleet {
    runtime: Runtime,
    /// Whether agents answer.
    pub(crate) answers: Arc<AtomicBool>,
}

const NETWORK: &str = "trunk";

impl Fleet {
    pub(crate) fn start(kubeconfig: &std::path::Path, names: &'static [&'static str]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let answers = Arc::new(AtomicBool::new(true));
        let (path, may) = (kubeconfig.to_owned(), Arc::clone(&answers));
        runtime.block_on(async {
            let client = client(&path).await;
            for name in names {
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
                let nodes: Api<Node> = Api::all(client.clone());
                nodes
                    .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
                    .await
                    .unwrap();
                let spec = json!({"networks": [
                    {"name": NETWORK, "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}, "mtu": 9000},
                ]});
                let infra = InfraNode::new(name, serde_json::from_value(spec).unwrap());
                let api: Api<InfraNode> = Api::all(client.clone());
                api.create(&PostParams::default(), &infra).await.unwrap();
            }
        });
        runtime.spawn(async move {
            let client = client(&path).await;
            loop {
                for name in names {
                    // A conflict or a server that is busy: the next round.
                    drop(round(&client, name, may.load(Ordering::SeqCst)).await);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self { runtime, answers }
    }

    pub(crate) fn end(self) {
        self.runtime.shutdown_background();
    }
}

async fn round(client: &Client, name: &str, answers: bool) -> kube::Result<()> {
    let tenants: Api<TenantCluster> = Api::all(client.clone());
    let mut asked = Vec::new();
    for tenant in tenants.list(&ListParams::default()).await? {
        if let Some(vlan) = tenant.status.as_ref().and_then(|status| status.vlan) {
            let namespace = TenantCluster::namespace_of(&tenant.name_any());
            asked.push(json!({"name": namespace, "network": NETWORK, "vlan": vlan}));
        }
    }
    let api: Api<InfraNode> = Api::all(client.clone());
    let node = api.get(name).await?;
    let there = serde_json::to_value(&node.spec.tenant_networks).unwrap();
    let count = asked.len();
    let params = PatchParams::default();
    if there != json!(asked) {
        let patch = json!({"spec": {"tenantNetworks": asked}});
        api.patch(name, &params, &Patch::Merge(patch)).await?;
    }
    if !answers {
        return Ok(());
    }
    let node = api.get(name).await?;
    let answered = node.status.as_ref().and_then(|status| status.observed_generation);
    if answered != node.metadata.generation {
        let network = json!({"name": NETWORK, "ready": count, "pending": 0, "failed": 0});
        let status = json!({"status": {
            "observedGeneration": node.metadata.generation, "networks": [network], "capabilities": {},
        }});
        api.patch_status(name, &params, &Patch::Merge(status)).await?;
    }
    Ok(())
}
