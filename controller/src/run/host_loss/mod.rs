//! Reconciler of lost hosts: marks the machines that must be replaced, and reports the machines that wait.
//!
//! [`crate::host_loss`] decides. The evidence is in Nodes and InfraNodes, and each leader observes it for a minimum
//! time, so no state must survive a restart of the controller. While no host is down, no request is sent.

mod hosts;
mod machine;
mod state;
mod tenants;
mod triggers;

use std::sync::Arc;
use std::time::Duration;

use berth_api::{InfraNode, TenantCluster};
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use futures::channel::mpsc::unbounded;

use super::context::Context;
use super::machine_instances::MachineInstances;
use super::reconcile::{ReconcileFailure, reconcile};
use hosts::HostReconciler;
use state::LossState;
use triggers::{HostLossTriggers, Queues};

const HOST_OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "lost-hosts", concurrency: 16, debounce: Duration::from_millis(200) };
const TENANT_OPTIONS: ReconcilerOptions = ReconcilerOptions {
    name: "lost-hosts-tenants",
    concurrency: 8,
    debounce: Duration::from_millis(200),
};

/// Handles lost hosts until the future is dropped, which may happen at any moment.
pub(super) async fn run(context: Arc<Context>, instances: MachineInstances) {
    tokio::join!(
        context.nodes.wait_until_ready(),
        context.infra_nodes.wait_until_ready(),
        context.tenants.wait_until_ready()
    );
    let (hosts, host_queue) = unbounded();
    let (tenant_sender, tenant_queue) = unbounded();
    let queues = Queues { hosts, tenants: tenant_sender };
    let state = LossState::new();
    let triggers =
        HostLossTriggers::new(Arc::clone(&context), instances, Arc::clone(&state), queues.clone());
    let changes = triggers.subscribe().await;
    let reconciler = Arc::new(HostReconciler {
        context: Arc::clone(&context),
        state: Arc::clone(&state),
        queues,
    });
    let resync = context.resync;
    let reconcile_host = |host: Arc<InfraNode>| {
        let reconciler = Arc::clone(&reconciler);
        async move {
            let next = reconciler.reconcile(&host).await?;
            let resync = add_jitter(resync);
            let delay = next.map_or(resync, |next| next.min(resync));
            Ok::<Action, ReconcileFailure>(Action::requeue(delay))
        }
    };
    let reconcile_tenant = |tenant: Arc<TenantCluster>, context: Arc<Context>| {
        let state = Arc::clone(&state);
        async move { tenants::reconcile_tenant(&tenant, &context, &state).await }
    };
    tokio::join!(
        triggers.handle_changes(changes),
        run_reconciler(
            HOST_OPTIONS,
            (),
            context.infra_nodes.store().clone(),
            host_queue,
            Arc::clone(&context.metrics),
            reconcile_host
        ),
        reconcile(
            TENANT_OPTIONS,
            Arc::clone(&context),
            context.tenants.store().clone(),
            tenant_queue,
            reconcile_tenant
        )
    );
}
