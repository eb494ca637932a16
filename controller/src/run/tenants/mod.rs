//! Reconciler of TenantClusters. [`crate::tenants`] computes their desired state.
//!
//! All input is read from informer stores, so a reconcile that finds no difference sends no request. Two controllers
//! may run at the same time: the first claim that is created determines the owner of a VLAN or VNI, the API server
//! accepts only the first of two conflicting writes of a status, and both controllers apply all other objects with the
//! same content.

mod apply;
mod build;
mod claim_gc;
mod claims;
mod cluster;
mod context;
mod deletion;
mod error;
mod exposure;
mod kubevirt;
mod objects;
mod prefix_gc;
mod prefixes;
mod prepare;
mod read;
mod reconcile;
mod services;
mod stores;
mod update_status;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use berth_api::TenantCluster;
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use futures::stream::poll_fn;
use kube::Client;
use tokio::sync::mpsc::UnboundedReceiver;

use context::TenantContext;
pub use context::WatchedKubeconfig;
use error::Error;
pub use stores::TenantInformers;

use super::events::EventEmitter;
use super::metrics::Metrics;

/// The debounce is needed because the objects of a tenant change one after the other: all changes within this time
/// cause only one reconcile.
const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "tenants", concurrency: 8, debounce: Duration::from_millis(100) };

/// Reconciles tenants until this future is dropped, which may happen at any await point. Each tenant is reconciled
/// again after `resync`, in case an event was lost. `kubeconfigs` delivers the kubeconfigs that are watched; another
/// kubeconfig is read when it is needed.
pub async fn run(
    client: Client,
    events: Arc<EventEmitter>,
    metrics: Arc<Metrics>,
    shared_informers: TenantInformers,
    mut kubeconfigs: UnboundedReceiver<WatchedKubeconfig>,
    resync: Duration,
) -> Result<Infallible, Error> {
    let (context, mut queue, watches) = TenantContext::start(client, events, shared_informers);
    let work = async {
        context.wait_until_ready().await;
        let queue = poll_fn(|cx| queue.poll_recv(cx));
        let store = context.stores.shared_informers.tenants.store().clone();
        let reconcile = |tenant| reconcile(tenant, Arc::clone(&context), resync);
        run_reconciler(OPTIONS, (), store, queue, metrics, reconcile).await;
    };
    let receive_kubeconfigs = async {
        while let Some(watched) = kubeconfigs.recv().await {
            context.set_kubeconfig(watched);
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        never = receive_kubeconfigs => match never {},
        () = work => Err(Error::TaskEnded("the reconciler queue of tenants")),
        () = watches => Err(Error::TaskEnded("the watches")),
        () = claim_gc::run(&context) => Err(Error::TaskEnded("the garbage collection of claims")),
    }
}

async fn reconcile(
    tenant: Arc<TenantCluster>,
    context: Arc<TenantContext>,
    resync: Duration,
) -> Result<Action, Error> {
    let is_deleting = tenant.metadata.deletion_timestamp.is_some();
    let requeue_after = if is_deleting {
        deletion::finalize(&context, &tenant).await?
    } else {
        let delay = reconcile::reconcile(&context, tenant.as_ref().clone()).await?;
        Some(add_jitter(delay.map_or(resync, |again| again.min(resync))))
    };
    Ok(requeue_after.map_or_else(Action::await_change, Action::requeue))
}
