//! The watch of one object, with as few requests as possible, because the agent on every host uses this watch.
//!
//! A connection without events may be dead. The server sends a bookmark each minute, so a watch that receives no
//! bookmark is started again. With this check, a watch can last 50 minutes. kube-runtime's watcher does not report
//! bookmarks, and detects a dead connection only after the timeout of the watch: 290 s by default, so it needs a
//! request every 290 s.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::backoff::RetryBackoff;
use crate::call::{CALL_TIMEOUT, CallError, with_timeout};

/// Time without an event or a bookmark after which a watch is treated as dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(200);
/// Timeout of a watch, in seconds. If a watch requests no timeout, the API server ends it after a random time between
/// 30 and 60 minutes.
const WATCH_TIMEOUT_SECONDS: u32 = 3000;
/// Maximum backoff between retries, before jitter.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Calls `handle` with the object at the start and after each change, and with `None` if the object does not exist.
/// Never returns.
pub async fn watch_object<K>(
    api: Api<K>,
    kind: &'static str,
    name: String,
    handle: impl Fn(Option<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    watch_object_with_errors(api, kind, name, handle, |_| {}).await;
}

/// Watches an object as [`watch_object`] does. In addition, `handle_error` is called if the object cannot be read.
pub async fn watch_object_with_errors<K>(
    api: Api<K>,
    kind: &'static str,
    name: String,
    handle: impl Fn(Option<K>),
    handle_error: impl Fn(&CallError),
) where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let field_selector = format!("metadata.name={name}");
    let mut backoff = RetryBackoff::with_limit(MAX_RETRY_INTERVAL);
    let mut last_error = String::new();
    loop {
        let list = with_timeout(api.list(&ListParams::default().fields(&field_selector))).await;
        let error = match list {
            Ok(list) => {
                if !last_error.is_empty() {
                    tracing::info!(kind, name, "watch recovered");
                    last_error.clear();
                }
                let version = list.metadata.resource_version.unwrap_or_default();
                handle(list.items.into_iter().next());
                watch_from_version(&api, &field_selector, version, &handle, &mut backoff).await
            }
            Err(error) => {
                handle_error(&error);
                Some(error)
            }
        };
        let retry_after = error.as_ref().map_or(Duration::ZERO, CallError::retry_after);
        if let Some(error) = error.map(|error| error.to_string())
            && error != last_error
        {
            tracing::warn!(kind, name, %error, "failed to watch an object; trying again");
            last_error = error;
        }
        backoff.wait_before_retry(retry_after).await;
    }
}

/// Watches the object from a resource version, until the object must be read again. Returns the error that ended the
/// watch, or `None` if it ended without an error.
async fn watch_from_version<K>(
    api: &Api<K>,
    field_selector: &str,
    mut version: String,
    handle: &impl Fn(Option<K>),
    backoff: &mut RetryBackoff,
) -> Option<CallError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = WatchParams {
        timeout: Some(WATCH_TIMEOUT_SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    }
    .fields(field_selector);
    loop {
        // The API server normally answers the start of a watch immediately. The time limit is for an overloaded server.
        let stream = match timeout(CALL_TIMEOUT, api.watch(&params, &version)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Some(error.into()),
            Err(_) => return Some(CallError::Timeout),
        };
        let mut stream = std::pin::pin!(stream);
        let previous_version = version.clone();
        loop {
            match timeout(IDLE_TIMEOUT, stream.next()).await {
                Ok(Some(Ok(event))) => {
                    backoff.reset();
                    match event {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                            version = object.resource_version().unwrap_or_default();
                            handle(Some(object));
                        }
                        WatchEvent::Deleted(object) => {
                            version = object.resource_version().unwrap_or_default();
                            handle(None);
                        }
                        WatchEvent::Bookmark(bookmark) => {
                            version = bookmark.metadata.resource_version;
                        }
                        // The resource version has expired (410 Gone), so the object must be read again.
                        WatchEvent::Error(status) if status.code == 410 => return None,
                        WatchEvent::Error(status) => return Some(kube::Error::Api(status).into()),
                    }
                }
                Ok(Some(Err(error))) => return Some(error.into()),
                // The server ended the watch, as it does after the timeout of the watch. A new watch continues from the
                // last version.
                Ok(None) if version != previous_version => break,
                Ok(None) => return None,
                Err(_) => return None,
            }
        }
    }
}
