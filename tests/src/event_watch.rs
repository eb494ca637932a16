//! Watches that lose no event: when a watch ends, the next watch starts at the last resource version.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::mpsc::UnboundedSender;

/// Event of a watch.
#[derive(Debug)]
pub(crate) enum Event {
    /// An object was created or changed.
    Written(DynamicObject),
    /// An object was deleted. The event has its last state.
    Deleted(DynamicObject),
    /// The server does not have the last resource version any more. No event follows.
    Lost(String),
}

/// Returns the API of a kind, and the resource version from which a watch receives all later events.
pub(crate) async fn api_and_start_version(
    client: &Client,
    resource: &ApiResource,
) -> kube::Result<(Api<DynamicObject>, String)> {
    let api = Api::all_with(client.clone(), resource);
    let list = api.list(&ListParams::default()).await?;
    Ok((api, list.metadata.resource_version.unwrap_or_default()))
}

/// Sends the events of all objects after this resource version to a channel, until events are lost or the channel is
/// closed.
pub(crate) async fn send_events(
    api: Api<DynamicObject>,
    mut version: String,
    events: UnboundedSender<Event>,
) {
    let lost = |message: String| events.send(Event::Lost(message)).unwrap_or_default();
    loop {
        match api.watch(&WatchParams::default(), &version.clone()).await {
            Ok(watch) => {
                let mut watch = pin!(watch);
                while let Ok(Some(event)) = watch.try_next().await {
                    let event = match event {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                            version = object.resource_version().unwrap_or_default();
                            Event::Written(object)
                        }
                        WatchEvent::Deleted(object) => {
                            version = object.resource_version().unwrap_or_default();
                            Event::Deleted(object)
                        }
                        WatchEvent::Bookmark(bookmark) => {
                            version = bookmark.metadata.resource_version;
                            continue;
                        }
                        WatchEvent::Error(error) => return lost(error.message),
                    };
                    if events.send(event).is_err() {
                        return;
                    }
                }
            }
            Err(kube::Error::Api(status)) if status.code == 410 => {
                return lost(status.message.clone());
            }
            // The server is busy; the request is retried.
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
