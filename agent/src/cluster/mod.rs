//! The cluster: what it asks of this host comes in ([`watch_object`], [`seen`]), what the host is goes out ([`publisher`],
//! [`events`]), and a sign of life beside it ([`lease`]); if so told, a NodeResourceTopology too ([`topology`]).
//!
//! The agent reads and writes its own InfraNode and its own Node, and nothing else but these. It writes only what differs
//! from what the server has, by server-side apply and without force: a field that somebody else holds is left to
//! them, and said. An API server that is away changes nothing on the host: the last spec it gave is kept on disk,
//! and one write brings it up to date afterwards.

mod events;
mod lease;
mod publisher;
mod seen;
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
pub use seen::{Asked, Generation, Seen};

/// The part of a Node's status that is read; the rest (images above all) is large and not needed.
#[derive(Debug, Clone, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    conditions: Vec<k8s_openapi::api::core::v1::NodeCondition>,
    capacity:
        std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    allocatable:
        std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
}

/// A Node as far as it is read.
type SlimNode = Object<NotUsed, NodeStatus>;

/// Which cluster, and who we are there.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A kubeconfig; `None` for the ServiceAccount of the pod, or what `KUBECONFIG` says.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the Node, and of the InfraNode.
    pub node: String,
    /// Where the Lease lies.
    pub namespace: String,
    /// Whether it writes a NodeResourceTopology.
    pub node_resource_topology: bool,
}

/// The two objects that matter.
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

/// For objects that go when their Node goes.
fn owner(node: &str, uid: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}

/// Ends all traffic with the cluster when dropped.
#[derive(Debug)]
pub struct Joined(Vec<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Begins to watch and to publish. Calls `wake` when the spec changed, and asks `alive` before each sign of life; tells
/// the tales that come.
///
/// # Errors
/// If the kubeconfig or the ServiceAccount cannot be read. A server that does not answer is waited for.
pub async fn join(
    settings: &Settings,
    seen: &Arc<Seen>,
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
    seen.remember_server(server);
    seen.remember_credential(credential.clone());
    let objects = Objects::new(&client, &settings.node);
    let wake = Arc::new(wake);
    let node = {
        let seen = Arc::clone(seen);
        let name = settings.node.clone();
        watch_object(objects.nodes.clone(), "Node", name, move |node| seen.see_node(node))
    };
    let infra_node = {
        let seen = Arc::clone(seen);
        let name = settings.node.clone();
        watch_object(objects.infra_nodes.clone(), "InfraNode", name, move |object| {
            if seen.see_infra_node(object) {
                wake();
            }
        })
    };
    let topology = settings.node_resource_topology.then(|| {
        let node = settings.node.clone();
        topology::publish(&client, node, Arc::clone(seen), Arc::clone(&reports), sender)
    });
    let publisher = publisher::publish(objects, Arc::clone(seen), reports);
    let lease = lease::renew(client.clone(), settings.clone(), Arc::clone(seen), alive);
    let events = events::tell(client, settings.clone(), Arc::clone(seen), events);
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
