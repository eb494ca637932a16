//! Observes drains of a tenant's Nodes with separate watches of both API servers.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod availability;
mod record;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::unbounded_channel;

use crate::event_watch::{self, api_and_start_version, send_events};
use crate::simulated::{create_client, create_runtime};
use crate::tenant_clusters::Clusters;
use record::{Event, Record};

/// Running observation, stopped on drop.
#[derive(Debug)]
pub struct Observer {
    runtime: Option<Runtime>,
    record: Arc<Mutex<Record>>,
}

/// The kind that a watch observes.
#[derive(Debug)]
enum Kind {
    Node,
    Pod,
    Volume,
    /// VirtualMachines; contains the API of the tenant's Nodes, to find the Node of a deleted machine.
    Machine(Box<Api<Node>>),
}

impl Observer {
    /// Starts the observation. No objects may exist yet. `minimum` is the number of pods of each app that must be
    /// healthy.
    #[must_use]
    pub fn start(clusters: &Clusters, minimum: usize) -> Self {
        let runtime = create_runtime().unwrap();
        let record = Arc::new(Mutex::new(Record::new(minimum)));
        let (infra, tenant) = (clusters.infra.kubeconfig(), clusters.tenant.kubeconfig());
        let all = runtime.block_on(async {
            let infra = create_client(&infra).await.unwrap();
            let tenant = create_client(&tenant).await.unwrap();
            let machine = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine");
            let machine = ApiResource::from_gvk(&machine);
            let nodes = Api::all(tenant.clone());
            let watches = [
                (Kind::Node, &tenant, ApiResource::erase::<Node>(&())),
                (Kind::Pod, &tenant, ApiResource::erase::<Pod>(&())),
                (Kind::Volume, &tenant, ApiResource::erase::<VolumeAttachment>(&())),
                (Kind::Machine(Box::new(nodes)), &infra, machine),
            ];
            let mut all = Vec::new();
            for (kind, client, resource) in watches {
                all.push((kind, api_and_start_version(client, &resource).await.unwrap()));
            }
            all
        });
        let begin = Instant::now();
        for (kind, (api, version)) in all {
            runtime.spawn(observe(kind, api, version, begin, Arc::clone(&record)));
        }
        Self { runtime: Some(runtime), record }
    }

    /// Returns the number of Nodes that were drained and deleted.
    #[must_use]
    pub fn drained_nodes(&self) -> usize {
        lock(&self.record).drained_nodes()
    }

    /// Sets the number of machines that must be available whenever the removal of a machine begins; with `None`, it is
    /// not verified.
    pub fn require_machines(&self, minimum: Option<usize>) {
        lock(&self.record).availability.minimum = minimum;
    }

    /// Returns the violations of the rules of drains. Events of different kinds may arrive out of order, so a violation
    /// may disappear when later events arrive.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        lock(&self.record).violations()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Observes a kind.
async fn observe(
    kind: Kind,
    api: Api<DynamicObject>,
    version: String,
    begin: Instant,
    record: Arc<Mutex<Record>>,
) {
    let (sender, mut events) = unbounded_channel();
    let handle = async {
        while let Some(event) = events.recv().await {
            let (object, is_deleted) = match event {
                event_watch::Event::Written(object) => (object, false),
                event_watch::Event::Deleted(object) => (object, true),
                event_watch::Event::Lost(message) => {
                    record_lost_events(&record, &kind, &message);
                    continue;
                }
            };
            record_event(&kind, begin.elapsed(), is_deleted, &object, &record).await;
        }
    };
    tokio::join!(send_events(api, version, sender), handle);
}

/// Reports that events were lost, because the server does not have the last version any more.
fn record_lost_events(record: &Mutex<Record>, kind: &Kind, message: &str) {
    let violation = format!("events of {kind:?} are lost: {message}");
    lock(record).other_violations.push(violation);
}

async fn record_event(
    kind: &Kind,
    at: Duration,
    is_deleted: bool,
    object: &DynamicObject,
    record: &Mutex<Record>,
) {
    let version = object.resource_version().and_then(|version| version.parse().ok());
    let event = Event { version: version.unwrap_or_default(), at, is_deleted, object };
    match kind {
        Kind::Node => lock(record).handle_node(event),
        Kind::Pod => lock(record).handle_pod(event),
        Kind::Volume => lock(record).handle_volume(event),
        Kind::Machine(nodes) => {
            lock(record).handle_machine(event);
            if is_deleted {
                let violation = violation_of_machine(nodes, object, record).await;
                lock(record).other_violations.extend(violation);
            }
        }
    }
}

/// Returns the violation if the Node of a deleted machine exists. The Node is read after the deletion of
/// the machine, so a Node that was deleted before is never found.
async fn violation_of_machine(
    nodes: &Api<Node>,
    machine: &DynamicObject,
    record: &Mutex<Record>,
) -> Option<String> {
    let name = machine.name_any();
    let node = nodes.get_opt(&name).await;
    // A Node that was never ready need not be drained: the cloud controller manager deletes it.
    let is_drained = matches!(node, Ok(None)) || !lock(record).was_ready(&name);
    (!is_drained).then(|| format!("machine {name} was deleted before its Node: {node:?}"))
}
