//! Reconciler of hosts whose pods were evicted: moves the machines of MachineDeployments from these hosts.
//!
//! [`crate::evacuation`] decides. While no pod is evicted, the reconciler sends no request. During an evacuation it
//! reads the MachineDeployments of the affected machines, their VirtualMachines and their migrations from the API
//! server, and reconciles one host at a time, so that no decision is based on stale state when several hosts are
//! drained at once.

mod apply;
mod evacuator;
mod events;
mod index;
mod informers;
mod read;
mod reconcile;
mod resources;
mod status;
mod triggers;
mod write_results;

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::EVACUATING_LABEL;
use berth_api::{InfraNode, TenantCluster};
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use berth_runtime::watch::{OptionalInformer, OptionalKind};
use futures::channel::mpsc::unbounded;
use kube::Client;
use tokio::sync::mpsc::unbounded_channel;

use super::apply::Writer;
use super::events::EventEmitter;
use super::metrics::Metrics;
use super::reconcile::ReconcileFailure;
use super::tenant_access::TenantObjects;
use crate::api_resource::machine_resource;
use crate::evacuation::targets::TargetFinder;
use evacuator::Evacuator;
use index::EvacuationIndex;
use resources::{migration_resource, trim_machine, trim_migration};
use triggers::EvacuationTriggers;

pub use informers::EvacuationInformers;

/// Reconciles one host at a time, because decisions about the same MachineDeployment must not overlap.
const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "evacuation", concurrency: 1, debounce: Duration::from_millis(300) };

/// Minimum interval between reconciles of a host that removal reports or lists of a tenant's Nodes trigger. A tenant can
/// change the state of its pods, and thus the reports, at any rate, and its API server can end each watch.
const REPORT_PERIOD: Duration = Duration::from_secs(5);

/// Moves machines from hosts whose pods were evicted, until the future is dropped, which may happen at any moment.
/// `targets` finds the targets of live migrations; `None` if the scheduler extender is disabled.
pub async fn run(
    client: Client,
    events: Arc<EventEmitter>,
    metrics: Arc<Metrics>,
    informers: EvacuationInformers,
    targets: Option<Arc<dyn TargetFinder>>,
    resync: Duration,
) {
    let (queue, requests) = unbounded();
    let index = Arc::new(EvacuationIndex::default());
    let triggers = Arc::new(EvacuationTriggers::new(queue, Arc::clone(&index)));
    let kind = OptionalKind {
        resource: machine_resource(),
        label_selector: Some(EVACUATING_LABEL.to_owned()),
        trim: trim_machine,
    };
    let handler = Arc::clone(&triggers);
    let (machines, watch_machines) =
        OptionalInformer::start(&client, kind, move |object, _| handler.handle_machine(object));
    let kind =
        OptionalKind { resource: migration_resource(), label_selector: None, trim: trim_migration };
    let handler = Arc::clone(&triggers);
    let (migrations, watch_migrations) =
        OptionalInformer::start(&client, kind, move |object, _| handler.handle_migration(object));
    let handler = Arc::clone(&triggers);
    informers
        .instances
        .subscribe(move |object, is_deleted| handler.handle_instance(object, is_deleted));
    let handler = Arc::clone(&triggers);
    informers.deployment_handlers.subscribe(move |object, _| handler.handle_deployment(object));
    let (reports, report_changes) = unbounded_channel();
    let (listed, sender) = (Arc::clone(&index), reports.clone());
    informers.connections.subscribe(TenantObjects::Nodes, move |tenant, changed| {
        // After a start of the controller, the first list of a tenant's Nodes changes which machines count as
        // available, but may change no status. Changes of single Nodes change the status of the MachineDeployment.
        if changed.is_none() {
            let hosts = listed.hosts_of_namespace(&TenantCluster::namespace_of(tenant));
            hosts.into_iter().for_each(|host| sender.send(host).unwrap_or_default());
        }
    });
    let reported = Arc::clone(&index);
    informers.removals.subscribe(move |namespace, name| {
        let host = reported.evacuated_host_of(&(namespace.to_owned(), name.to_owned()));
        // The error is ignored: the channel has no receiver only if the program is ending.
        host.into_iter().for_each(|host| reports.send(host).unwrap_or_default());
    });
    let node_changes = informers.nodes.subscribe();
    let evacuator = Arc::new(Evacuator {
        client: client.clone(),
        writer: Writer::new(client, Arc::clone(&metrics)),
        events,
        metrics: Arc::clone(&metrics),
        informers: informers.clone(),
        machines,
        index,
        targets,
        resync,
    });
    let work = async {
        tokio::join!(
            informers.tenants.wait_until_ready(),
            informers.nodes.wait_until_ready(),
            informers.infra_nodes.wait_until_ready(),
            informers.instances.informer().wait_until_ready(),
            evacuator.machines.wait_until_ready(),
            migrations.wait_until_ready()
        );
        let instances = informers.instances.informer();
        triggers.fill(instances, &evacuator.machines, &informers.infra_nodes);
        let reconcile = |host: Arc<InfraNode>| {
            let evacuator = Arc::clone(&evacuator);
            async move {
                let delay = evacuator.reconcile(&host).await?;
                Ok::<Action, ReconcileFailure>(Action::requeue(delay))
            }
        };
        let store = informers.infra_nodes.store().clone();
        tokio::join!(
            triggers.handle_node_changes(node_changes),
            triggers.handle_reports(report_changes, REPORT_PERIOD),
            run_reconciler(OPTIONS, (), store, requests, metrics, reconcile)
        );
    };
    tokio::join!(work, watch_machines, watch_migrations);
}
