//! Removes the machines with a removal mark: drains their Nodes in the tenant's cluster, and deletes them.
//!
//! [`crate::removal`] computes the steps. The VirtualMachine contains the mark, and each reconcile reads all other
//! facts again, so a removal continues after a restart of the controller. A tenant's API server that answers slowly
//! delays only the machines of this tenant.

mod apply;
mod context;
mod delays;
mod drain;
mod draining_tenant;
mod facts;
mod list_slots;
mod machine_writes;
mod plan;
mod read;
mod reconcile;
mod report;
mod requests;
mod table;
mod triggers;
mod validate;
mod volume_lists;

use std::sync::Arc;
use std::time::Duration;

use berth_api::DrainTimeout;
use berth_runtime::reconcile::{ReconcileRequest, ReconcilerOptions, run_reconciler};
use futures::stream::poll_fn;
use kube::api::DynamicObject;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api_resource::machine_resource;
use crate::removal::timeout::TimeoutLimit;
pub(super) use context::RemovalContext;
use context::Remover;
pub(super) use draining_tenant::DrainingTenant;
use list_slots::ListSlots;
pub use table::RemovalTable;
pub(super) use triggers::RemovalTriggers;
use volume_lists::VolumeLists;

/// The number of concurrent reconciles is not limited: a reconcile waits for one tenant's API server, and must not
/// delay other tenants. The requests to each server and the lists of pods in memory have limits of their own.
const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "removals", concurrency: 0, debounce: Duration::from_millis(50) };

/// Queue of machines that must be reconciled.
pub(super) type RemovalRequests = UnboundedReceiver<ReconcileRequest<DynamicObject>>;

/// Removes marked machines until this future is dropped, which may happen at any await point.
pub(super) async fn run(context: RemovalContext, mut requests: RemovalRequests) {
    let store = context.machines.wait_until_listed().await;
    context.instances.wait_until_ready().await;
    context.deployments.wait_until_ready().await;
    tokio::join!(
        context.tenants.wait_until_ready(),
        context.nodes.wait_until_ready(),
        context.configs.wait_until_ready()
    );
    if context.timeout_limit() == TimeoutLimit::Fallback {
        tracing::warn!(
            limit = %DrainTimeout::FALLBACK_LIMIT,
            "the InfraConfig cannot be parsed; a built-in upper bound applies to drain time limits in annotations"
        );
    }
    let metrics = Arc::clone(&context.metrics);
    let remover = Arc::new(Remover {
        context,
        list_slots: ListSlots::default(),
        volume_lists: VolumeLists::default(),
    });
    let requests = poll_fn(|cx| requests.poll_recv(cx));
    let reconcile = |machine: Arc<DynamicObject>| {
        let remover = Arc::clone(&remover);
        async move { remover.reconcile(&machine).await }
    };
    run_reconciler(OPTIONS, machine_resource(), store, requests, metrics, reconcile).await;
}
