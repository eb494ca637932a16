//! Reconcilers of TenantQuotas and TenantRequests: grant requests, create their tenants, and issue kubeconfigs.
//!
//! [`crate::self_service`] makes the decisions. The grants are in the status of the TenantQuota, which is written only if
//! nothing has written the quota since it was read ([`ledger`]). All later steps are computed from the grants, so a controller
//! that is killed between two steps continues from the actual state.

mod access;
mod current_grants;
mod deletion;
mod facts;
mod failure;
mod fitting;
mod issue;
mod ledger;
mod objects;
mod reconcile;
mod reductions;
mod service;
mod tenant;
mod triggers;

use std::sync::Arc;
use std::time::Duration;

use berth_api::{TenantQuota, TenantRequest};
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use futures::channel::mpsc::unbounded;

use super::context::Context;
use super::reconcile::ReconcileFailure;
use service::SelfService;

const REQUEST_OPTIONS: ReconcilerOptions = ReconcilerOptions {
    name: "tenant-requests",
    concurrency: 4,
    debounce: Duration::from_millis(50),
};
const QUOTA_OPTIONS: ReconcilerOptions = ReconcilerOptions {
    name: "tenant-quotas",
    concurrency: 1,
    debounce: Duration::from_millis(50),
};

/// Reconciles TenantQuotas and TenantRequests until the future is dropped, which may happen at any await point.
pub(super) async fn run(context: Arc<Context>) {
    let changes = triggers::Changes::subscribe(&context);
    tokio::join!(
        context.tenant_requests.wait_until_ready(),
        context.tenant_quotas.wait_until_ready(),
        context.tenants.wait_until_ready(),
        context.configs.wait_until_ready(),
        context.vlan_claims.wait_until_ready(),
        context.prefix_claims.wait_until_ready(),
    );
    let (request_queue, requests) = unbounded();
    let (quota_queue, quotas) = unbounded();
    let service = Arc::new(SelfService::new(Arc::clone(&context), request_queue, quota_queue));
    let of_requests = Arc::clone(&service);
    let reconcile_request = move |request: Arc<TenantRequest>| {
        let service = Arc::clone(&of_requests);
        async move {
            let delay = service.reconcile_request(request).await?;
            Ok::<Action, ReconcileFailure>(Action::requeue(add_jitter(delay)))
        }
    };
    let of_quotas = Arc::clone(&service);
    let reconcile_quota = move |quota: Arc<TenantQuota>| {
        let service = Arc::clone(&of_quotas);
        async move {
            let delay = service.reconcile_quota(&quota).await?;
            Ok::<Action, ReconcileFailure>(Action::requeue(add_jitter(delay)))
        }
    };
    let request_store = context.tenant_requests.store().clone();
    let quota_store = context.tenant_quotas.store().clone();
    let (of_requests, of_quotas) = (Arc::clone(&context.metrics), Arc::clone(&context.metrics));
    tokio::join!(
        changes.trigger_reconciles(&service),
        run_reconciler(
            REQUEST_OPTIONS,
            (),
            request_store,
            requests,
            of_requests,
            reconcile_request
        ),
        run_reconciler(QUOTA_OPTIONS, (), quota_store, quotas, of_quotas, reconcile_quota),
    );
}
