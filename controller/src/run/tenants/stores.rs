//! Stores of the objects on which tenants depend. Changes of these objects trigger reconciles of the affected
//! tenants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use berth_api::names::{MANAGED_BY, TENANT_LABEL};
use berth_api::{InfraConfig, InfraNode, TenantCluster, VlanClaim};
use berth_runtime::reconcile::ReconcileRequest;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::cluster::Cluster;
use crate::managed_fields::reduce_to_conditions;
use crate::run::packed_content::pack_content;
use crate::tenants::affected_tenants::AffectedTenants;
use crate::tenants::hosts::HostState;
use crate::tenants::objects::Kind;
use berth_runtime::watch::{Change, Informer};
use berth_runtime::watch::{OptionalInformer, OptionalKind};

pub(super) type Queue = UnboundedReceiver<ReconcileRequest<TenantCluster>>;

/// Time for which changes of hosts are collected before tenants are reconciled. One change of a host affects many
/// tenants.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// Informers that the reconciler of tenants shares with other reconcilers.
#[derive(Clone, Debug)]
pub struct SharedInformers {
    /// All tenants.
    pub tenants: Informer<TenantCluster>,
    /// All claims of VLANs and VNIs.
    pub claims: Informer<VlanClaim>,
    /// All InfraConfigs.
    pub configs: Informer<InfraConfig>,
    /// All InfraNodes.
    pub infra_nodes: Informer<InfraNode>,
    /// All Nodes.
    pub nodes: Informer<Node>,
}

impl SharedInformers {
    /// Starts the watches for a program that runs only the reconciler of tenants.
    #[must_use]
    pub fn start_watches(client: &Client, tasks: &mut JoinSet<()>) -> Self {
        let watch_health = Arc::default();
        Self {
            tenants: Informer::start(client, tasks, &watch_health, |tenant| {
                reduce_to_conditions(&mut tenant.metadata);
            }),
            claims: Informer::start(client, tasks, &watch_health, |_| {}),
            configs: Informer::start(client, tasks, &watch_health, |_| {}),
            infra_nodes: Informer::start(client, tasks, &watch_health, |_| {}),
            nodes: Informer::start(client, tasks, &watch_health, |_| {}),
        }
    }
}

/// Time of a write, and the object in the response of the API server. The watch delivers the same object soon.
pub(super) type RecentWrite = (Instant, DynamicObject);

/// Stores of the reconciler of tenants.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) shared_informers: SharedInformers,
    kinds: BTreeMap<Kind, OptionalInformer>,
    hosts: RwLock<BTreeMap<String, Arc<HostState>>>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) triggers: Arc<Triggers>,
}

/// Functions that trigger reconciles of tenants, and their state.
#[derive(Debug)]
pub(super) struct Triggers {
    queue: UnboundedSender<ReconcileRequest<TenantCluster>>,
    /// Tenants that are affected by changes of hosts, but whose reconciles have not been triggered yet.
    affected: Mutex<AffectedTenants>,
    affected_changed: Notify,
    /// Notified when a claim or a tenant changes.
    pub(super) claims_changed: Notify,
    /// Objects from the responses to writes, kept until the watch delivers them.
    pub(super) recent_writes: Mutex<BTreeMap<(Kind, String, String), RecentWrite>>,
}

impl Stores {
    /// Starts all watches. The returned future runs the watches and does not end.
    pub(super) fn start(
        client: &Client,
        shared_informers: SharedInformers,
    ) -> (Arc<Self>, Queue, BoxFuture<'static, ()>) {
        let (queue, requests) = unbounded_channel();
        let triggers = Arc::new(Triggers {
            queue,
            affected: Mutex::default(),
            affected_changed: Notify::new(),
            claims_changed: Notify::new(),
            recent_writes: Mutex::default(),
        });
        let mut watches: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut kinds = BTreeMap::new();
        for kind in Kind::ALL {
            let on_event = Arc::clone(&triggers);
            let optional_kind = OptionalKind {
                resource: kind.resource(),
                label_selector: selector(kind),
                trim: trim(kind),
            };
            let (informer, informer_watch) =
                OptionalInformer::start(client, optional_kind, move |object, is_gone| {
                    on_event.object_changed(kind, object, is_gone)
                });
            kinds.insert(kind, informer);
            watches.push(informer_watch.boxed());
        }
        let on_change = Arc::clone(&triggers);
        let (cluster, cluster_watches) =
            Cluster::start(client, shared_informers.nodes.clone(), move || on_change.trigger_all());
        watches.extend(cluster_watches);
        let stores =
            Arc::new(Self { shared_informers, kinds, hosts: RwLock::default(), cluster, triggers });
        watches.extend(stores.subscribe());
        let debounced = Arc::clone(&stores);
        watches.push(async move { debounced.trigger_affected().await }.boxed());
        let watches = futures::future::select_all(watches).map(drop).boxed();
        (stores, requests, watches)
    }

    /// Returns futures that handle the changes of the shared stores.
    fn subscribe(self: &Arc<Self>) -> [BoxFuture<'static, ()>; 5] {
        let SharedInformers { tenants, claims, configs, infra_nodes, nodes } =
            &self.shared_informers;
        [
            self.handle_changes(tenants.subscribe(), |stores, change: Change<TenantCluster>| {
                stores.triggers.claims_changed.notify_one();
                match changed_object(change) {
                    Some(tenant) => stores.triggers.trigger(&tenant.name_any()),
                    None => stores.triggers.trigger_all(),
                }
            }),
            self.handle_changes(claims.subscribe(), |stores, change: Change<VlanClaim>| {
                stores.triggers.claims_changed.notify_one();
                match changed_object(change) {
                    Some(claim) => stores.triggers.trigger(&claim.spec.tenant),
                    None => stores.triggers.trigger_all(),
                }
            }),
            self.handle_changes(configs.subscribe(), |stores, _: Change<InfraConfig>| {
                stores.triggers.claims_changed.notify_one();
                stores.triggers.trigger_all();
            }),
            self.handle_changes(infra_nodes.subscribe(), Self::host_changed::<InfraNode>),
            self.handle_changes(nodes.subscribe(), Self::host_changed::<Node>),
        ]
    }

    fn handle_changes<K: Send + Sync + 'static>(
        self: &Arc<Self>,
        mut changes: UnboundedReceiver<Change<K>>,
        handle: fn(&Self, Change<K>),
    ) -> BoxFuture<'static, ()> {
        let stores = Arc::clone(self);
        async move {
            while let Some(change) = changes.recv().await {
                handle(&stores, change);
            }
        }
        .boxed()
    }

    /// Waits until all stores have their first list.
    pub(super) async fn ready(&self) {
        let SharedInformers { tenants, claims, configs, infra_nodes, nodes } =
            &self.shared_informers;
        tenants.wait_until_ready().await;
        claims.wait_until_ready().await;
        configs.wait_until_ready().await;
        infra_nodes.wait_until_ready().await;
        nodes.wait_until_ready().await;
        self.cluster.ready().await;
        for kind in self.kinds.values() {
            kind.wait_until_ready().await;
        }
        // The states of hosts are derived again here, because a store receives its first list a moment before its
        // changes are handled.
        self.rebuild_all();
        self.triggers.trigger_all();
    }

    /// Returns the store of a kind; `None` if objects of the kind are not stored here.
    pub(super) fn kind(&self, kind: Kind) -> Option<&OptionalInformer> {
        self.kinds.get(&kind)
    }

    /// Returns the states of all hosts, sorted by name.
    pub(super) fn hosts(&self) -> Vec<Arc<HostState>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Derives the state of a changed host again, and triggers the tenants that the change affects.
    fn host_changed<K: Resource<DynamicType = ()>>(&self, change: Change<K>) {
        match changed_object(change) {
            Some(object) => self.rebuild(vec![object.name_any()]),
            None => self.rebuild_all(),
        }
    }

    fn rebuild_all(&self) {
        let infra_nodes = self.shared_informers.infra_nodes.all();
        let known = self.hosts();
        let names = infra_nodes.iter().map(|node| node.name_any());
        self.rebuild(names.chain(known.iter().map(|host| host.name.clone())).collect());
    }

    fn rebuild(&self, names: Vec<String>) {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let mut affected = AffectedTenants::default();
        for name in names {
            let node = self.shared_informers.nodes.get(&name);
            let labels = node.as_ref().map(|node| node.labels());
            let before = hosts.get(&name).cloned();
            let after = self.shared_informers.infra_nodes.get(&name).map(|infra| {
                let host = HostState::new(&infra, labels);
                Arc::new(match &before {
                    Some(before) => host.with_previous(before),
                    None => host,
                })
            });
            if before != after {
                affected
                    .merge(AffectedTenants::from_difference(before.as_deref(), after.as_deref()));
            }
            match after {
                Some(host) => drop(hosts.insert(name, host)),
                None => drop(hosts.remove(&name)),
            }
        }
        if affected != AffectedTenants::default() {
            self.triggers.trigger_some(affected);
        }
    }

    async fn trigger_affected(&self) {
        loop {
            self.triggers.affected_changed.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            let is_deleting = |tenant: &TenantCluster| tenant.metadata.deletion_timestamp.is_some();
            let tenants = self.shared_informers.tenants.store();
            let others = match self.triggers.take_affected() {
                AffectedTenants::All => tenants.state(),
                AffectedTenants::Some { tenants: some, deleting } => {
                    let names = some.iter().filter_map(|name| name.strip_prefix("cluster-"));
                    names.for_each(|name| self.triggers.trigger(name));
                    if deleting { tenants.state_filter(is_deleting) } else { Vec::new() }
                }
            };
            others.iter().for_each(|tenant| self.triggers.trigger(&tenant.name_any()));
        }
    }
}

impl Triggers {
    /// Triggers a reconcile of a tenant.
    fn trigger(&self, tenant: &str) {
        // The error is ignored: the queue has no receiver only if the program is ending.
        drop(self.queue.send(ObjectRef::new(tenant).into()));
    }

    /// Triggers reconciles of all tenants.
    pub(super) fn trigger_all(&self) {
        self.trigger_some(AffectedTenants::All);
    }

    fn trigger_some(&self, affected: AffectedTenants) {
        self.affected.lock().unwrap_or_else(PoisonError::into_inner).merge(affected);
        self.affected_changed.notify_one();
    }

    fn take_affected(&self) -> AffectedTenants {
        let mut affected = self.affected.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *affected)
    }

    /// Handles a change of an object that a tenant may own.
    fn object_changed(&self, kind: Kind, object: &DynamicObject, is_gone: bool) {
        if is_gone {
            let namespace = object.namespace().unwrap_or_default();
            let mut recent = self.recent_writes.lock().unwrap_or_else(PoisonError::into_inner);
            recent.remove(&(kind, namespace, object.name_any()));
        }
        if let Some(tenant) = object.labels().get(TENANT_LABEL) {
            self.trigger(tenant);
        }
    }
}

/// Returns the changed object, or the last state of a deleted object; `None` after a relist, when any object may have
/// changed.
fn changed_object<K>(change: Change<K>) -> Option<Arc<K>> {
    match change {
        Change::Relisted => None,
        Change::Object(before, after) => after.or(before),
    }
}

/// Returns the function that removes unused fields of objects of a kind. If objects of the kind are only compared, the
/// function also packs their content as JSON text.
fn trim(kind: Kind) -> fn(&mut DynamicObject) {
    match kind {
        // The content of definitions is not packed, because all definitions are searched for VLANs.
        Kind::NetworkAttachmentDefinition => |object| object.metadata.managed_fields = None,
        _ => |object| {
            object.metadata.managed_fields = None;
            pack_content(object);
        },
    }
}

fn selector(kind: Kind) -> Option<String> {
    match kind {
        // Definitions of other users are watched too, because the VLANs in them are in use.
        Kind::NetworkAttachmentDefinition => None,
        // Namespaces that Berth did not create are watched too, if they have the label of a tenant.
        Kind::Namespace => Some(TENANT_LABEL.to_owned()),
        _ => Some(format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)),
    }
}
