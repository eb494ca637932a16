//! Reconciler of MachineDeployments: creates the desired number of VirtualMachines for each MachineDeployment.
//!
//! [`berth_kubevirt_render::machines`] computes the desired state. Objects that change often are read from informer
//! stores, so a reconcile without a difference sends no request. Secrets and storage classes are read when a machine
//! is created.

mod access;
mod address_gc;
mod address_plans;
mod address_restore;
mod addresses;
mod apply;
mod attached;
mod context;
mod delays;
mod deleted_machines;
mod deletion;
mod disk_backoff;
mod disk_deletion;
mod disk_expansion;
mod disk_pass;
mod disk_report;
mod disk_retention;
mod disks;
mod errors;
mod guest;
mod images;
mod index;
mod informers;
mod machine;
mod machine_controller;
mod node_port_refusals;
mod node_ports;
mod prefixes;
mod read;
mod readiness;
mod reconcile;
mod recorded_namespace;
mod references;
mod removal;
mod resources;
mod template;
mod tenant_status;
mod triggers;
mod update_status;
mod user_data;
mod validated;

use std::sync::Arc;
use std::time::Duration;

use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcileRequest, ReconcilerOptions, run_reconciler};
use futures::stream::poll_fn;
use kube::Client;
use kube::api::DynamicObject;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::events::EventEmitter;
use super::metrics::Metrics;
use super::removal::{self as removals, RemovalContext, RemovalTriggers};
use crate::api_resource::deployment_resource;
use context::MachineContext;
use errors::RequestError;
use index::object_key;
pub use informers::MachineInformers;
use informers::OwnInformers;
use triggers::MachineTriggers;

const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "machines", concurrency: 8, debounce: Duration::from_millis(200) };

/// Reconciles MachineDeployments until the future is dropped, which may happen at any moment. Each MachineDeployment
/// is reconciled again after `resync`, in case an event was lost.
pub async fn run(
    client: Client,
    events: Arc<EventEmitter>,
    metrics: Arc<Metrics>,
    shared_informers: MachineInformers,
    resync: Duration,
) {
    let (queue, requests) = unbounded_channel();
    let tenant_changes = shared_informers.tenants.subscribe();
    let claim_changes = shared_informers.addresses.informer().subscribe();
    let triggers = Arc::new(MachineTriggers::new(queue, shared_informers.tenants.clone()));
    let (removal_queue, removal_requests) = unbounded_channel();
    let connections = shared_informers.connections.clone();
    let removal_triggers = Arc::new(RemovalTriggers::new(removal_queue, connections));
    let (own_informers, watches) =
        OwnInformers::start(&client, &shared_informers, &triggers, &removal_triggers);
    triggers.set_stores(&own_informers.deployments, &own_informers.machines);
    shared_informers.subscribe(&triggers, &removal_triggers, &own_informers.machines);
    let removal_context = RemovalContext {
        client: client.clone(),
        events: Arc::clone(&events),
        metrics: Arc::clone(&metrics),
        machines: own_informers.machines.clone(),
        instances: shared_informers.instances.informer().clone(),
        deployments: own_informers.deployments.clone(),
        tenants: shared_informers.tenants.clone(),
        nodes: shared_informers.nodes.clone(),
        configs: shared_informers.configs.clone(),
        connections: shared_informers.connections.clone(),
        table: Arc::clone(&shared_informers.removals),
        watch_health: Arc::clone(&shared_informers.watch_health),
    };
    let context =
        MachineContext::new(client, events, shared_informers, own_informers, Arc::clone(&triggers));
    tokio::join!(
        reconcile_all(Arc::new(context), requests, metrics, resync),
        removals::run(removal_context, removal_requests),
        watches,
        triggers.handle_tenant_changes(tenant_changes),
        triggers.handle_claim_changes(claim_changes)
    );
}

/// Reconciles all MachineDeployments when the stores are ready, and then each MachineDeployment in the queue; never
/// ends.
async fn reconcile_all(
    context: Arc<MachineContext>,
    mut requests: UnboundedReceiver<ReconcileRequest<DynamicObject>>,
    metrics: Arc<Metrics>,
    resync: Duration,
) {
    let store = context.wait_until_ready().await;
    for object in store.state() {
        context.triggers.handle_deployment(&object, false);
        context.images.handle_deployment(&object_key(&object), false);
    }
    context.images.set_listed();
    let requests = poll_fn(|cx| requests.poll_recv(cx));
    let reconcile = |object| reconcile(object, Arc::clone(&context), resync);
    let reconciler =
        run_reconciler(OPTIONS, deployment_resource(), store, requests, metrics, reconcile);
    tokio::join!(reconciler, address_gc::run(&context));
}

async fn reconcile(
    object: Arc<DynamicObject>,
    context: Arc<MachineContext>,
    resync: Duration,
) -> Result<Action, RequestError> {
    let requeue_after = reconcile::reconcile(&context, &object).await?;
    let resync = add_jitter(resync);
    Ok(Action::requeue(requeue_after.map_or(resync, |again| again.min(resync))))
}
