//! Stores of the objects on which the objects of tenants depend. A change of a stored object triggers reconciles of the
//! affected tenants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use berth_api::names::{MANAGED_BY_LABEL, TENANT_LABEL};
use berth_api::{
    AddressClaim, InfraConfig, InfraNode, LoadBalancers, PrefixClaim, TenantCluster, VlanClaim,
};
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

use super::cluster::ClusterWatch;
use super::kubevirt::KubevirtWatch;
use super::services::ServiceWatch;
use crate::managed_fields::reduce_to_conditions;
use crate::run::address_store::AddressStore;
use crate::run::packed_content::pack_content;
use crate::tenants::affected_tenants::AffectedTenants;
use crate::tenants::hosts::TenantHostState;
use crate::tenants::objects::ObjectKind;
use berth_runtime::watch::{Change, Informer};
use berth_runtime::watch::{OptionalInformer, OptionalKind};

pub(super) type ReconcileQueue = UnboundedReceiver<ReconcileRequest<TenantCluster>>;

/// Time for which changes of hosts are collected before tenants are reconciled, because one change of a host affects
/// many tenants.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// Informers that the reconciler of tenants shares with other reconcilers.
#[derive(Clone, Debug)]
pub struct TenantInformers {
    pub tenants: Informer<TenantCluster>,
    /// All VlanClaims, which lock VLANs and VNIs.
    pub vlan_claims: Informer<VlanClaim>,
    pub prefix_claims: Informer<PrefixClaim>,
    /// All AddressClaims.
    pub addresses: AddressStore,
    pub configs: Informer<InfraConfig>,
    pub infra_nodes: Informer<InfraNode>,
    pub nodes: Informer<Node>,
}

impl TenantInformers {
    /// Starts the watches for a program that runs only the reconciler of tenants.
    #[must_use]
    pub fn start_watches(client: &Client, tasks: &mut JoinSet<()>) -> Self {
        let watch_health = Arc::default();
        Self {
            tenants: Informer::start(client, tasks, &watch_health, |tenant| {
                reduce_to_conditions(&mut tenant.metadata);
            }),
            vlan_claims: Informer::start(client, tasks, &watch_health, |_| {}),
            prefix_claims: Informer::start(client, tasks, &watch_health, |_| {}),
            addresses: AddressStore::start(client, tasks, &watch_health),
            configs: Informer::start(client, tasks, &watch_health, |_| {}),
            infra_nodes: Informer::start(client, tasks, &watch_health, |_| {}),
            nodes: Informer::start(client, tasks, &watch_health, |_| {}),
        }
    }
}

/// Time of a write, and the object in the response of the API server, which the watch delivers soon.
pub(super) type RecentWrite = (Instant, DynamicObject);

/// Stores of the reconciler of tenants.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) shared_informers: TenantInformers,
    kinds: BTreeMap<ObjectKind, OptionalInformer>,
    hosts: RwLock<BTreeMap<String, Arc<TenantHostState>>>,
    pub(super) cluster: Arc<ClusterWatch>,
    pub(super) kubevirt: KubevirtWatch,
    pub(super) services: ServiceWatch,
    pub(super) triggers: Arc<TenantTriggers>,
}

/// Triggers reconciles of tenants after changes of stored objects.
#[derive(Debug)]
pub(super) struct TenantTriggers {
    queue: UnboundedSender<ReconcileRequest<TenantCluster>>,
    /// Tenants that are affected by changes of hosts, and whose reconciles are not triggered yet.
    affected_tenants: Mutex<AffectedTenants>,
    affected_changed: Notify,
    /// Wakes the garbage collection when a claim or a tenant changes.
    pub(super) claims_changed: Notify,
    /// Objects in the responses to writes. Each object is retained until the watch delivers it.
    pub(super) recent_writes: Mutex<BTreeMap<(ObjectKind, String, String), RecentWrite>>,
}

impl Stores {
    /// Starts all watches. The returned future runs the watches and never ends.
    pub(super) fn start(
        client: &Client,
        shared_informers: TenantInformers,
    ) -> (Arc<Self>, ReconcileQueue, BoxFuture<'static, ()>) {
        let (queue, requests) = unbounded_channel();
        let triggers = Arc::new(TenantTriggers {
            queue,
            affected_tenants: Mutex::default(),
            affected_changed: Notify::new(),
            claims_changed: Notify::new(),
            recent_writes: Mutex::default(),
        });
        let mut watches: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut kinds = BTreeMap::new();
        for kind in ObjectKind::ALL {
            let on_event = Arc::clone(&triggers);
            let optional_kind = OptionalKind {
                resource: kind.resource(),
                label_selector: label_selector(kind),
                trim: trim_function(kind),
            };
            let (informer, informer_watch) =
                OptionalInformer::start(client, optional_kind, move |object, is_deleted| {
                    on_event.handle_object_change(kind, object, is_deleted)
                });
            kinds.insert(kind, informer);
            watches.push(informer_watch.boxed());
        }
        let on_change = Arc::clone(&triggers);
        let (cluster, cluster_watches) =
            ClusterWatch::start(client, shared_informers.nodes.clone(), move || {
                on_change.trigger_all()
            });
        watches.extend(cluster_watches);
        let on_change = Arc::clone(&triggers);
        let (kubevirt, kubevirt_watch) =
            KubevirtWatch::start(client, move || on_change.trigger_all());
        watches.push(kubevirt_watch);
        let on_change = Arc::clone(&triggers);
        let (services, service_watch) =
            ServiceWatch::start(client, move |tenant| on_change.trigger(tenant));
        watches.push(service_watch);
        let hosts = RwLock::default();
        let stores = Arc::new(Self {
            shared_informers,
            kinds,
            hosts,
            cluster,
            kubevirt,
            services,
            triggers,
        });
        watches.extend(stores.subscribe());
        let debounced = Arc::clone(&stores);
        watches.push(async move { debounced.trigger_affected().await }.boxed());
        let watches = futures::future::select_all(watches).map(drop).boxed();
        (stores, requests, watches)
    }

    /// Returns futures that handle the changes of the shared stores.
    fn subscribe(self: &Arc<Self>) -> [BoxFuture<'static, ()>; 7] {
        let TenantInformers {
            tenants,
            vlan_claims,
            prefix_claims,
            addresses,
            configs,
            infra_nodes,
            nodes,
        } = &self.shared_informers;
        [
            self.handle_changes(tenants.subscribe(), |stores, change: Change<TenantCluster>| {
                stores.triggers.claims_changed.notify_one();
                if changes_load_balancers(&change) {
                    stores.triggers.trigger_all();
                }
                if let Some(network) = changed_network(&change) {
                    stores.trigger_users_of_network(&network);
                }
                match changed_object(change) {
                    Some(tenant) => stores.triggers.trigger(&tenant.name_any()),
                    None => stores.triggers.trigger_all(),
                }
            }),
            self.handle_changes(vlan_claims.subscribe(), |stores, change: Change<VlanClaim>| {
                stores.handle_claim_change(change, |claim| &claim.spec.tenant);
            }),
            self.handle_changes(
                prefix_claims.subscribe(),
                |stores, change: Change<PrefixClaim>| {
                    stores.handle_claim_change(change, |claim| &claim.spec.tenant);
                },
            ),
            // These changes are debounced like changes of hosts, because many AddressClaims of a tenant change at the
            // same time.
            self.handle_changes(
                addresses.informer().subscribe(),
                |stores, change: Change<AddressClaim>| {
                    stores.triggers.add_affected(match changed_object(change) {
                        Some(claim) => AffectedTenants::Some {
                            // The machine may belong to another tenant than the network.
                            tenants: [&claim.spec.network, &claim.spec.machine.namespace]
                                .map(String::clone)
                                .into(),
                            includes_deleting: false,
                        },
                        None => AffectedTenants::All,
                    });
                },
            ),
            self.handle_changes(configs.subscribe(), |stores, change: Change<InfraConfig>| {
                // The status does not affect tenants, and changes while golden images are imported.
                if let Change::Object(Some(before), Some(after)) = &change
                    && before.spec == after.spec
                {
                    return;
                }
                stores.triggers.claims_changed.notify_one();
                stores.triggers.trigger_all();
            }),
            self.handle_changes(infra_nodes.subscribe(), Self::handle_host_change::<InfraNode>),
            self.handle_changes(nodes.subscribe(), Self::handle_host_change::<Node>),
        ]
    }

    /// Triggers reconciles of the tenants whose machines may be attached to the network of the tenant `name`.
    fn trigger_users_of_network(&self, name: &str) {
        let lists = |tenant: &TenantCluster| tenant.additional_tenants().any(|one| one == name);
        let users = self.shared_informers.tenants.store().state_filter(lists);
        users.iter().for_each(|tenant| self.triggers.trigger(&tenant.name_any()));
    }

    /// Triggers a reconcile of the tenant of a claim, and the garbage collection of claims.
    fn handle_claim_change<K>(&self, change: Change<K>, tenant: fn(&K) -> &str) {
        self.triggers.claims_changed.notify_one();
        match changed_object(change) {
            Some(claim) => self.triggers.trigger(tenant(&claim)),
            None => self.triggers.trigger_all(),
        }
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
    pub(super) async fn wait_until_ready(&self) {
        let TenantInformers {
            tenants,
            vlan_claims,
            prefix_claims,
            addresses,
            configs,
            infra_nodes,
            nodes,
        } = &self.shared_informers;
        tenants.wait_until_ready().await;
        vlan_claims.wait_until_ready().await;
        prefix_claims.wait_until_ready().await;
        addresses.wait_until_ready().await;
        configs.wait_until_ready().await;
        infra_nodes.wait_until_ready().await;
        nodes.wait_until_ready().await;
        self.cluster.wait_until_ready().await;
        self.kubevirt.wait_until_ready().await;
        self.services.wait_until_ready().await;
        for kind in self.kinds.values() {
            kind.wait_until_ready().await;
        }
        // The states of all hosts are derived again, because a store may have received its first list before the task
        // above handles this change.
        self.rebuild_all_hosts();
        self.triggers.trigger_all();
    }

    /// Returns the store of a kind; `None` if objects of this kind are not stored here.
    pub(super) fn store_of_kind(&self, kind: ObjectKind) -> Option<&OptionalInformer> {
        self.kinds.get(&kind)
    }

    /// Returns the states of all hosts, sorted by name.
    pub(super) fn hosts(&self) -> Vec<Arc<TenantHostState>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Derives the state of a changed host again, and triggers reconciles of the tenants that the change affects.
    fn handle_host_change<K: Resource<DynamicType = ()>>(&self, change: Change<K>) {
        match changed_object(change) {
            Some(object) => self.rebuild_hosts(vec![object.name_any()]),
            None => self.rebuild_all_hosts(),
        }
    }

    fn rebuild_all_hosts(&self) {
        let infra_nodes = self.shared_informers.infra_nodes.all();
        let known = self.hosts();
        let names = infra_nodes.iter().map(|node| node.name_any());
        self.rebuild_hosts(names.chain(known.iter().map(|host| host.name.clone())).collect());
    }

    fn rebuild_hosts(&self, names: Vec<String>) {
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        let mut affected = AffectedTenants::default();
        for name in names {
            let node = self.shared_informers.nodes.get(&name);
            let labels = node.as_ref().map(|node| node.labels());
            let before = hosts.get(&name).cloned();
            let after = self.shared_informers.infra_nodes.get(&name).map(|infra| {
                let host = TenantHostState::new(&infra, labels);
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
            self.triggers.add_affected(affected);
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
                AffectedTenants::Some { tenants: some, includes_deleting: deleting } => {
                    let names = some.iter().filter_map(|name| name.strip_prefix("cluster-"));
                    names.for_each(|name| self.triggers.trigger(name));
                    if deleting { tenants.state_filter(is_deleting) } else { Vec::new() }
                }
            };
            others.iter().for_each(|tenant| self.triggers.trigger(&tenant.name_any()));
        }
    }
}

impl TenantTriggers {
    /// Triggers a reconcile of a tenant.
    pub(super) fn trigger(&self, tenant: &str) {
        // The error is ignored: the queue has no receiver only if the program is ending.
        drop(self.queue.send(ObjectRef::new(tenant).into()));
    }

    /// Triggers reconciles of all tenants.
    pub(super) fn trigger_all(&self) {
        self.add_affected(AffectedTenants::All);
    }

    fn add_affected(&self, affected: AffectedTenants) {
        self.affected_tenants.lock().unwrap_or_else(PoisonError::into_inner).merge(affected);
        self.affected_changed.notify_one();
    }

    fn take_affected(&self) -> AffectedTenants {
        let mut affected = self.affected_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *affected)
    }

    /// Handles a change of an object that a tenant may own.
    fn handle_object_change(&self, kind: ObjectKind, object: &DynamicObject, is_deleted: bool) {
        if is_deleted {
            let namespace = object.namespace().unwrap_or_default();
            let mut recent = self.recent_writes.lock().unwrap_or_else(PoisonError::into_inner);
            recent.remove(&(kind, namespace, object.name_any()));
        }
        if let Some(tenant) = object.labels().get(TENANT_LABEL) {
            self.trigger(tenant);
        }
    }
}

/// Returns the changed object, or the last version of a deleted object; `None` after a relist, because any object may
/// have changed.
fn changed_object<K>(change: Change<K>) -> Option<Arc<K>> {
    match change {
        Change::Relisted => None,
        Change::Object(before, after) => after.or(before),
    }
}

/// Returns the name of the changed tenant if the change affects the NetworkAttachmentDefinitions of other tenants whose
/// machines may be attached to its network. The status changes with every machine, but these fields seldom change.
fn changed_network(change: &Change<TenantCluster>) -> Option<String> {
    let facts = |tenant: &Arc<TenantCluster>| {
        let status = tenant.status.clone().unwrap_or_default();
        let spec = (tenant.spec.network.clone(), tenant.spec.node_selector.clone());
        (spec, status.vlan, status.vni, status.mtu, tenant.metadata.deletion_timestamp.is_some())
    };
    let Change::Object(before, after) = change else { return None };
    let changed = after.as_ref().or(before.as_ref())?;
    let is_other = before.as_ref().map(facts) != after.as_ref().map(facts);
    is_other.then(|| changed.name_any())
}

/// Returns true if the load balancer addresses that a tenant requests have changed. Such a change may affect every
/// tenant, because the address pools must not overlap.
fn changes_load_balancers(change: &Change<TenantCluster>) -> bool {
    fn pool(tenant: Option<&Arc<TenantCluster>>) -> Option<&LoadBalancers> {
        tenant?.spec.exposure.as_ref()?.load_balancers.as_ref()
    }
    match change {
        Change::Relisted => true,
        Change::Object(before, after) => pool(before.as_ref()) != pool(after.as_ref()),
    }
}

/// Returns the function that removes unused fields of objects of a kind. If objects of this kind are only compared, the
/// function also packs their content as JSON text, to save memory.
fn trim_function(kind: ObjectKind) -> fn(&mut DynamicObject) {
    match kind {
        // NetworkAttachmentDefinitions are not packed, because all of them are searched for VLANs.
        ObjectKind::NetworkAttachmentDefinition => |object| object.metadata.managed_fields = None,
        _ => |object| {
            object.metadata.managed_fields = None;
            pack_content(object);
        },
    }
}

fn label_selector(kind: ObjectKind) -> Option<String> {
    match kind {
        // NetworkAttachmentDefinitions that other users created are also watched, because the VLANs in them are in use.
        ObjectKind::NetworkAttachmentDefinition => None,
        // Namespaces that Berth did not create are also watched, if they have the label of a tenant.
        ObjectKind::Namespace => Some(TENANT_LABEL.to_owned()),
        _ => Some(format!("{}={}", MANAGED_BY_LABEL.0, MANAGED_BY_LABEL.1)),
    }
}
