//! Follows one object: a list, then a watch from there, for ever.
//!
//! A watch that is quiet may be dead: the server sends a bookmark each minute, so a watch without any is begun
//! anew. That way a watch can be long, and an idle agent asks for nothing.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use berth_runtime::client::{CALL, CallError, Pauses, within};

/// A quiet watch is taken for dead after so long.
const QUIET: Duration = Duration::from_secs(200);
/// A watch is renewed after so long, in seconds; the server would end it between 30 and 60 minutes.
const LONG: u32 = 3000;
/// Longest pause between tries.
const PAUSE: Duration = Duration::from_secs(30);

/// Calls `tell` with the object whenever it changes, and with `None` when it is not there.
pub(super) async fn follow<K>(
    api: Api<K>,
    kind: &'static str,
    name: String,
    tell: impl Fn(Option<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let fields = format!("metadata.name={name}");
    let mut pauses = Pauses::up_to(PAUSE);
    let mut said = String::new();
    loop {
        let list = within(api.list(&ListParams::default().fields(&fields))).await;
        let error = match list {
            Ok(list) => {
                if !said.is_empty() {
                    tracing::info!("{kind} {name}: the API server answers again");
                    said.clear();
                }
                let version = list.metadata.resource_version.unwrap_or_default();
                tell(list.items.into_iter().next());
                watch(&api, &fields, version, &tell, &mut pauses).await
            }
            Err(error) => Some(error),
        };
        let rest = error.as_ref().map_or(Duration::ZERO, CallError::rest);
        if let Some(error) = error.map(|error| error.to_string())
            && error != said
        {
            tracing::warn!("{kind} {name}: {error}; trying again");
            said = error;
        }
        pauses.wait(rest).await;
    }
}

/// Until the watch can no longer be continued from where it was; says why, if that is worth a word.
async fn watch<K>(
    api: &Api<K>,
    fields: &str,
    mut version: String,
    tell: &impl Fn(Option<K>),
    pauses: &mut Pauses,
) -> Option<CallError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = WatchParams { timeout: Some(LONG), bookmarks: true, ..WatchParams::default() }
        .fields(fields);
    loop {
        // Beginning a watch has an answer too; a server in trouble may not give it.
        let stream = match timeout(CALL, api.watch(&params, &version)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Some(error.into()),
            Err(_) => return Some(CallError::Silent),
        };
        let mut stream = std::pin::pin!(stream);
        let before = version.clone();
        loop {
            match timeout(QUIET, stream.next()).await {
                Ok(Some(Ok(event))) => {
                    pauses.reset();
                    match event {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                            version = object.resource_version().unwrap_or_default();
                            tell(Some(object));
                        }
                        WatchEvent::Deleted(object) => {
                            version = object.resource_version().unwrap_or_default();
                            tell(None);
                        }
                        WatchEvent::Bookmark(bookmark) => {
                            version = bookmark.metadata.resource_version;
                        }
                        // The version is too old: ordinary.
                        WatchEvent::Error(status) if status.code == 410 => return None,
                        WatchEvent::Error(status) => return Some(kube::Error::Api(status).into()),
                    }
                }
                Ok(Some(Err(error))) => return Some(error.into()),
                // The server ended it, as it does after a while.
                Ok(None) if version != before => break,
                Ok(None) => return None,
                Err(_) => return None,
            }
        }
    }
}
