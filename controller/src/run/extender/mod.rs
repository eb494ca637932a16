//! Tasks of the scheduler extender. The extender runs on each replica of the controller; the Lease of kube-scheduler
//! determines which of the extenders makes decisions.
//!
//! Watches update the extender's state ([`config`], [`hosts`], [`namespaces`], [`claims`], [`storage`], [`networks`],
//! [`instances`], [`pods`]). The local kube-scheduler calls the extender over HTTP ([`handlers`]); the readiness gate
//! delays calls ([`readiness_gate`]). The binder sends bindings ([`binder`]). The waker makes kube-scheduler retry pods
//! that fit after a change ([`waker`]).

mod binder;
mod claims;
mod config;
mod error;
mod handlers;
mod hosts;
mod instances;
mod namespaces;
mod networks;
mod pods;
mod readiness_gate;
mod service;
mod settings;
mod storage;
mod targets;
mod unlisted_kinds;
mod volumes;
mod waker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_extender::Extender;
use berth_runtime::local_server::serve_json;
use berth_runtime::serve;
use kube::Client;
use tokio::task::JoinSet;

use super::metrics::Metrics;
use error::MAX_BODY_BYTES;
use service::ExtenderService;
pub(super) use settings::ExtenderInformers;
pub use settings::Settings;
pub(super) use targets::ExtenderTargets;
pub(super) use unlisted_kinds::UnlistedKinds;
use waker::PodWaker;

/// Interval between checks for expired reservations.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of ticks between updates of the metrics of free resources. The updates are rare, because each update reads
/// all zones.
const FREE_RESOURCES_TICKS: u32 = 10;
/// Age of the state after which it is rebuilt from scratch, as soon as no reservation would be lost.
const MAX_STATE_AGE: Duration = Duration::from_secs(24 * 3600);
/// Additional time after which the state is rebuilt even if a reservation is lost. This is safe, because a restart of
/// the extender, which is possible at any time, has the same effect.
const REBUILD_GRACE: Duration = Duration::from_secs(3600);

/// Starts the tasks of the extender, which never end. Returns the finder of migration targets, which reads the
/// extender's state.
///
/// # Errors
/// Returns an error if the extender cannot listen on its address.
pub(super) async fn start(
    settings: &Settings,
    client: &Client,
    shared: ExtenderInformers,
    metrics: &Arc<Metrics>,
    unlisted_kinds: &Arc<UnlistedKinds>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<ExtenderTargets> {
    let listen = &settings.listen;
    let server =
        serve::bind(listen).await.with_context(|| format!("--extender-listen {listen}"))?;
    let service = Arc::new(ExtenderService::new(settings, client, metrics, unlisted_kinds));
    tracing::info!(address = %listen, "listening for calls of kube-scheduler");
    tasks.spawn(serve_json(server, MAX_BODY_BYTES, handlers::routes(&service)));
    tasks.spawn(PodWaker::new(&service).run());
    let gate_service = Arc::clone(&service);
    tasks.spawn(async move { gate_service.readiness_gate.refresh_lease().await });
    let targets = ExtenderTargets::new(&service);
    tasks.spawn(watch_and_rebuild(service, shared));
    Ok(targets)
}

/// Watches all objects on which decisions depend. Once a day, when no reservation would be lost, rebuilds the state
/// from scratch: compiled rules are cached by request class, and the number of classes only grows.
async fn watch_and_rebuild(service: Arc<ExtenderService>, shared: ExtenderInformers) {
    loop {
        let mut watches = JoinSet::new();
        watches.spawn(config::watch_config(Arc::clone(&service), shared.configs.clone()));
        watches.spawn(hosts::watch_hosts(Arc::clone(&service), shared.clone()));
        watches.spawn(namespaces::watch_namespaces(Arc::clone(&service)));
        watches.spawn(claims::watch_claims(Arc::clone(&service)));
        watches.spawn(storage::watch_storage_classes(Arc::clone(&service)));
        watches.spawn(storage::watch_csi_drivers(Arc::clone(&service)));
        watches.spawn(storage::watch_storage_capacities(Arc::clone(&service)));
        watches.spawn(networks::watch_networks(Arc::clone(&service)));
        watches.spawn(instances::watch_instances(Arc::clone(&service)));
        watches.spawn(pods::watch_pods(Arc::clone(&service)));
        tokio::select! {
            () = tick_until_rebuild(&service) => {}
            // A watch ends only because of a bug. Then the task returns, and the program exits.
            _ = watches.join_next() => return,
        }
        service.readiness_gate.mark_all_unlisted();
        watches.shutdown().await;
        let idle = service.bind_lock.write().await;
        // A watch may have marked its kind as listed before it was stopped.
        service.readiness_gate.mark_all_unlisted();
        *service.extender() = Extender::new_awaiting_pod_list();
        drop(idle);
        tracing::info!(
            age_seconds = MAX_STATE_AGE.as_secs(),
            "started the daily rebuild of the extender's state"
        );
    }
}

/// Releases expired reservations and updates metrics, until the state is old enough to be rebuilt.
async fn tick_until_rebuild(service: &ExtenderService) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    let started_at = Instant::now();
    let mut count = 0_u32;
    loop {
        ticks.tick().await;
        let (stages, free) = {
            let mut extender = service.extender();
            extender.expire_timeouts(Instant::now());
            let overdue = started_at.elapsed().saturating_sub(MAX_STATE_AGE);
            if overdue > REBUILD_GRACE || (!overdue.is_zero() && extender.can_be_rebuilt()) {
                return;
            }
            let is_due = count.is_multiple_of(FREE_RESOURCES_TICKS);
            (extender.stage_counts(), is_due.then(|| extender.free_resources()))
        };
        count = count.wrapping_add(1);
        service.metrics.assignment.set_stage_counts(&stages);
        if let Some(free) = free {
            service.metrics.assignment.set_free_resources(&free);
        }
        service.state_changed.notify_one();
    }
}
