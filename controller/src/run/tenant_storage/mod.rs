//! Reconciler of the StorageClasses in tenants' clusters: creates a StorageClass in each tenant's cluster for each
//! StorageClass of the infra cluster that tenants may use.
//!
//! [`crate::tenant_storage`] computes the changes. All input is read from stores; [`super::tenant_access`] stores the
//! StorageClasses of tenants' clusters. A reconcile that finds no difference sends no request.

mod infra_classes;
mod reconcile;
mod triggers;
mod write;

use std::sync::Arc;
use std::time::Duration;

use berth_api::TenantCluster;
use berth_api::names::TENANT_STORAGE_FIELD_MANAGER;
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};

use super::context::Context;
use super::tenant_access::{Connections, TenantObjects, TenantQueue, WriteError};
use super::tenant_conditions::ConditionWriter;
use infra_classes::InfraClasses;
use reconcile::{ClassReconciler, OWNED_CONDITIONS};
use triggers::TenantStorageTriggers;

/// The number of concurrent reconciles is not limited: a reconcile waits for one tenant's API server, and must not
/// delay other tenants. The requests to each server have a limit of their own.
const OPTIONS: ReconcilerOptions = ReconcilerOptions {
    name: "tenant-storage",
    concurrency: 0,
    debounce: Duration::from_millis(200),
};
/// Time for which the reconciler waits at its start for the list of the infra cluster's StorageClasses. After this
/// time, the tenants' conditions report that the list is missing.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates StorageClasses in tenants' clusters until this future is dropped, which may happen at any await point.
pub(super) async fn run(context: Arc<Context>, connections: Connections) {
    let (infra_classes, watch) = InfraClasses::start(&context.client);
    tokio::join!(watch, run_reconciles(context, connections, infra_classes));
}

async fn run_reconciles(
    context: Arc<Context>,
    connections: Connections,
    infra_classes: Arc<InfraClasses>,
) {
    let (queue, requests) = TenantQueue::subscribe(&connections, TenantObjects::Classes);
    let reconciler = Arc::new(ClassReconciler {
        context: Arc::clone(&context),
        connections,
        infra_classes: Arc::clone(&infra_classes),
        condition_writer: ConditionWriter::new(
            Arc::clone(&context),
            TENANT_STORAGE_FIELD_MANAGER,
            OWNED_CONDITIONS,
        ),
    });
    tokio::join!(context.tenants.wait_until_ready(), context.configs.wait_until_ready());
    // If the controller lacks the permission to list StorageClasses, this timeout expires, and the condition of each
    // tenant reports it.
    drop(tokio::time::timeout(LIST_TIMEOUT, infra_classes.wait_until_listed()).await);
    let resync = context.resync;
    let reconcile = |tenant: Arc<TenantCluster>| {
        let reconciler = Arc::clone(&reconciler);
        async move {
            let retry = reconciler.reconcile(&tenant).await?;
            let delay = retry.unwrap_or_else(|| add_jitter(resync));
            Ok::<Action, WriteError>(Action::requeue(delay))
        }
    };
    let (store, metrics) = (context.tenants.store().clone(), Arc::clone(&context.metrics));
    let triggers = TenantStorageTriggers::new(context, queue, infra_classes);
    tokio::join!(
        triggers.handle_changes(),
        run_reconciler(OPTIONS, (), store, requests, metrics, reconcile)
    );
}
