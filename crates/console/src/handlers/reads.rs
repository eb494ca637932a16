//! Objects that a page reads with the credential of its user.

use std::sync::Arc;
use std::time::Instant;

use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::object_events::{ObjectEvent, latest_events};
use berth_views::ObjectName;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::pages::reads::{QuotaRow, Read, ReadError, Rows, VolumeRow};
use crate::requests::SignedIn;
use crate::session::read_cache::ReadCache;
use crate::state::Console;

/// Maximum number of volumes on a page.
const MAX_VOLUMES: u32 = 100;
/// Maximum number of ResourceQuotas on a page.
const MAX_QUOTAS: u32 = 100;

/// Returns the latest Events about an object of one of these kinds; the namespace of cluster-scoped objects is empty.
pub(super) async fn events(
    console: &Console,
    user: &SignedIn,
    kinds: [&str; 2],
    object: &ObjectName,
) -> Arc<Read<ObjectEvent>> {
    let read = read_events(&user.session.client, kinds, object);
    cached(console, user, &user.session.events, object, read).await
}

/// Returns the ResourceQuotas of a namespace.
pub(super) async fn quotas(
    console: &Console,
    user: &SignedIn,
    namespace: &str,
) -> Arc<Read<QuotaRow>> {
    let key = ObjectName::new(namespace, "");
    let read = read_quotas(&user.session.client, namespace);
    cached(console, user, &user.session.quotas, &key, read).await
}

/// Returns the volumes of a namespace.
pub(super) async fn volumes(
    console: &Console,
    user: &SignedIn,
    namespace: &str,
) -> Arc<Read<VolumeRow>> {
    let key = ObjectName::new(namespace, "");
    let read = read_volumes(&user.session.client, namespace);
    cached(console, user, &user.session.volumes, &key, read).await
}

/// Waits for a read, unless the request is a refresh and the cache has a result. At most one read of a session and
/// [`MAX_READS`](crate::state::MAX_READS) of all sessions are sent at the same time.
async fn cached<T>(
    console: &Console,
    user: &SignedIn,
    cache: &ReadCache<T>,
    key: &ObjectName,
    read: impl Future<Output = Read<T>>,
) -> Arc<Read<T>> {
    let known = || cache.get(key, Instant::now()).filter(|_| user.is_refresh);
    if let Some(known) = known() {
        return known;
    }
    // A session waits for its own reads first, so that a user with many requests does not delay the others.
    let of_session = user.session.reads.acquire().await;
    // Another refresh may have read it in the meantime.
    if let Some(known) = known() {
        return known;
    }
    // The semaphores are never closed.
    let permits = (of_session, console.reads.acquire().await);
    let read = read.await;
    drop(permits);
    cache.put(key.clone(), read, Instant::now())
}

fn read_error(error: CallError) -> ReadError {
    match error.status_code() {
        Some(401 | 403) => ReadError::Forbidden,
        Some(404) => ReadError::NotServed,
        _ => {
            tracing::warn!(%error, "failed to read objects of a page");
            ReadError::Unavailable
        }
    }
}

async fn read_events(client: &Client, kinds: [&str; 2], object: &ObjectName) -> Read<ObjectEvent> {
    let rows = latest_events(client, &kinds, &object.namespace, &object.name).await;
    Ok(Rows { rows: rows.map_err(read_error)?, is_partial: false })
}

async fn read_quotas(client: &Client, namespace: &str) -> Read<QuotaRow> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    let quotas = with_timeout(quotas.list(&ListParams::default().limit(MAX_QUOTAS))).await;
    let quotas = quotas.map_err(read_error)?;
    let is_partial = is_partial(&quotas.metadata);
    let mut rows = Vec::new();
    for quota in quotas.items {
        let name = quota.name_any();
        let status = quota.status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        for (resource, hard) in status.hard.unwrap_or_default() {
            let used = used.get(&resource).map(|used| used.0.clone()).unwrap_or_default();
            rows.push(QuotaRow { quota: name.clone(), resource, used, hard: hard.0 });
        }
    }
    Ok(Rows { rows, is_partial })
}

async fn read_volumes(client: &Client, namespace: &str) -> Read<VolumeRow> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claims = with_timeout(claims.list(&ListParams::default().limit(MAX_VOLUMES))).await;
    let claims = claims.map_err(read_error)?;
    let is_partial = is_partial(&claims.metadata);
    Ok(Rows { rows: claims.items.into_iter().map(volume_row).collect(), is_partial })
}

/// Returns true if the API server has more objects than it returned.
fn is_partial(list: &ListMeta) -> bool {
    list.continue_.as_ref().is_some_and(|token| !token.is_empty())
}

fn volume_row(claim: PersistentVolumeClaim) -> VolumeRow {
    let name = claim.name_any();
    let spec = claim.spec.unwrap_or_default();
    let status = claim.status.unwrap_or_default();
    let requested = spec.resources.and_then(|resources| resources.requests);
    let size = status.capacity.or(requested).and_then(|all| Some(all.get("storage")?.0.clone()));
    VolumeRow {
        name,
        phase: status.phase.unwrap_or_default(),
        size: size.unwrap_or_default(),
        class: spec.storage_class_name.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::pages::theme::Theme;
    use crate::random::IdHash;
    use crate::session::store::Session;
    use crate::test_helpers::{console_of, test_client};

    #[tokio::test]
    async fn reads_of_a_session_are_sent_one_after_the_other() {
        let client = test_client(|_| (500, String::new()));
        let console = console_of(client.clone(), false);
        let session =
            Session::new("alice".to_owned(), IdHash::new("alice"), client, Instant::now());
        let user = SignedIn {
            session: Arc::new(session),
            id: String::new(),
            theme: Theme::default(),
            path: String::new(),
            is_refresh: true,
            is_script: true,
        };
        let (running, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = || async {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "reads are sent in parallel");
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Rows { rows: Vec::new(), is_partial: false })
        };
        let (cache, [a, b]) =
            (&user.session.events, ["a", "b"].map(|name| ObjectName::new("", name)));
        let reads = tokio::join!(
            cached(&console, &user, cache, &a, read()),
            cached(&console, &user, cache, &a, read()),
            cached(&console, &user, cache, &b, read()),
        );
        // The second refresh of an object uses what the first one has read.
        assert!(Arc::ptr_eq(&reads.0, &reads.1) && reads.2.is_ok());
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn latest_events_are_read_from_the_namespace_default() {
        let client = test_client(|path| {
            assert_eq!(path, "/api/v1/namespaces/default/events");
            // By name, as the API server returns them: the latest Event is the last one.
            let event = |number: u32| {
                json!({
                    "metadata": {"name": format!("a.{number:04}"), "namespace": "default"},
                    "involvedObject": {"kind": "Node", "name": "a"},
                    "reason": format!("Reason{number}"),
                    "lastTimestamp": format!("2026-11-28T{:02}:{:02}:00Z", number / 60, number % 60),
                })
            };
            let items: Vec<_> = (0..120).map(event).collect();
            let list =
                json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": items});
            (200, list.to_string())
        });
        let object = ObjectName::new("", "a");
        let rows = read_events(&client, ["InfraNode", "Node"], &object).await.unwrap().rows;
        assert_eq!(rows.len(), berth_runtime::object_events::MAX_EVENTS);
        assert_eq!(rows[0].reason, "Reason119");
        assert_eq!(rows[49].reason, "Reason70");
    }
}
