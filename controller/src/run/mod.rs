//! Daemon of the controller. The reconcilers run only on the leader of several replicas.
//!
//! Each replica watches the objects and serves HTTP, so that the next leader is ready immediately. The leader runs the
//! reconcilers, one module each: a reconciler reads objects from informer stores, computes the desired state with
//! modules that do no I/O, and writes the differences ([`apply`]). When the leader loses the lease, its reconcilers are
//! cancelled at any await point, and the next leader reconciles from the actual state. The scheduler extender
//! ([`extender`]) runs on all replicas.

pub mod address_store;
mod api_requests;
pub mod apply;
mod assignment_metrics;
mod clock;
mod config;
mod context;
pub mod evacuation;
pub mod events;
pub mod extender;
mod fleet_watch;
mod host_conditions;
mod host_devices;
pub mod host_leases;
mod host_loss;
mod hosts;
mod http_pages;
mod image_table;
mod images;
pub mod machine_instances;
pub mod machines;
mod malformed;
mod metrics;
mod node_readiness;
pub mod object_handlers;
mod packed_content;
mod profile_store;
pub mod reconcile;
mod removal;
pub mod removal_lock;
mod self_service;
mod settings;
mod tenant_access;
mod tenant_conditions;
mod tenant_data;
mod tenant_metrics;
mod tenant_nodes;
mod tenant_storage;
pub mod tenants;
mod throttle;
mod unresponsive;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::names::{CONTROLLER_FIELD_MANAGER, CONTROLLER_LEASE};
use berth_runtime::client;
use berth_runtime::leader_election::{ElectionConfig, LeaderElector, LeaderGuard};
use berth_runtime::serve;
use berth_runtime::watch::WatchHealth;
use kube::Api;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::evacuation::targets::TargetFinder;
pub use context::Context;
use http_pages::Pages;
pub use image_table::ImageTable;
use machine_instances::MachineInstances;
pub use metrics::Metrics;
use object_handlers::ObjectHandlers;
pub use removal::RemovalTable;
use removal_lock::RemovalLock;
pub use settings::Settings;
pub use tenant_access::Connections;

/// Timeout for the release of the leader lease when the program ends. An unreleased lease expires later.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the daemon cannot start, for example because it has no access to a cluster, or because a port is
/// in use.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run_until_signal(settings));
    // The runtime does not wait for blocking tasks, because a DNS lookup that hangs must not delay the exit of the
    // program.
    runtime.shutdown_background();
    result
}

async fn run_until_signal(settings: &Settings) -> anyhow::Result<()> {
    let mut sigterm = signal(SignalKind::terminate())?;
    let mut sigint = signal(SignalKind::interrupt())?;
    let metrics = Arc::new(Metrics::default());
    let request_metrics = Arc::clone(&metrics);
    let client::Connection { client, server, .. } =
        client::connect(settings.kubeconfig.as_deref(), "", move |method| {
            request_metrics.count_request(method)
        })
        .await?;
    let watch_health = Arc::new(WatchHealth::default());
    let (leader_sender, mut leader_receiver) = watch::channel(false);
    let extender_unlisted_kinds =
        Arc::new(extender::UnlistedKinds::new(settings.extender.is_some()));
    let pages = Arc::new(Pages::new(
        Arc::clone(&metrics),
        Arc::clone(&watch_health),
        Arc::clone(&extender_unlisted_kinds),
    ));
    let mut servers = JoinSet::new();
    for listen in &settings.listen {
        let server = serve::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
        servers.spawn(serve::serve(server, Arc::clone(&pages)));
    }
    let guard = LeaderGuard::default();
    let mut watch_tasks = JoinSet::new();
    let guarded = client::with_leader_guard(client.clone(), guard.clone());
    let context = Arc::new(Context::start(
        settings,
        &guarded,
        guard.clone(),
        server,
        &mut watch_tasks,
        &watch_health,
        &metrics,
    ));
    let mut targets: Option<Arc<dyn TargetFinder>> = None;
    if let Some(settings) = &settings.extender {
        let shared = extender::ExtenderInformers {
            nodes: context.nodes.clone(),
            infra_nodes: context.infra_nodes.clone(),
            profiles: context.profiles.clone(),
            configs: context.configs.clone(),
        };
        let started = extender::start(
            settings,
            &client,
            shared,
            &metrics,
            &extender_unlisted_kinds,
            &mut watch_tasks,
        );
        targets = Some(Arc::new(started.await?));
    }
    let leases = Api::namespaced(client, &settings.lease_namespace);
    let election = ElectionConfig {
        lease_name: CONTROLLER_LEASE,
        identity: settings.identity.clone(),
        lease_duration: settings.lease_duration,
        field_manager: CONTROLLER_FIELD_MANAGER,
    };
    let mut elector = LeaderElector::new(leases, election, guard);
    let (identity, namespace) = (&settings.identity, &settings.lease_namespace);
    tracing::info!(identity, namespace, lease = CONTROLLER_LEASE, "started leader election");
    // The reconcilers are aborted when this set is dropped.
    let mut reconcilers = JoinSet::new();
    let result = loop {
        tokio::select! {
            () = elector.run(&leader_sender) => {}
            changed = leader_receiver.changed() => {
                let is_leader = changed.is_ok() && *leader_receiver.borrow_and_update();
                metrics.set_leader(is_leader);
                if is_leader {
                    tracing::info!(identity, "acquired the leader lease; starting reconcilers");
                    reconcilers = start_reconcilers(&context, targets.clone());
                } else {
                    tracing::warn!(identity, "lost the leader lease; stopping reconcilers");
                    reconcilers.shutdown().await;
                }
            }
            _ = sigterm.recv() => break Ok(()),
            _ = sigint.recv() => break Ok(()),
            // No task ends in normal operation. If a task ends, the program exits, and systemd or the kubelet
            // restarts the program.
            Some(ended) = reconcilers.join_next() => break Err(unexpected_end_error(ended)),
            Some(ended) = watch_tasks.join_next() => break Err(unexpected_end_error(ended)),
        }
    };
    tracing::info!(identity, "stopping the controller");
    reconcilers.shutdown().await;
    if tokio::time::timeout(RELEASE_TIMEOUT, elector.release()).await.is_err() {
        tracing::warn!(identity, "failed to release the leader lease in time; it will expire");
    }
    result
}

/// Starts the reconcilers, which never end.
fn start_reconcilers(
    context: &Arc<Context>,
    targets: Option<Arc<dyn TargetFinder>>,
) -> JoinSet<()> {
    let mut all = JoinSet::new();
    // The table may have states from an earlier time as the leader.
    context.images.reset();
    all.spawn(hosts::run(Arc::clone(context)));
    all.spawn(config::run(Arc::clone(context)));
    all.spawn(host_devices::run(Arc::clone(context)));
    all.spawn(malformed::run(Arc::clone(context)));
    let (client, events) = (context.client.clone(), Arc::clone(&context.events));
    let (metrics, resync) = (Arc::clone(&context.metrics), context.resync);
    let (instances, watch_instances) = MachineInstances::start(&client);
    all.spawn(watch_instances);
    let (deployment_handlers, removal_lock) = (ObjectHandlers::default(), RemovalLock::default());
    let connections = Connections::new(Arc::clone(&metrics));
    let removals = Arc::new(RemovalTable::new(Arc::clone(&metrics)));
    let (kubeconfigs, watched_kubeconfigs) = unbounded_channel();
    all.spawn(tenant_access::run(Arc::clone(context), connections.clone(), kubeconfigs));
    all.spawn(tenant_nodes::run(Arc::clone(context), instances.clone(), connections.clone()));
    all.spawn(tenant_storage::run(Arc::clone(context), connections.clone()));
    all.spawn(images::run(Arc::clone(context)));
    all.spawn(self_service::run(Arc::clone(context)));
    all.spawn(evacuation::run(
        client.clone(),
        Arc::clone(&events),
        Arc::clone(&metrics),
        evacuation::EvacuationInformers {
            tenants: context.tenants.clone(),
            connections: connections.clone(),
            nodes: context.nodes.clone(),
            infra_nodes: context.infra_nodes.clone(),
            instances: instances.clone(),
            deployment_handlers: deployment_handlers.clone(),
            removal_lock: removal_lock.clone(),
            removals: Arc::clone(&removals),
        },
        targets,
        resync,
    ));
    all.spawn(host_loss::run(Arc::clone(context), instances.clone()));
    all.spawn(host_leases::run(
        client.clone(),
        Arc::clone(&events),
        Arc::clone(&metrics),
        context.lease_informers(),
        instances.clone(),
        resync,
    ));
    let machine_informers = machines::MachineInformers {
        tenants: context.tenants.clone(),
        configs: context.configs.clone(),
        addresses: context.addresses.clone(),
        nodes: context.nodes.clone(),
        instances,
        deployment_handlers,
        removal_lock,
        removals,
        connections,
        images: Arc::clone(&context.images),
        watch_health: Arc::clone(&context.watch_health),
    };
    let (machine_events, machine_metrics) = (Arc::clone(&events), Arc::clone(&metrics));
    all.spawn(machines::run(
        client.clone(),
        machine_events,
        machine_metrics,
        machine_informers,
        resync,
    ));
    let informers = context.shared_informers();
    all.spawn(async move {
        let Err(error) =
            tenants::run(client, events, metrics, informers, watched_kubeconfigs, resync).await;
        tracing::error!(%error, "the reconciler of tenants ended");
    });
    all
}

fn unexpected_end_error(ended: Result<(), tokio::task::JoinError>) -> anyhow::Error {
    let cause = ended.err().map(|error| format!(": {error}")).unwrap_or_default();
    anyhow::anyhow!("a task ended unexpectedly, which is a bug of berth-controller{cause}")
}
