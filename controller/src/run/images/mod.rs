//! Reconciler of golden images: imports each image that machines or the InfraConfig's catalog need once for each storage
//! class, grants tenants the permission to clone, and deletes images that nothing uses.
//!
//! [`crate::images`] computes the changes. The object of the reconciler is the InfraConfig; one reconcile handles all
//! images. The reconciler of machines records in the [`ImageTable`](super::image_table::ImageTable) which images it needs, and creates machines when they
//! are ready. Without golden images in the InfraConfig, nothing is watched.

mod apply;
mod delete;
mod grants;
mod memory;
mod observe;
mod reconcile;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::INFRA_CONFIG;
use berth_api::{Images, InfraConfig};
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use super::context::Context;
use super::reconcile::ReconcileFailure;
use reconcile::ImageReconciler;
use stores::ImageStores;

/// The triggers combine changes, because a debounce would be prolonged by each clone.
const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "images", concurrency: 1, debounce: Duration::from_millis(10) };
/// Time for which changes are collected, so that one reconcile handles all of them.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which the reconciler waits at its start until all kinds are listed.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Reconciles golden images until the future is dropped, which may happen at any await point.
pub(super) async fn run(context: Arc<Context>) {
    wait_until_enabled(&context).await;
    let changed = context.images.changed();
    let (stores, watches) = ImageStores::start(&context.client, &changed);
    tokio::join!(watches, run_reconciles(context, stores, changed));
}

/// Waits until the InfraConfig has golden images.
async fn wait_until_enabled(context: &Context) {
    let mut changes = context.configs.subscribe();
    context.configs.wait_until_ready().await;
    while !context.config().spec.images.as_ref().is_some_and(Images::has_golden_images) {
        if changes.recv().await.is_none() {
            // The watch ends only if the program is ending.
            std::future::pending::<()>().await;
        }
    }
}

async fn run_reconciles(context: Arc<Context>, stores: ImageStores, changed: Arc<Notify>) {
    context.tenants.wait_until_ready().await;
    // If the controller lacks the permission to list a kind, this timeout expires, and the condition reports it.
    drop(tokio::time::timeout(LIST_TIMEOUT, stores.wait_until_ready()).await);
    let reconciler = Arc::new(ImageReconciler::new(Arc::clone(&context), stores));
    let reconcile = |config: Arc<InfraConfig>| {
        let reconciler = Arc::clone(&reconciler);
        async move {
            let delay = reconciler.reconcile(&config).await?;
            Ok::<Action, ReconcileFailure>(Action::requeue(delay))
        }
    };
    let (queue, requests) = unbounded();
    let (store, metrics) = (context.configs.store().clone(), Arc::clone(&context.metrics));
    tokio::join!(
        trigger_reconciles(&reconciler, &changed, &queue),
        run_reconciler(OPTIONS, (), store, requests, metrics, reconcile)
    );
}

/// Triggers a reconcile at the start, and after each change of the InfraConfig, of tenants, of the stores, and of the
/// images that machines need.
async fn trigger_reconciles(
    reconciler: &ImageReconciler,
    changed: &Notify,
    queue: &UnboundedSender<ObjectRef<InfraConfig>>,
) {
    let context = &reconciler.context;
    let (mut configs, mut tenants) = (context.configs.subscribe(), context.tenants.subscribe());
    loop {
        // An object that does not exist is not reconciled.
        if context.configs.get(INFRA_CONFIG).is_none() {
            reconciler.disable().await;
        }
        queue.unbounded_send(ObjectRef::new(INFRA_CONFIG)).unwrap_or_default();
        tokio::select! {
            change = configs.recv() => if change.is_none() { return },
            // Imports into the namespace of a tenant wait for its NetworkPolicies.
            change = tenants.recv() => if change.is_none() { return },
            () = changed.notified() => {}
        }
        tokio::time::sleep(BATCH_INTERVAL).await;
        while configs.try_recv().is_ok() {}
        while tenants.try_recv().is_ok() {}
    }
}
