//! TenantClusters: keeps what [`crate::tenants`] says a tenant should have.
//!
//! Everything is looked up in stores that watches keep, so a tenant that is as it should be costs no request. It does no
//! harm if two run at once: a claim is had by whoever creates it, the first who says so in the status wins, and all else
//! is applied as the same from the same objects.

mod claims;
mod cluster;
mod context;
mod deletion;
mod error;
mod keep;
mod objects;
mod stores;
mod sweeper;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::poll_fn;
use kube::Client;

use berth_api::TenantCluster;
use berth_runtime::client::jittered;
use berth_runtime::reconcile::{Action, Options, run as run_reconciler};
use context::Context;
use error::Error;
pub use stores::Followers;

use super::events::Events;
use super::metrics::Metrics;

/// The objects of a tenant change one by one, so changes within a short time are one reconcile.
const OPTIONS: Options =
    Options { name: "tenants", concurrency: 8, debounce: Duration::from_millis(100) };

/// Keeps tenants for ever; ends when it is dropped, and may be at any moment. One that is as it should be is looked at
/// again after the time of `resync`, in case an event was lost.
///
/// # Errors
/// If the watches cannot go on.
pub async fn run(
    client: Client,
    events: Arc<Events>,
    metrics: Arc<Metrics>,
    followers: Followers,
    resync: Duration,
) -> Result<Infallible, Error> {
    let (context, mut queue, watches) = Context::start(client, events, followers);
    let work = async {
        context.ready().await;
        let queue = poll_fn(|cx| queue.poll_recv(cx));
        let store = context.stores.followers.tenants.store().clone();
        let reconcile = |tenant| reconcile(tenant, Arc::clone(&context), resync);
        run_reconciler(OPTIONS, (), store, queue, metrics, reconcile).await;
    };
    tokio::select! {
        () = work => Err(Error::Ended("the queue of tenants")),
        () = watches => Err(Error::Ended("the watches")),
        () = sweeper::sweep(&context) => Err(Error::Ended("the sweep of claims")),
    }
}

async fn reconcile(
    tenant: Arc<TenantCluster>,
    context: Arc<Context>,
    resync: Duration,
) -> Result<Action, Error> {
    let going = tenant.metadata.deletion_timestamp.is_some();
    let pause = if going {
        deletion::go_on(&context, &tenant).await?
    } else {
        let again = keep::keep(&context, tenant.as_ref().clone()).await?;
        Some(jittered(again.map_or(resync, |again| again.min(resync))))
    };
    Ok(pause.map_or_else(Action::await_change, Action::requeue))
}
