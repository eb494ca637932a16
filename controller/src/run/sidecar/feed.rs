//! Follows all objects of a kind without keeping them: each is read as it comes, and only what matters of it stays.

use std::fmt::Debug;

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// What happened.
#[derive(Debug)]
pub(super) enum Told<K> {
    /// All are listed anew from here on.
    Begin,
    /// One of the list.
    Listed(K),
    /// That was all of them.
    End,
    /// One has come, or is another now.
    Is(K),
    /// One has gone.
    Gone(K),
}

/// Follows for ever, or until `goes_on` says no after an error.
pub(super) async fn feed<K, F>(
    api: Api<K>,
    what: &str,
    mut take: impl FnMut(Told<K>) + Send,
    goes_on: impl Fn() -> F,
) where
    F: Future<Output = bool> + Send,
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut said = String::new();
    while let Some(event) = events.next().await {
        let told = match event {
            Ok(Event::Init) => Told::Begin,
            Ok(Event::InitApply(object)) => Told::Listed(object),
            Ok(Event::InitDone) => Told::End,
            Ok(Event::Apply(object)) => Told::Is(object),
            Ok(Event::Delete(object)) => Told::Gone(object),
            Err(error) => {
                let sentence = berth_runtime::cli::text::chain(&error);
                if said != sentence {
                    tracing::warn!("{what} cannot be followed: {sentence}; trying again");
                    said = sentence;
                }
                if goes_on().await {
                    continue;
                }
                return;
            }
        };
        // A list that is begun may still be refused.
        if !said.is_empty() && !matches!(told, Told::Begin) {
            tracing::info!("{what}: followed again");
            said.clear();
        }
        take(told);
    }
}

/// One that is always there is followed for ever.
pub(super) async fn always() -> bool {
    true
}
