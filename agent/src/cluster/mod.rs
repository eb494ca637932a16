//! The cluster: [`watch_object`] and [`store`] receive the desired state, [`publisher`] and [`events`] publish the
//! actual state, [`lease`] sends heartbeats, and [`topology`] publishes the NodeResourceTopology if enabled.
//!
//! The agent reads its HostLeases, and reads and writes only its InfraNode and its Node. It writes only differences,
//! by server-side apply without force: a field of another manager is not changed, and the conflict is logged. While
//! the API server is unreachable, the agent applies the last spec, which is saved on disk; one write updates the
//! server afterwards.

mod events;
mod lease;
mod objects;
mod publisher;
mod settings;
mod store;
mod topology;

use std::sync::Arc;

use berth_runtime::client::{self, Connection};
use berth_runtime::credential::Credential;
use berth_runtime::watch::watch_object;
use kube::core::DynamicObject;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use events::CycleEvent;
use objects::Objects;
pub use publisher::Report;
pub use settings::Settings;
pub use store::{DesiredState, Generation, Store};

/// Tasks that communicate with the cluster; they are aborted when this value is dropped.
#[derive(Debug)]
pub struct ClusterTasks(Vec<JoinHandle<()>>);

impl Drop for ClusterTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Starts the tasks that watch and publish. They call `wake` when the desired state changes, `update_leases` with each
/// state of the HostLeases, and `is_alive` before each heartbeat, and emit the events of the channel.
///
/// # Errors
/// If the kubeconfig or the ServiceAccount cannot be read. An unreachable server is retried.
pub async fn start_tasks(
    settings: &Settings,
    store: &Arc<Store>,
    latest_report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    (sender, events): (mpsc::Sender<CycleEvent>, mpsc::Receiver<CycleEvent>),
    is_alive: Arc<dyn Fn() -> bool + Send + Sync>,
    wake: impl Fn() + Send + Sync + 'static,
    update_leases: impl Fn(Option<DynamicObject>) + Send + Sync + 'static,
) -> anyhow::Result<ClusterTasks> {
    let hint = " (or --standalone FILE to run without a cluster)";
    let (client, server, credential) = match &settings.kubeconfig {
        Some(path) => {
            let credential = Credential::read(path, hint).await?;
            (credential.client(), credential.server(), Some(credential))
        }
        None => {
            let Connection { client, server, .. } = client::connect(None, hint, |_| {}).await?;
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
    let name = settings.node.clone();
    let leases = watch_object(objects.host_leases.clone(), "HostLeases", name, update_leases);
    let topology = settings.node_resource_topology.then(|| {
        let node = settings.node.clone();
        topology::publish(&client, node, Arc::clone(store), Arc::clone(&latest_report), sender)
    });
    let publisher = publisher::publish(objects, Arc::clone(store), latest_report);
    let lease = lease::renew_lease(client.clone(), settings.clone(), Arc::clone(store), is_alive);
    let events = events::emit_events(client, settings.clone(), Arc::clone(store), events);
    let mut tasks = vec![
        tokio::spawn(node),
        tokio::spawn(infra_node),
        tokio::spawn(leases),
        tokio::spawn(publisher),
        tokio::spawn(lease),
        tokio::spawn(events),
    ];
    tasks.extend(topology.map(tokio::spawn));
    tasks.extend(credential.map(|credential| tokio::spawn(credential.reload_on_change())));
    Ok(ClusterTasks(tasks))
}
