//! Reconciler of the Nodes in tenants' clusters: copies labels, annotations and taints of hosts to the Nodes of the VMs
//! on them.
//!
//! [`crate::tenant_nodes`] computes the fields. All input is read from stores; [`super::tenant_access`] stores the
//! tenant's Nodes. A reconcile that finds no difference sends no request.

mod reconcile;
mod status;
mod triggers;
mod write;

use std::sync::Arc;
use std::time::Duration;

use berth_api::TenantCluster;
use berth_api::names::TENANT_ACCESS_FIELD_MANAGER;
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};

use super::context::Context;
use super::machine_instances::MachineInstances;
use super::tenant_access::{Connections, TenantObjects, TenantQueue, WriteError};
use super::tenant_conditions::ConditionWriter;
use reconcile::NodeReconciler;
use status::OWNED_CONDITIONS;
use triggers::TenantNodeTriggers;

/// The number of concurrent reconciles is not limited: a reconcile waits for one tenant's API server, and must not
/// delay other tenants. The requests to each server have a limit of their own.
const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "tenant-nodes", concurrency: 0, debounce: Duration::from_millis(20) };

/// Copies labels, annotations and taints to tenants' Nodes until this future is dropped, which may happen at any await
/// point.
pub(super) async fn run(
    context: Arc<Context>,
    instances: MachineInstances,
    connections: Connections,
) {
    let (queue, requests) = TenantQueue::subscribe(&connections, TenantObjects::Nodes);
    let triggers = TenantNodeTriggers::new(Arc::clone(&context), queue, instances);
    let reconciler = Arc::new(NodeReconciler {
        context: Arc::clone(&context),
        connections,
        machines: triggers.machines(),
        condition_writer: ConditionWriter::new(
            Arc::clone(&context),
            TENANT_ACCESS_FIELD_MANAGER,
            OWNED_CONDITIONS,
        ),
    });
    tokio::join!(
        context.tenants.wait_until_ready(),
        context.configs.wait_until_ready(),
        context.nodes.wait_until_ready()
    );
    let changes = triggers.subscribe().await;
    let resync = context.resync;
    let reconcile = |tenant: Arc<TenantCluster>| {
        let reconciler = Arc::clone(&reconciler);
        async move {
            let retry = reconciler.reconcile(&tenant).await?;
            let delay = retry.unwrap_or_else(|| add_jitter(resync));
            Ok::<Action, WriteError>(Action::requeue(delay))
        }
    };
    let store = context.tenants.store().clone();
    let metrics = Arc::clone(&context.metrics);
    tokio::join!(
        triggers.handle_changes(changes),
        run_reconciler(OPTIONS, (), store, requests, metrics, reconcile)
    );
}
