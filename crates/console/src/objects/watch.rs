//! The watches of all kinds, which update the store.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::discovery::is_kind_served;
use berth_runtime::watch::{Config, Event, watch_events};
use berth_views::{Kind, ObjectName};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::Value;
use tokio::task::JoinSet;

use super::changed::Changed;
use super::resource::api_resource;
use super::store::{Store, WatchState, object_name};
use super::watch_health::WatchHealth;

/// Interval between checks whether the kind is installed.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval between checks whether an interrupted watch works again.
const HEALTH_INTERVAL: Duration = Duration::from_secs(15);
/// Number of objects in one page of a list.
const PAGE_SIZE: u32 = 250;

/// Starts the watches of all kinds as `tasks`, and returns the store that they update.
pub(crate) fn start_watches(client: &Client, tasks: &mut JoinSet<()>) -> Arc<Store> {
    let store = Arc::new(Store::default());
    for kind in Kind::ALL {
        tasks.spawn(watch_kind(Arc::clone(&store), client.clone(), kind));
    }
    store
}

/// Watches a kind and updates the store. Never returns.
async fn watch_kind(store: Arc<Store>, client: Client, kind: Kind) {
    let resource = api_resource(kind);
    loop {
        match is_kind_served(&client, &resource).await {
            Ok(true) => watch_installed_kind(&store, &client, kind, &resource).await,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(kind = resource.plural, %error, "failed to check whether a kind is installed; trying again");
                store.set_state(kind, WatchState::Failing);
                tokio::time::sleep(PROBE_INTERVAL).await;
                continue;
            }
        }
        store.set_state(kind, WatchState::NotInstalled);
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

/// Watches a kind until it is no longer installed, and removes its objects then.
async fn watch_installed_kind(
    store: &Arc<Store>,
    client: &Client,
    kind: Kind,
    resource: &ApiResource,
) {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let config = Config::default().page_size(PAGE_SIZE);
    let config = match kind.label_selector() {
        Some(labels) => config.labels(labels),
        None => config,
    };
    let mut known = Known::default();
    let health = Mutex::new(WatchHealth::default());
    let is_still_served = |_: &kube::runtime::watcher::Error| {
        let outdated = lock(&health).record_error(Instant::now());
        match (store.state(kind), outdated) {
            (WatchState::Listed, Some(since)) => {
                store.set_state(kind, WatchState::Outdated(since));
            }
            (WatchState::Listed | WatchState::Outdated(_), _) => {}
            _ => store.set_state(kind, WatchState::Failing),
        }
        let (client, resource) = (client.clone(), resource.clone());
        async move { is_kind_served(&client, &resource).await.unwrap_or(true) }
    };
    let handle = |event: Event<DynamicObject>| {
        // The server may still refuse the list that this event announces.
        if !matches!(event, Event::Init) {
            lock(&health).record_event();
            recover(store, kind);
        }
        known.handle_event(store, kind, event);
    };
    tokio::select! {
        () = watch_events(api, config, &resource.plural, handle, is_still_served) => {}
        () = expire(store, kind, &health) => {}
    }
    for name in &known.names {
        store.remove(kind, name);
    }
    store.publish(Changed::of_kind(kind));
}

/// Objects are current again if a watch has no errors for some time. Never returns.
async fn expire(store: &Store, kind: Kind, health: &Mutex<WatchHealth>) {
    loop {
        tokio::time::sleep(HEALTH_INTERVAL).await;
        let works = lock(health).expire(Instant::now());
        if works {
            recover(store, kind);
        }
    }
}

fn lock(health: &Mutex<WatchHealth>) -> MutexGuard<'_, WatchHealth> {
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Objects that were outdated are current again.
fn recover(store: &Store, kind: Kind) {
    if matches!(store.state(kind), WatchState::Outdated(_)) {
        store.set_state(kind, WatchState::Listed);
    }
}

/// Names of the objects in the store, to find those that were deleted while the watch was interrupted.
#[derive(Default)]
struct Known {
    names: BTreeSet<ObjectName>,
    /// Names in the current list.
    listed: BTreeSet<ObjectName>,
}

impl Known {
    fn handle_event(&mut self, store: &Store, kind: Kind, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                let object = to_value(object);
                store.add(kind, &object);
                let name = object_name(&object);
                // If the list is interrupted, the next one still finds that the object was deleted.
                self.names.insert(name.clone());
                self.listed.insert(name);
            }
            Event::InitDone => {
                for deleted in self.names.difference(&self.listed) {
                    store.remove(kind, deleted);
                }
                self.names = std::mem::take(&mut self.listed);
                store.set_state(kind, WatchState::Listed);
                store.publish(Changed::of_kind(kind));
            }
            Event::Apply(object) => {
                let object = to_value(object);
                let name = object_name(&object);
                self.names.insert(name);
                if let Some(changed) = store.add(kind, &object) {
                    store.publish(changed);
                }
            }
            Event::Delete(object) => {
                let name = object_name(&to_value(object));
                self.names.remove(&name);
                let changed = store.remove(kind, &name);
                store.publish(changed);
            }
        }
    }
}

/// Returns the whole object as JSON, without the managed fields.
fn to_value(object: DynamicObject) -> Value {
    let DynamicObject { types, mut metadata, mut data } = object;
    metadata.managed_fields = None;
    if let Value::Object(fields) = &mut data {
        fields.insert("metadata".to_owned(), serde_json::to_value(metadata).unwrap_or_default());
        if let Some(types) = types {
            fields.insert("apiVersion".to_owned(), types.api_version.into());
            fields.insert("kind".to_owned(), types.kind.into());
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::visible::{Scope, Visible};

    fn node(name: &str) -> DynamicObject {
        let object =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn objects_that_a_new_list_lacks_are_removed() {
        let (store, mut known) = (Store::default(), Known::default());
        for names in [["a", "b"], ["b", "c"]] {
            known.handle_event(&store, Kind::Node, Event::Init);
            for name in names {
                known.handle_event(&store, Kind::Node, Event::InitApply(node(name)));
            }
            known.handle_event(&store, Kind::Node, Event::InitDone);
        }
        known.handle_event(&store, Kind::Node, Event::Apply(node("d")));
        known.handle_event(&store, Kind::Node, Event::Delete(node("b")));
        let names: Vec<&str> = known.names.iter().map(|name| name.name.as_str()).collect();
        assert_eq!(names, ["c", "d"]);
        assert_eq!(store.state(Kind::Node), WatchState::Listed);
    }

    #[test]
    fn objects_of_an_interrupted_list_are_removed() {
        let (store, mut known) = (Store::default(), Known::default());
        known.handle_event(&store, Kind::Node, Event::Init);
        known.handle_event(&store, Kind::Node, Event::InitApply(node("ghost")));
        // The connection ends, and the object is deleted before the next list.
        known.handle_event(&store, Kind::Node, Event::Init);
        known.handle_event(&store, Kind::Node, Event::InitApply(node("a")));
        known.handle_event(&store, Kind::Node, Event::InitDone);
        let names: Vec<&str> = known.names.iter().map(|name| name.name.as_str()).collect();
        assert_eq!(names, ["a"]);
        let everything = Visible::new(Kind::ALL.map(|kind| (kind, Scope::All)).into());
        let names: Vec<String> = store.select(&everything).nodes.keys().cloned().collect();
        assert_eq!(names, ["a"]);
    }
}
