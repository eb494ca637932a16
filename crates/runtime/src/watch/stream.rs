//! The watch of a kind as a stream of events.

use std::fmt::Debug;
use std::future::{Ready, ready};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::cli::text::error_chain;

/// Calls `handle` with each event of a watch. After an error, `retry` decides: if it returns true, the watch continues
/// after a backoff; otherwise this function returns. Without an error, it never returns.
pub async fn watch_events<K, F>(
    api: Api<K>,
    config: Config,
    kind: &str,
    mut handle: impl FnMut(Event<K>) + Send,
    mut retry: impl FnMut(&Error) -> F + Send,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Future<Output = bool> + Send,
{
    let mut events = event_stream(api, config);
    let mut last_error = String::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // `Event::Init` is sent at the start of a list, which the server may still refuse. It does not mean
                // that the watch has recovered.
                if !last_error.is_empty() && !matches!(event, Event::Init) {
                    tracing::info!(kind, "watch recovered");
                    last_error.clear();
                }
                handle(event);
            }
            Err(error) => {
                let text = error_message(&error);
                if last_error != text {
                    tracing::warn!(kind, error = %text, "failed to watch the objects of a kind; trying again");
                    last_error = text;
                }
                let retry = retry(&error);
                drop(error);
                if !retry.await {
                    return;
                }
            }
        }
    }
}

/// Returns the events of a watch as a stream. After an error, which is an item of the stream, the watch continues after a
/// backoff.
pub fn event_stream<K>(api: Api<K>, config: Config) -> BoxStream<'static, Result<Event<K>, Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config).default_backoff().boxed()
}

/// An argument for `retry` of [`watch_events`], with which the watch continues after any error.
pub fn continue_after_error(_: &Error) -> Ready<bool> {
    ready(true)
}

/// Returns true if the API server does not know the kind (404).
pub(super) fn is_kind_unknown(error: &Error) -> bool {
    matches!(error, Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// Returns the message of an error. If the server answered, this is the server's message and status code.
pub(super) fn error_message(error: &Error) -> String {
    use Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status)) => {
            format!("{} ({})", status.message, status.code)
        }
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
            error_chain(error)
        }
        other => other.to_string(),
    }
}
