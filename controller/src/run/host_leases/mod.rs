//! Reconciler of HostLeases: writes the leases of the VMs on each host, which [`crate::tenants::host_leases`] computes.
//!
//! Only the controller writes these objects. It never deletes them, because their owner is the Node.

pub mod informers;
mod triggers;
mod write;

use std::sync::Arc;
use std::time::Duration;

use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use futures::channel::mpsc::unbounded;
use kube::Client;

use super::apply::Writer;
use super::events::EventEmitter;
use super::machine_instances::MachineInstances;
use super::metrics::Metrics;
use super::reconcile::ReconcileFailure;
use informers::LeaseInformers;
use triggers::HostLeaseTriggers;
use write::HostLeasesWriter;

/// The triggers already limit reconciles to one per host and second, so the debounce is short.
const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "leases", concurrency: 16, debounce: Duration::from_millis(20) };

/// Writes HostLeases until the future is dropped, which may happen at any moment. The HostLeases of each host are
/// computed again after `resync`, in case an event was lost.
pub async fn run(
    client: Client,
    events: Arc<EventEmitter>,
    metrics: Arc<Metrics>,
    informers: LeaseInformers,
    instances: MachineInstances,
    resync: Duration,
) {
    let (queue, requests) = unbounded();
    // Before all kinds are listed, no host may be reconciled: its VMs would lose their leases. The triggers subscribe
    // afterwards, because queued changes would use up the memory while a CustomResourceDefinition is missing.
    informers.wait_until_ready().await;
    instances.informer().wait_until_ready().await;
    let (triggers, changes) = HostLeaseTriggers::subscribe(informers.clone(), instances, queue);
    triggers.fill_index();
    let writer = Writer::new(client, Arc::clone(&metrics));
    let writer =
        Arc::new(HostLeasesWriter::new(writer, events, informers.clone(), triggers.index()));
    let reconcile = |host| {
        let writer = Arc::clone(&writer);
        async move {
            writer.reconcile(host).await?;
            Ok::<Action, ReconcileFailure>(Action::requeue(add_jitter(resync)))
        }
    };
    let store = informers.infra_nodes.store().clone();
    tokio::join!(
        triggers.handle_changes(changes),
        run_reconciler(OPTIONS, (), store, requests, metrics, reconcile)
    );
}
