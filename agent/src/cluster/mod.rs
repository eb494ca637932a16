//! The cluster: [`watch_object`] and [`store`] receive the desired state, [`publisher`] and [`events`] publish the actual state,
//! [`lease`] sends heartbeats, and [`topology`] publishes the NodeResourceTopology if enabled.
//!
//! The agent reads and writes only its InfraNode and its Node. It writes only differences, by server-side apply
//! without force: a field of another manager is not changed, and the conflict is logged. While the API server is
//! unreachable, the agent applies the last spec, which is saved on disk; one write updates the server afterwards.

mod events;
mod lease;
mod publisher;
mod store;
mod topology;

use std::path::PathBuf;
use std::sync::Arc;

use berth_runtime::client::{self, Connected};
use berth_runtime::credential::Credential;
use berth_runtime::watch::watch_object;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, NotUsed, Object};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use events::CycleEvent;
pub use publisher::Report;
pub use store::{DesiredState, Generation, Store};

/// Fields of a Node's status that the agent reads; the others (mainly images) are large.
#[derive(Debug, Clone, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    conditions: Vec<k8s_openapi::api::core::v1::NodeCondition>,
    capacity:
        std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    allocatable:
        std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
}

/// A Node with only the fields that the agent reads.
type SlimNode = Object<NotUsed, NodeStatus>;

/// Cluster and identity of this agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Kubeconfig; `None` for the ServiceAccount of the pod or `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the Node, and of the InfraNode.
    pub node: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Enables the NodeResourceTopology.
    pub node_resource_topology: bool,
}

/// API handles of the Node and the InfraNode.
#[derive(Clone)]
struct Objects {
    node: String,
    nodes: Api<SlimNode>,
    infra_nodes: Api<DynamicObject>,
}

impl Objects {
    fn new(client: &kube::Client, node: &str) -> Self {
        let infra_node = ApiResource::erase::<berth_api::InfraNode>(&());
        Self {
            node: node.to_owned(),
            nodes: Api::all_with(client.clone(), &ApiResource::erase::<Node>(&())),
            infra_nodes: Api::all_with(client.clone(), &infra_node),
        }
    }
}

/// Returns an owner reference to the Node, for garbage collection.
fn owner(node: &str, uid: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}

/// Tasks that communicate with the cluster; aborted when dropped.
#[derive(Debug)]
pub struct Joined(Vec<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Starts watching and publishing. Calls `wake` when the spec changed, and `alive` before each heartbeat; emits the events of
/// the channel.
///
/// # Errors
/// If the kubeconfig or the ServiceAccount cannot be read. An unreachable server is retried.
pub async fn join(
    settings: &Settings,
    store: &Arc<Store>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    (sender, events): (mpsc::Sender<CycleEvent>, mpsc::Receiver<CycleEvent>),
    alive: Arc<dyn Fn() -> bool + Send + Sync>,
    wake: impl Fn() + Send + Sync + 'static,
) -> anyhow::Result<Joined> {
    let hint = " (or --standalone FILE to do without a cluster)";
    let (client, server, credential) = match &settings.kubeconfig {
        Some(path) => {
            let credential = Credential::read(path, hint).await?;
            (credential.client(), credential.server(), Some(credential))
        }
        None => {
            let Connected { client, server, .. } = client::connect(None, hint, |_| {}).await?;
            (client, server, None)
        }
    };
    store.set_server(server);
    store.set_credential(credential.clone());
    let objects = Objects::new(&client, &settings.node);
    let wake = Arc::new(wake);
    let node = {
        let store = Arc::clone(store);
        let name = settings.node.clone();
        watch_object(objects.nodes.clone(), "Node", name, move |node| store.update_node(node))
    };
    let infra_node = {
        let store = Arc::clone(store);
        let name = settings.node.clone();
        watch_object(objects.infra_nodes.clone(), "InfraNode", name, move |object| {
            if store.update_infra_node(object) {
                wake();
            }
        })
    };
    let topology = settings.node_resource_topology.then(|| {
        let node = settings.node.clone();
        topology::publish(&client, node, Arc::clone(store), Arc::clone(&reports), sender)
    });
    let publisher = publisher::publish(objects, Arc::clone(store), reports);
    let lease = lease::renew(client.clone(), settings.clone(), Arc::clone(store), alive);
    let events = events::emit(client, settings.clone(), Arc::clone(store), events);
    let mut tasks = vec![
        tokio::spawn(node),
        tokio::spawn(infra_node),
        tokio::spawn(publisher),
        tokio::spawn(lease),
        tokio::spawn(events),
    ];
    tasks.extend(topology.map(tokio::spawn));
    tasks.extend(credential.map(|credential| tokio::spawn(credential.renew())));
    Ok(Joined(tasks))
}
