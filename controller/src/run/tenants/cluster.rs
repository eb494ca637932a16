//! Watches the objects of the infra cluster on which NetworkPolicies depend: the Services of cluster DNS, the ConfigMap
//! of NodeLocal DNSCache, the Service and endpoints of the API server, the ServiceCIDRs, and the Nodes.
//! [`crate::tenants::cluster`] derives the facts.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use k8s_openapi::api::core::v1::{Endpoints, Node};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ApiResource;
use kube::runtime::{reflector, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::tenants::cluster::{
    ClusterFacts, DNS_LABEL, FactSources, KUBE_SYSTEM, ListResult, UnknownFact, node_addresses,
    pod_networks,
};
use crate::tenants::node_local_dns::NODE_LOCAL_DNS;
use berth_runtime::discovery;
use berth_runtime::watch::{Change, Config, Event, Informer, continue_after_error, watch_events};

/// Interval between checks whether the API server serves a kind that it did not serve before, because an upgrade of the
/// API server may add the kind.
const PROBE_INTERVAL: Duration = Duration::from_secs(600);
/// Namespace and name of the Service of the API server.
const API_SERVER_SERVICE: (&str, &str) = ("default", "kubernetes");

/// Kinds of objects that are watched, one for each watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WatchedKind {
    Dns,
    KubeSystem,
    ApiService,
    ApiEndpoints,
    ServiceNetworks,
    NodeLocalDns,
}

/// Number of watches.
const WATCH_COUNT: usize = 6;

/// Current facts of the infra cluster.
#[derive(Debug)]
pub(super) struct ClusterWatch {
    objects: Mutex<FactSources>,
    facts: RwLock<Arc<ClusterFacts>>,
    nodes: Informer<Node>,
    /// Kinds for which the API server has answered the first list request, with objects or with an error.
    answered_kinds: watch::Sender<BTreeSet<WatchedKind>>,
}

impl ClusterWatch {
    /// Starts the watches. `changed` is called after each change of the facts. The returned futures run the watches and
    /// never end.
    pub(super) fn start(
        client: &Client,
        nodes: Informer<Node>,
        changed: impl Fn() + Clone + Send + Sync + 'static,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        fn unknown<K>(kind: &'static str) -> ListResult<K> {
            Err(UnknownFact::NotListed(kind))
        }
        let objects = FactSources {
            dns: unknown("services"),
            kube_system: unknown("namespaces"),
            api_service: unknown("services"),
            api_endpoints: unknown("endpointslices"),
            service_networks: unknown("servicecidrs"),
            node_local_dns: unknown("configmaps"),
        };
        let facts = ClusterFacts::derive(&objects, &[]);
        let this = Arc::new(Self {
            objects: Mutex::new(objects),
            facts: RwLock::new(Arc::new(facts)),
            nodes,
            answered_kinds: watch::Sender::default(),
        });
        let (namespace, name) = API_SERVER_SERVICE;
        let with_name = |name: &str| Config::default().fields(&format!("metadata.name={name}"));
        let label = Config::default().labels(&format!("{}={}", DNS_LABEL.0, DNS_LABEL.1));
        let system = Api::namespaced(client.clone(), KUBE_SYSTEM);
        let api_server = Api::namespaced(client.clone(), namespace);
        let all = vec![
            this.watch(WatchedKind::Dns, system, label, &changed, |all, list| all.dns = list),
            this.watch(
                WatchedKind::KubeSystem,
                Api::all(client.clone()),
                with_name(KUBE_SYSTEM),
                &changed,
                |all, list| all.kube_system = list,
            ),
            this.watch(
                WatchedKind::ApiService,
                api_server,
                with_name(name),
                &changed,
                |all, list| {
                    all.api_service = list;
                },
            ),
            this.watch(
                WatchedKind::NodeLocalDns,
                Api::namespaced(client.clone(), KUBE_SYSTEM),
                with_name(NODE_LOCAL_DNS),
                &changed,
                |all, list| all.node_local_dns = list,
            ),
            this.watch_endpoints(client, with_name(name), &changed),
            this.watch_service_networks(client, &changed),
            this.watch_nodes(changed),
        ];
        (this, all)
    }

    /// Waits until the API server has answered the first list of every kind.
    pub(super) async fn wait_until_ready(&self) {
        drop(self.answered_kinds.subscribe().wait_for(|all| all.len() == WATCH_COUNT).await);
        self.refresh_facts();
    }

    /// Returns the current facts.
    pub(super) fn facts(&self) -> Arc<ClusterFacts> {
        Arc::clone(&self.facts.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn watch<K>(
        self: &Arc<Self>,
        watched: WatchedKind,
        api: Api<K>,
        config: Config,
        changed: &(impl Fn() + Clone + Send + Sync + 'static),
        set_list: fn(&mut FactSources, ListResult<K>),
    ) -> BoxFuture<'static, ()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (this, changed) = (Arc::clone(self), changed.clone());
        async move {
            watch_kind(api, config, move |list| {
                this.update_objects(watched, |all| set_list(all, list), &changed);
            })
            .await;
        }
        .boxed()
    }

    /// Watches the endpoints of the API server: EndpointSlices, which exist since Kubernetes 1.21, or, if the API
    /// server does not serve them, the Endpoints, which contain the same addresses.
    fn watch_endpoints(
        self: &Arc<Self>,
        client: &Client,
        config: Config,
        changed: &(impl Fn() + Clone + Send + Sync + 'static),
    ) -> BoxFuture<'static, ()> {
        let (this, changed, client) = (Arc::clone(self), changed.clone(), client.clone());
        async move {
            let on_list = move |list| {
                this.update_objects(
                    WatchedKind::ApiEndpoints,
                    |all| all.api_endpoints = list,
                    &changed,
                );
            };
            if is_kind_served::<EndpointSlice>(&client).await {
                return watch_kind(Api::namespaced(client, API_SERVER_SERVICE.0), config, on_list)
                    .await;
            }
            let api: Api<Endpoints> = Api::namespaced(client, API_SERVER_SERVICE.0);
            let slices = |list: ListResult<Endpoints>| -> ListResult<EndpointSlice> {
                Ok(list?.iter().map(|one| Arc::new(to_endpoint_slice(one))).collect())
            };
            watch_kind(api, config, move |list| on_list(slices(list))).await;
        }
        .boxed()
    }

    /// Watches the address ranges of Services: ServiceCIDRs, which exist since Kubernetes 1.33. In older versions no
    /// object contains these ranges.
    fn watch_service_networks(
        self: &Arc<Self>,
        client: &Client,
        changed: &(impl Fn() + Clone + Send + Sync + 'static),
    ) -> BoxFuture<'static, ()> {
        let (this, changed, client) = (Arc::clone(self), changed.clone(), client.clone());
        async move {
            let on_list = move |list| {
                this.update_objects(
                    WatchedKind::ServiceNetworks,
                    |all| all.service_networks = list,
                    &changed,
                );
            };
            while !is_kind_served::<ServiceCIDR>(&client).await {
                on_list(Ok(Vec::new()));
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
            watch_kind(Api::all(client), Config::default(), on_list).await;
        }
        .boxed()
    }

    /// Handles changes of Nodes. Changes of fields on which no fact depends are ignored, because the status of Nodes
    /// changes all the time.
    fn watch_nodes(
        self: &Arc<Self>,
        changed: impl Fn() + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let (this, mut changes) = (Arc::clone(self), self.nodes.subscribe());
        let relevant_fields =
            |node: Option<&Node>| node.map(|node| (node_addresses(node), pod_networks(node)));
        async move {
            while let Some(change) = changes.recv().await {
                let is_new = match &change {
                    Change::Relisted => true,
                    Change::Object(before, after) => {
                        relevant_fields(before.as_deref()) != relevant_fields(after.as_deref())
                    }
                };
                if is_new && this.refresh_facts() {
                    changed();
                }
            }
        }
        .boxed()
    }

    fn update_objects(
        &self,
        watched: WatchedKind,
        update: impl FnOnce(&mut FactSources),
        changed: &impl Fn(),
    ) {
        update(&mut self.objects.lock().unwrap_or_else(PoisonError::into_inner));
        if self.refresh_facts() {
            changed();
        }
        self.answered_kinds.send_if_modified(|all| all.insert(watched));
    }

    /// Derives the facts again. Returns true if they have changed.
    fn refresh_facts(&self) -> bool {
        let nodes = self.nodes.all();
        let new = {
            let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
            ClusterFacts::derive(&objects, &nodes)
        };
        let mut facts = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = **facts != new;
        if is_new {
            *facts = Arc::new(new);
        }
        is_new
    }
}

/// Watches the objects of a kind, and calls `on_list` with all objects after each change. If the first list request
/// fails, calls `on_list` with the error. If later requests fail, the last known objects stay valid.
async fn watch_kind<K>(api: Api<K>, config: Config, on_list: impl Fn(ListResult<K>) + Send + Sync)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let kind = K::plural(&());
    let (store, mut writer) = reflector::store::<K>();
    let is_listed = AtomicBool::new(false);
    let handle = |event: Event<K>| {
        writer.apply_watcher_event(&event);
        if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
            is_listed.store(true, Ordering::Relaxed);
            on_list(Ok(store.state()));
        }
    };
    let retry = |error: &watcher::Error| {
        if !is_listed.load(Ordering::Relaxed) {
            let reason = berth_runtime::cli::text::error_chain(error);
            on_list(Err(UnknownFact::ListFailed { kind: kind.to_string(), reason }));
        }
        continue_after_error(error)
    };
    watch_events(api, config, &kind, handle, retry).await;
}

/// Returns true if the API server serves a kind. Retries until the API server answers.
async fn is_kind_served<K: Resource<DynamicType = ()>>(client: &Client) -> bool {
    let resource = ApiResource::erase::<K>(&());
    loop {
        match discovery::is_kind_served(client, &resource).await {
            Ok(is_served) => return is_served,
            Err(error) => {
                tracing::warn!(kind = %resource.plural, error = %error, "failed to check whether a kind is served; trying again");
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

fn to_endpoint_slice(endpoints: &Endpoints) -> EndpointSlice {
    let subsets = endpoints.subsets.iter().flatten();
    // Addresses that are not ready are also used, because they belong to the API server as well.
    let all =
        subsets.flat_map(|one| one.addresses.iter().chain(&one.not_ready_addresses).flatten());
    let addresses: Vec<String> = all.map(|address| address.ip.clone()).collect();
    EndpointSlice {
        metadata: endpoints.metadata.clone(),
        endpoints: vec![Endpoint { addresses, ..Endpoint::default() }],
        ..EndpointSlice::default()
    }
}
