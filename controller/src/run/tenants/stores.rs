//! Watches, what they know, and whom their news concern.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use berth_api::names::{MANAGED_BY, TENANT};
use berth_api::{InfraConfig, InfraNode, TenantCluster, VlanClaim};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector::Lookup};
use kube::{Api, Client, Resource, ResourceExt as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

use crate::run::calls;
use crate::tenants::hosts::Host;
use crate::tenants::objects::Kind;

pub(super) type Queue = UnboundedReceiver<ReconcileRequest<TenantCluster>>;

/// A kind that is not installed is asked for again after so long.
const PROBE: Duration = Duration::from_secs(15);
/// News of hosts are gathered for so long before all tenants are looked at: a host has news of many tenants at once.
const GATHER: Duration = Duration::from_millis(500);

/// How far the watch of a kind is.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Nobody has asked yet.
    NotYet,
    /// The server does not have this kind.
    Missing,
    /// All there are.
    There(Store<DynamicObject>),
}

/// What is known without asking.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) tenants: Store<TenantCluster>,
    pub(super) claims: Store<VlanClaim>,
    pub(super) configs: Store<InfraConfig>,
    infra_nodes: Store<InfraNode>,
    nodes: Store<PartialObjectMeta<Node>>,
    kinds: BTreeMap<Kind, watch::Receiver<Known>>,
    hosts: RwLock<BTreeMap<String, Arc<Host>>>,
    /// Objects as the server gave them back, until the watch has them.
    pub(super) recent: Mutex<BTreeMap<(Kind, String, String), super::objects::Recent>>,
    queue: UnboundedSender<ReconcileRequest<TenantCluster>>,
    all: Notify,
    /// Something about claims is new.
    pub(super) sweep: Notify,
}

impl Stores {
    /// Begins to watch. The future is what watches: it never ends.
    pub(super) fn start(client: &Client) -> (Arc<Self>, Queue, BoxFuture<'static, ()>) {
        let (queue, requests) = unbounded_channel();
        let (tenants, write_tenants) = store();
        let (claims, write_claims) = store();
        let (configs, write_configs) = store();
        let (infra_nodes, write_infra_nodes) = store();
        let (nodes, write_nodes) = store();
        let (mut kinds, mut tell) = (BTreeMap::new(), Vec::new());
        for kind in Kind::ALL {
            let (sender, receiver) = watch::channel(Known::NotYet);
            kinds.insert(kind, receiver);
            tell.push((kind, sender));
        }
        let stores = Arc::new(Self {
            tenants,
            claims,
            configs,
            infra_nodes,
            nodes,
            kinds,
            hosts: RwLock::default(),
            recent: Mutex::default(),
            queue,
            all: Notify::new(),
            sweep: Notify::new(),
        });
        let mut watches: Vec<BoxFuture<'static, ()>> = vec![
            follow(client, write_tenants, &stores, |stores, event: &Event<TenantCluster>| {
                stores.sweep.notify_one();
                objects_of(event).for_each(|tenant| stores.look_at(&tenant.name_any()));
            }),
            follow(client, write_claims, &stores, |stores, event: &Event<VlanClaim>| {
                stores.sweep.notify_one();
                objects_of(event).for_each(|claim| stores.look_at(&claim.spec.tenant));
            }),
            follow(client, write_configs, &stores, |stores, _: &Event<InfraConfig>| {
                stores.sweep.notify_one();
                stores.all.notify_one();
            }),
            follow(client, write_infra_nodes, &stores, |stores, event: &Event<InfraNode>| {
                stores.look_at_hosts(event);
            }),
            follow(
                client,
                write_nodes,
                &stores,
                |stores, event: &Event<PartialObjectMeta<Node>>| stores.look_at_hosts(event),
            ),
        ];
        for (kind, tell) in tell {
            watches.push(of_kind(client.clone(), kind, Arc::clone(&stores), tell).boxed());
        }
        let gathered = Arc::clone(&stores);
        watches.push(async move { gathered.gather().await }.boxed());
        let watches = futures::future::select_all(watches).map(drop).boxed();
        (stores, requests, watches)
    }

    /// Waits until everything that is there is known.
    pub(super) async fn ready(&self) {
        // A store without a writer is one whose watch has ended, and then all ends.
        drop(self.tenants.wait_until_ready().await);
        drop(self.claims.wait_until_ready().await);
        drop(self.configs.wait_until_ready().await);
        drop(self.infra_nodes.wait_until_ready().await);
        drop(self.nodes.wait_until_ready().await);
        for known in self.kinds.values() {
            drop(known.clone().wait_for(|known| !matches!(known, Known::NotYet)).await);
        }
        // A store has its first list a moment before its news are told.
        self.renew_all();
        self.all.notify_one();
    }

    /// What is known of a kind.
    pub(super) fn kind(&self, kind: Kind) -> Known {
        self.kinds.get(&kind).map_or(Known::Missing, |known| known.borrow().clone())
    }

    /// The hosts, by name.
    pub(super) fn hosts(&self) -> Vec<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Has a tenant looked at.
    pub(super) fn look_at(&self, tenant: &str) {
        // Without a receiver all is over.
        drop(self.queue.send(ObjectRef::new(tenant).into()));
    }

    /// Has all tenants looked at.
    pub(super) fn look_at_all(&self) {
        self.all.notify_one();
    }

    /// Makes hosts anew of which there is news, and has tenants looked at if that changed anything for them.
    fn look_at_hosts<K: Resource<DynamicType = ()>>(&self, event: &Event<K>) {
        match event {
            Event::Apply(object) | Event::Delete(object) => self.renew(vec![object.name_any()]),
            Event::InitDone => self.renew_all(),
            Event::Init | Event::InitApply(_) => {}
        }
    }

    fn renew_all(&self) {
        let there = self.infra_nodes.state();
        let known = self.hosts();
        let names = there.iter().map(|node| node.name_any());
        self.renew(names.chain(known.iter().map(|host| host.name.clone())).collect());
    }

    fn renew(&self, names: Vec<String>) {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let mut is_new = false;
        for name in names {
            let node = self.nodes.get(&ObjectRef::new(&name));
            let labels = node.as_ref().map(|node| node.labels());
            let host = self.infra_nodes.get(&ObjectRef::new(&name));
            match host.map(|infra| Host::of(&infra, labels)) {
                Some(host) if hosts.get(&name).is_none_or(|known| **known != host) => {
                    hosts.insert(name, Arc::new(host));
                    is_new = true;
                }
                Some(_) => {}
                None => is_new |= hosts.remove(&name).is_some(),
            }
        }
        if is_new {
            self.all.notify_one();
        }
    }

    async fn gather(&self) {
        loop {
            self.all.notified().await;
            tokio::time::sleep(GATHER).await;
            for tenant in self.tenants.state() {
                self.look_at(&tenant.name_any());
            }
        }
    }
}

/// Watches all objects of a type, and tells of what is new after the store has it.
fn follow<K>(
    client: &Client,
    writer: kube::runtime::reflector::store::Writer<K>,
    stores: &Arc<Stores>,
    tell: fn(&Stores, &Event<K>),
) -> BoxFuture<'static, ()>
where
    K: Resource<DynamicType = ()>
        + Lookup<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let stores = Arc::clone(stores);
    let events = watcher(Api::<K>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .modify(|object| object.meta_mut().managed_fields = None)
        .reflect(writer);
    async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => tell(&stores, &event),
                Err(error) => tracing::warn!("watch of {}: {error}", <K as Resource>::plural(&())),
            }
        }
    }
    .boxed()
}

/// Objects that an event is about. Those of a first list come one by one.
fn objects_of<K>(event: &Event<K>) -> impl Iterator<Item = &K> {
    match event {
        Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => Some(object),
        Event::Init | Event::InitDone => None,
    }
    .into_iter()
}

/// Watches a kind that may not be installed, or be installed later.
async fn of_kind(client: Client, kind: Kind, stores: Arc<Stores>, tell: watch::Sender<Known>) {
    let resource = kind.resource();
    loop {
        match is_served(&client, kind).await {
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
        let (mut reader, writer) =
            (None, kube::runtime::reflector::store::Writer::new(resource.clone()));
        let config = match kind {
            // Others' VLANs are not to be given to tenants.
            Kind::NetworkAttachmentDefinition => watcher::Config::default(),
            // Also those that somebody else made.
            Kind::Namespace => watcher::Config::default().labels(TENANT),
            _ => watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)),
        };
        let ready = writer.as_reader();
        reader.replace(ready.clone());
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let events = watcher(api, config)
            .default_backoff()
            .modify(|object| object.metadata.managed_fields = None)
            .reflect(writer);
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if matches!(event, Event::InitDone)
                        && let Some(reader) = reader.take()
                    {
                        tell.send_replace(Known::There(reader));
                        stores.look_at_all();
                    }
                    stores.news_of(kind, &event);
                }
                Err(error) => {
                    tracing::warn!("watch of {}: {error}", resource.plural);
                    if is_served(&client, kind).await.is_ok_and(|served| !served) {
                        break;
                    }
                }
            }
        }
    }
}

impl Stores {
    fn news_of(&self, kind: Kind, event: &Event<DynamicObject>) {
        for object in objects_of(event) {
            if matches!(event, Event::Delete(_)) {
                let key = (
                    kind,
                    object.metadata.namespace.clone().unwrap_or_default(),
                    object.name_any(),
                );
                self.recent.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            }
            // The first list comes before any tenant is looked at.
            if !matches!(event, Event::InitApply(_))
                && let Some(tenant) = object.labels().get(TENANT)
            {
                self.look_at(tenant);
            }
        }
    }
}

async fn is_served(client: &Client, kind: Kind) -> kube::Result<bool> {
    Ok(kind.crd().is_none() || calls::is_served(client, &kind.resource()).await?)
}
