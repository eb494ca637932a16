//! What is known of tenants and of what they have, and whom news of it concern.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use berth_api::names::{MANAGED_BY, TENANT};
use berth_api::{InfraConfig, InfraNode, TenantCluster, VlanClaim};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::cluster::Cluster;
use crate::fields::keep_whether_conditions_are_one;
use crate::run::packed::pack;
use crate::tenants::concern::Concern;
use crate::tenants::hosts::Host;
use crate::tenants::objects::Kind;
use berth_runtime::watch::{Change, Informer};
use berth_runtime::watch::{OptionalInformer, OptionalKind};

pub(super) type Queue = UnboundedReceiver<ReconcileRequest<TenantCluster>>;

/// News of hosts are gathered for so long before all tenants are looked at: a host has news of many tenants at once.
const GATHER: Duration = Duration::from_millis(500);

/// What others follow too.
#[derive(Clone, Debug)]
pub struct Followers {
    /// All tenants.
    pub tenants: Informer<TenantCluster>,
    /// All claims of VLANs and VNIs.
    pub claims: Informer<VlanClaim>,
    /// What holds for all.
    pub configs: Informer<InfraConfig>,
    /// What hosts are and should be.
    pub infra_nodes: Informer<InfraNode>,
    /// Their labels.
    pub nodes: Informer<Node>,
}

impl Followers {
    /// Followers of one's own, for whoever runs nothing but tenants.
    #[must_use]
    pub fn begin(client: &Client, tasks: &mut JoinSet<()>) -> Self {
        let waiting = Arc::default();
        Self {
            tenants: Informer::start(client, tasks, &waiting, |tenant| {
                keep_whether_conditions_are_one(&mut tenant.metadata);
            }),
            claims: Informer::start(client, tasks, &waiting, |_| {}),
            configs: Informer::start(client, tasks, &waiting, |_| {}),
            infra_nodes: Informer::start(client, tasks, &waiting, |_| {}),
            nodes: Informer::start(client, tasks, &waiting, |_| {}),
        }
    }
}

/// What is known without asking.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) followers: Followers,
    kinds: BTreeMap<Kind, OptionalInformer>,
    hosts: RwLock<BTreeMap<String, Arc<Host>>>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) news: Arc<News>,
}

/// Who has to look at something.
#[derive(Debug)]
pub(super) struct News {
    queue: UnboundedSender<ReconcileRequest<TenantCluster>>,
    /// Whom news of hosts concern, until they have been told.
    concerned: Mutex<Concern>,
    concern: Notify,
    /// Something about claims is new.
    pub(super) sweep: Notify,
    /// Objects as the server gave them back, until the watch has them.
    pub(super) recent: Mutex<BTreeMap<(Kind, String, String), super::objects::Recent>>,
}

impl Stores {
    /// Begins. The future is what keeps them: it never ends.
    pub(super) fn start(
        client: &Client,
        followers: Followers,
    ) -> (Arc<Self>, Queue, BoxFuture<'static, ()>) {
        let (queue, requests) = unbounded_channel();
        let news = Arc::new(News {
            queue,
            concerned: Mutex::default(),
            concern: Notify::new(),
            sweep: Notify::new(),
            recent: Mutex::default(),
        });
        let mut watches: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut kinds = BTreeMap::new();
        for kind in Kind::ALL {
            let told = Arc::clone(&news);
            let manner = OptionalKind {
                resource: kind.resource(),
                labels: selector(kind),
                trim: trim(kind),
            };
            let (followed, follow) =
                OptionalInformer::start(client, manner, move |object, is_gone| {
                    told.of(kind, object, is_gone)
                });
            kinds.insert(kind, followed);
            watches.push(follow.boxed());
        }
        let told = Arc::clone(&news);
        let (cluster, follow) =
            Cluster::start(client, followers.nodes.clone(), move || told.look_at_all());
        watches.extend(follow);
        let stores = Arc::new(Self { followers, kinds, hosts: RwLock::default(), cluster, news });
        watches.extend(stores.listen());
        let gathered = Arc::clone(&stores);
        watches.push(async move { gathered.gather().await }.boxed());
        let watches = futures::future::select_all(watches).map(drop).boxed();
        (stores, requests, watches)
    }

    /// Hears of what others follow too.
    fn listen(self: &Arc<Self>) -> [BoxFuture<'static, ()>; 5] {
        let Followers { tenants, claims, configs, infra_nodes, nodes } = &self.followers;
        [
            self.hear(tenants.changes(), |stores, change: Change<TenantCluster>| {
                stores.news.sweep.notify_one();
                match either(change) {
                    Some(tenant) => stores.news.look_at(&tenant.name_any()),
                    None => stores.news.look_at_all(),
                }
            }),
            self.hear(claims.changes(), |stores, change: Change<VlanClaim>| {
                stores.news.sweep.notify_one();
                match either(change) {
                    Some(claim) => stores.news.look_at(&claim.spec.tenant),
                    None => stores.news.look_at_all(),
                }
            }),
            self.hear(configs.changes(), |stores, _: Change<InfraConfig>| {
                stores.news.sweep.notify_one();
                stores.news.look_at_all();
            }),
            self.hear(infra_nodes.changes(), Self::look_at_hosts::<InfraNode>),
            self.hear(nodes.changes(), Self::look_at_hosts::<Node>),
        ]
    }

    fn hear<K: Send + Sync + 'static>(
        self: &Arc<Self>,
        mut changes: UnboundedReceiver<Change<K>>,
        tell: fn(&Self, Change<K>),
    ) -> BoxFuture<'static, ()> {
        let stores = Arc::clone(self);
        async move {
            while let Some(change) = changes.recv().await {
                tell(&stores, change);
            }
        }
        .boxed()
    }

    /// Waits until everything that is there is known.
    pub(super) async fn ready(&self) {
        let Followers { tenants, claims, configs, infra_nodes, nodes } = &self.followers;
        tenants.ready().await;
        claims.ready().await;
        configs.ready().await;
        infra_nodes.ready().await;
        nodes.ready().await;
        self.cluster.ready().await;
        for kind in self.kinds.values() {
            kind.ready().await;
        }
        // A store has its first list a moment before its news are told.
        self.renew_all();
        self.news.look_at_all();
    }

    /// What is known of a kind.
    pub(super) fn kind(&self, kind: Kind) -> Option<&OptionalInformer> {
        self.kinds.get(&kind)
    }

    /// The hosts, by name.
    pub(super) fn hosts(&self) -> Vec<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Makes hosts anew of which there is news, and has tenants looked at if that changed anything for them.
    fn look_at_hosts<K: Resource<DynamicType = ()>>(&self, change: Change<K>) {
        match either(change) {
            Some(object) => self.renew(vec![object.name_any()]),
            None => self.renew_all(),
        }
    }

    fn renew_all(&self) {
        let there = self.followers.infra_nodes.all();
        let known = self.hosts();
        let names = there.iter().map(|node| node.name_any());
        self.renew(names.chain(known.iter().map(|host| host.name.clone())).collect());
    }

    fn renew(&self, names: Vec<String>) {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let mut whom = Concern::default();
        for name in names {
            let node = self.followers.nodes.get(&name);
            let labels = node.as_ref().map(|node| node.labels());
            let before = hosts.get(&name).cloned();
            let after = self.followers.infra_nodes.get(&name).map(|infra| {
                let host = Host::of(&infra, labels);
                Arc::new(match &before {
                    Some(before) => host.after(before),
                    None => host,
                })
            });
            if before != after {
                whom.add(Concern::of(before.as_deref(), after.as_deref()));
            }
            match after {
                Some(host) => drop(hosts.insert(name, host)),
                None => drop(hosts.remove(&name)),
            }
        }
        if whom != Concern::default() {
            self.news.concern(whom);
        }
    }

    async fn gather(&self) {
        loop {
            self.news.concern.notified().await;
            tokio::time::sleep(GATHER).await;
            let is_going = |tenant: &TenantCluster| tenant.metadata.deletion_timestamp.is_some();
            let tenants = self.followers.tenants.store();
            let too = match self.news.concerned() {
                Concern::All => tenants.state(),
                Concern::Some { tenants: some, going } => {
                    let names = some.iter().filter_map(|name| name.strip_prefix("cluster-"));
                    names.for_each(|name| self.news.look_at(name));
                    if going { tenants.state_filter(is_going) } else { Vec::new() }
                }
            };
            too.iter().for_each(|tenant| self.news.look_at(&tenant.name_any()));
        }
    }
}

impl News {
    /// Has a tenant looked at.
    fn look_at(&self, tenant: &str) {
        // Without a receiver all is over.
        drop(self.queue.send(ObjectRef::new(tenant).into()));
    }

    /// Has all tenants looked at.
    pub(super) fn look_at_all(&self) {
        self.concern(Concern::All);
    }

    fn concern(&self, whom: Concern) {
        self.concerned.lock().unwrap_or_else(PoisonError::into_inner).add(whom);
        self.concern.notify_one();
    }

    fn concerned(&self) -> Concern {
        let mut concerned = self.concerned.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *concerned)
    }

    /// There is news of an object that a tenant may have.
    fn of(&self, kind: Kind, object: &DynamicObject, is_gone: bool) {
        if is_gone {
            let namespace = object.namespace().unwrap_or_default();
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.remove(&(kind, namespace, object.name_any()));
        }
        if let Some(tenant) = object.labels().get(TENANT) {
            self.look_at(tenant);
        }
    }
}

/// The object that a change is of, as it is or was; none if it may be any.
fn either<K>(change: Change<K>) -> Option<Arc<K>> {
    match change {
        Change::Relisted => None,
        Change::Object(before, after) => after.or(before),
    }
}

/// What is compared only with what is wanted is packed.
fn trim(kind: Kind) -> fn(&mut DynamicObject) {
    match kind {
        // All of them are looked through for VLANs.
        Kind::NetworkAttachmentDefinition => |object| object.metadata.managed_fields = None,
        _ => |object| {
            object.metadata.managed_fields = None;
            pack(object);
        },
    }
}

fn selector(kind: Kind) -> Option<String> {
    match kind {
        // Others' VLANs are not to be given to tenants.
        Kind::NetworkAttachmentDefinition => None,
        // Also those that somebody else made.
        Kind::Namespace => Some(TENANT.to_owned()),
        _ => Some(format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)),
    }
}
