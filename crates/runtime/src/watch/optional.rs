//! A store of all objects of a kind that may not be installed, or that may be installed or removed later.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch::{Receiver, Sender, channel};

use super::stream::watch_events;
use crate::discovery::is_kind_served;

/// Interval between checks whether the kind is installed.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Number of objects in one page of a list. When the program starts, all kinds are listed at the same time, and objects
/// that are not trimmed yet are large. With kube's default of 500 objects, the pages take more memory than the stores.
const PAGE_SIZE: u32 = 100;

/// State of the watch of an optional kind.
#[derive(Clone, Debug)]
enum WatchState {
    Starting,
    NotInstalled,
    Listed(Store<DynamicObject>),
}

/// Store of all objects of a kind, if the API server serves this kind.
#[derive(Clone, Debug)]
pub struct OptionalInformer {
    resource: ApiResource,
    state: Receiver<WatchState>,
}

/// A kind that may not be installed, with a selection of the objects and fields that are stored.
#[derive(Debug)]
pub struct OptionalKind {
    pub resource: ApiResource,
    /// Label selector of the objects that are stored; `None` for all objects.
    pub label_selector: Option<String>,
    /// Removes the fields that no user of the store reads.
    pub trim: fn(&mut DynamicObject),
}

impl OptionalInformer {
    /// Returns the store, and a future that updates the store and never completes. `handle` is called with each object
    /// after the store has been updated. Its second argument is true if the object was deleted or its kind is no longer
    /// installed.
    pub fn start(
        client: &Client,
        kind: OptionalKind,
        handle: impl Fn(&DynamicObject, bool) + Send + Sync + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, state) = channel(WatchState::Starting);
        let informer = Self { resource: kind.resource.clone(), state };
        (informer, run_watch(client.clone(), kind, sender, handle))
    }

    /// Waits until the kind has been listed, or is known not to be installed.
    pub async fn wait_until_ready(&self) {
        drop(self.state.clone().wait_for(|state| !matches!(state, WatchState::Starting)).await);
    }

    /// Waits until the kind has been listed, and returns its store.
    pub async fn wait_until_listed(&self) -> Store<DynamicObject> {
        let mut state = self.state.clone();
        loop {
            if let WatchState::Listed(store) = &*state.borrow_and_update() {
                return store.clone();
            }
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns all objects; the list is empty if the kind is not installed.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<DynamicObject>> {
        match &*self.state.borrow() {
            WatchState::Listed(store) => store.state(),
            WatchState::Starting | WatchState::NotInstalled => Vec::new(),
        }
    }

    /// Returns the objects that `predicate` accepts.
    pub fn filter(&self, predicate: impl Fn(&DynamicObject) -> bool) -> Vec<Arc<DynamicObject>> {
        match &*self.state.borrow() {
            WatchState::Listed(store) => store.state_filter(predicate),
            WatchState::Starting | WatchState::NotInstalled => Vec::new(),
        }
    }

    /// Returns an object in a namespace.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let reference = ObjectRef::new_with(name, self.resource.clone()).within(namespace);
        match &*self.state.borrow() {
            WatchState::Listed(store) => store.get(&reference),
            WatchState::Starting | WatchState::NotInstalled => None,
        }
    }

    /// Returns a cluster-scoped object.
    #[must_use]
    pub fn get_cluster_scoped(&self, name: &str) -> Option<Arc<DynamicObject>> {
        match &*self.state.borrow() {
            WatchState::Listed(store) => {
                store.get(&ObjectRef::new_with(name, self.resource.clone()))
            }
            WatchState::Starting | WatchState::NotInstalled => None,
        }
    }

    /// Returns true if the kind has been listed and is still installed.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        matches!(*self.state.borrow(), WatchState::Listed(_))
    }

    /// Returns true if the kind is known not to be installed.
    #[must_use]
    pub fn is_not_installed(&self) -> bool {
        matches!(*self.state.borrow(), WatchState::NotInstalled)
    }
}

async fn run_watch(
    client: Client,
    kind: OptionalKind,
    state: Sender<WatchState>,
    handle: impl Fn(&DynamicObject, bool) + Send + Sync + 'static,
) {
    let OptionalKind { resource, label_selector: labels, trim } = kind;
    loop {
        match is_kind_served(&client, &resource).await {
            Ok(true) => {}
            Ok(false) => {
                state.send_replace(WatchState::NotInstalled);
                tokio::time::sleep(PROBE_INTERVAL).await;
                continue;
            }
            Err(error) => {
                let kind = &resource.plural;
                tracing::warn!(kind, %error, "failed to check whether a kind is installed; trying again");
                tokio::time::sleep(PROBE_INTERVAL).await;
                continue;
            }
        }
        let mut writer = Writer::new(resource.clone());
        let store = writer.as_reader();
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let config = Config::default().page_size(PAGE_SIZE);
        let config = match &labels {
            Some(labels) => config.labels(labels),
            None => config,
        };
        let mut listed_before: Vec<Arc<DynamicObject>> = Vec::new();
        let apply = |mut event| {
            if let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) =
                &mut event
            {
                trim(object);
            }
            if matches!(event, Event::Init) {
                listed_before = store.state();
            }
            writer.apply_watcher_event(&event);
            match event {
                Event::InitDone => {
                    state.send_replace(WatchState::Listed(store.clone()));
                    // Objects that were listed before and are missing now were deleted while the watch was interrupted.
                    for object in missing_objects(std::mem::take(&mut listed_before), &store) {
                        handle(&object, true);
                    }
                    store.state().iter().for_each(|object| handle(object, false));
                }
                Event::Apply(object) => handle(&object, false),
                Event::Delete(object) => handle(&object, true),
                Event::Init | Event::InitApply(_) => {}
            }
        };
        let is_still_served = |_: &kube::runtime::watcher::Error| {
            let (client, resource) = (client.clone(), resource.clone());
            async move { is_kind_served(&client, &resource).await.unwrap_or(true) }
        };
        watch_events(api, config, &resource.plural, apply, is_still_served).await;
        state.send_replace(WatchState::NotInstalled);
        store.state().iter().for_each(|object| handle(object, true));
    }
}

/// Returns the objects of `earlier` that the store does not contain.
fn missing_objects(
    earlier: Vec<Arc<DynamicObject>>,
    store: &Store<DynamicObject>,
) -> impl Iterator<Item = Arc<DynamicObject>> {
    let key = |object: &DynamicObject| (object.namespace(), object.name_any());
    let listed: HashSet<_> = store.state().iter().map(|object| key(object)).collect();
    earlier.into_iter().filter(move |object| !listed.contains(&key(object)))
}
