//! Watches a collection of objects in a tenant's cluster, and restarts the watch whenever it ends.

use std::time::{Duration, Instant};

use berth_runtime::backoff::RetryBackoff;
use berth_runtime::untrusted::{
    CollectionEvent, CollectionLimits, UntrustedClient, UntrustedError, Versioned, watch_collection,
};
use serde::de::DeserializeOwned;

use super::faults::is_transient;

/// Maximum backoff between attempts, before jitter is added.
const MAX_BACKOFF: Duration = Duration::from_secs(120);
/// Maximum backoff after a watch that ended soon after a complete list. Meanwhile the objects are stale, and with them the
/// readiness of machines on which rollouts and drains wait; a server that answers lists can answer one in this time.
const MAX_LISTED_BACKOFF: Duration = Duration::from_secs(15);
/// If a watch ends after at least this duration, its end does not count as a failure.
const STABLE_TIME: Duration = Duration::from_secs(60);

/// Watches a collection of objects in a tenant's cluster. Never returns. `handle` is called with each event. `report`
/// is called with each error that is not transient, and with a transient error if the next attempt fails too.
pub(super) async fn watch_repeatedly<T: Versioned + DeserializeOwned>(
    client: &UntrustedClient,
    (path, limits): (&str, CollectionLimits),
    handle: impl Fn(CollectionEvent<T>) -> Result<(), UntrustedError>,
    report: impl Fn(UntrustedError),
) {
    let (mut backoff, mut failures) = (RetryBackoff::with_limit(MAX_BACKOFF), 0_u32);
    let mut listed_backoff = RetryBackoff::with_limit(MAX_LISTED_BACKOFF);
    loop {
        let (begin, mut is_listed) = (Instant::now(), false);
        let observe = |event: CollectionEvent<T>| {
            let is_complete = matches!(event, CollectionEvent::ListCompleted);
            handle(event)?;
            is_listed |= is_complete;
            Ok(())
        };
        let result = watch_collection(client, path, limits, observe).await;
        if is_listed && begin.elapsed() >= STABLE_TIME {
            listed_backoff.reset();
            failures = 0;
        }
        let mut retry_after = Duration::ZERO;
        if let Err(error) = result {
            failures = failures.saturating_add(1);
            retry_after = error.retry_after();
            if failures > 1 || !is_transient(error) {
                report(error);
            }
        }
        if is_listed {
            backoff.reset();
            listed_backoff.wait_before_retry(retry_after).await;
        } else {
            backoff.wait_before_retry(retry_after).await;
        }
    }
}
