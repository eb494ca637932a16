//! Follows a kind that may not be installed, or be installed later; objects as they come, less what nobody looks at.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use super::calls::is_served;

/// A kind that is not installed is asked for again after so long.
const PROBE: Duration = Duration::from_secs(15);
/// Objects of one answer to a list. All kinds are listed at once at the start, and untrimmed objects are large: with
/// kube's 500 the answers take more memory than the stores.
const PAGE: u32 = 100;

/// How far the watch is.
#[derive(Clone, Debug)]
enum Known {
    NotYet,
    Missing,
    There(Store<DynamicObject>),
}

/// All objects of a kind, if the server has it.
#[derive(Clone, Debug)]
pub(super) struct Optional {
    resource: ApiResource,
    known: watch::Receiver<Known>,
}

/// What is followed, and how.
pub(super) struct Manner {
    pub(super) resource: ApiResource,
    /// A label selector.
    pub(super) labels: Option<String>,
    /// Takes away what nobody looks at.
    pub(super) trim: fn(&mut DynamicObject),
}

impl Optional {
    /// Begins. The future is what follows: it never ends. `news` is told of objects after the store has them, and whether
    /// they are gone.
    pub(super) fn begin(
        client: &Client,
        manner: Manner,
        news: impl Fn(&DynamicObject, bool) + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (tell, known) = watch::channel(Known::NotYet);
        let this = Self { resource: manner.resource.clone(), known };
        (this, follow(client.clone(), manner, tell, news))
    }

    /// Until it is known whether there are any, and which.
    pub(super) async fn ready(&self) {
        drop(self.known.clone().wait_for(|known| !matches!(known, Known::NotYet)).await);
    }

    /// The store, as soon as the kind is installed.
    pub(super) async fn there(&self) -> Store<DynamicObject> {
        let mut known = self.known.clone();
        loop {
            if let Known::There(store) = &*known.borrow_and_update() {
                return store.clone();
            }
            if known.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// All of them; none where the kind is not installed.
    pub(super) fn all(&self) -> Vec<Arc<DynamicObject>> {
        match &*self.known.borrow() {
            Known::There(store) => store.state(),
            Known::NotYet | Known::Missing => Vec::new(),
        }
    }

    /// Those that are looked for.
    pub(super) fn filter(
        &self,
        is_wanted: impl Fn(&DynamicObject) -> bool,
    ) -> Vec<Arc<DynamicObject>> {
        match &*self.known.borrow() {
            Known::There(store) => store.state_filter(is_wanted),
            Known::NotYet | Known::Missing => Vec::new(),
        }
    }

    /// One of them.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let reference = ObjectRef::new_with(name, self.resource.clone()).within(namespace);
        match &*self.known.borrow() {
            Known::There(store) => store.get(&reference),
            Known::NotYet | Known::Missing => None,
        }
    }

    /// One of them, of a kind without namespaces.
    pub(super) fn named(&self, name: &str) -> Option<Arc<DynamicObject>> {
        match &*self.known.borrow() {
            Known::There(store) => store.get(&ObjectRef::new_with(name, self.resource.clone())),
            Known::NotYet | Known::Missing => None,
        }
    }

    /// Whether the server has no such kind.
    pub(super) fn is_missing(&self) -> bool {
        matches!(*self.known.borrow(), Known::Missing)
    }
}

async fn follow(
    client: Client,
    manner: Manner,
    tell: watch::Sender<Known>,
    news: impl Fn(&DynamicObject, bool) + Send + 'static,
) {
    let Manner { resource, labels, trim } = manner;
    loop {
        match is_served(&client, &resource).await {
            Ok(true) => {}
            Ok(false) => {
                tell.send_replace(Known::Missing);
                tokio::time::sleep(PROBE).await;
                continue;
            }
            Err(error) => {
                tracing::warn!("{}: {error}", resource.plural);
                tokio::time::sleep(PROBE).await;
                continue;
            }
        }
        let writer = Writer::new(resource.clone());
        let store = writer.as_reader();
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let config = watcher::Config::default().page_size(PAGE);
        let config = match &labels {
            Some(labels) => config.labels(labels),
            None => config,
        };
        let events = watcher(api, config).default_backoff().modify(trim).reflect(writer);
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::InitDone) => {
                    tell.send_replace(Known::There(store.clone()));
                    store.state().iter().for_each(|object| news(object, false));
                }
                Ok(Event::Apply(object)) => news(&object, false),
                Ok(Event::Delete(object)) => news(&object, true),
                Ok(Event::Init | Event::InitApply(_)) => {}
                Err(error) => {
                    tracing::warn!("watch of {}: {error}", resource.plural);
                    if is_served(&client, &resource).await.is_ok_and(|served| !served) {
                        break;
                    }
                }
            }
        }
    }
}
