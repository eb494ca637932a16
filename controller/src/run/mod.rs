//! Daemon of the controller: reconcilers, which run on the leader of several replicas.
//!
//! Each replica watches the objects and serves HTTP, so that the next leader is ready immediately. The leader runs
//! the reconcilers, one module each: a reconciler reads objects from informer stores, computes the desired state
//! with the pure modules, and writes the differences ([`apply`]). When the leader lease is lost, the reconcilers
//! are dropped at any point, and the next leader reconciles from the actual state. The scheduler extender
//! ([`extender`]) runs on all replicas.

pub mod apply;
mod assignment_metrics;
mod burst;
mod calls;
mod config;
pub mod events;
pub mod extender;
mod fleet_watch;
mod hosts;
pub mod machines;
mod malformed;
mod metrics;
mod packed;
pub mod reconcile;
mod site;
pub mod tenants;
mod unresponsive;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::Time;
use berth_api::names::CONTROLLER;
use berth_api::{HostProfile, InfraConfig, InfraNode, TenantCluster, VlanClaim};
use berth_runtime::client;
use berth_runtime::leader_election::{Election, LeaderElector, LeaderGuard};
use berth_runtime::serve::{self, Listen};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::managed_fields::reduce_to_conditions;
use apply::Writer;
use berth_runtime::watch::{Informer, WatchHealth};
use events::Events;
use fleet_watch::FleetStore;
pub use metrics::Metrics;
use site::Pages;
use unresponsive::AgentLeases;

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of a kubeconfig; `None` to use the ServiceAccount of the pod, or `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the leader lease and of the agents' Leases.
    pub lease_namespace: String,
    /// Time after which another replica takes over from a leader that does not renew the lease.
    pub lease_duration: Duration,
    /// Identity of this replica.
    pub identity: String,
    /// Addresses of the HTTP server.
    pub listen: Vec<Listen>,
    /// Period after which an unchanged object is reconciled again.
    pub resync: Duration,
    /// Settings of the scheduler extender, if it is enabled.
    pub extender: Option<extender::Settings>,
}

/// State that all reconcilers share.
pub struct Context {
    /// Client for reads, and for writes other than apply. The client only writes while this process is the leader.
    pub client: Client,
    /// Writes by server-side apply.
    pub writer: Writer,
    /// Emits Events.
    pub events: Arc<Events>,
    /// All Nodes, without unused fields.
    pub nodes: Informer<Node>,
    /// All InfraNodes.
    pub infra_nodes: Informer<InfraNode>,
    /// All HostProfiles.
    pub profiles: Informer<HostProfile>,
    /// All TenantClusters.
    pub tenants: Informer<TenantCluster>,
    /// The InfraConfig, if it exists.
    pub configs: Informer<InfraConfig>,
    /// All VlanClaims.
    pub claims: Informer<VlanClaim>,
    /// Period after which an unchanged object is reconciled again.
    pub resync: Duration,
    watches: Arc<WatchHealth>,
    metrics: Arc<Metrics>,
    lease_namespace: String,
    fleet: FleetStore,
    agent_leases: AgentLeases,
    config_changed: Notify,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Returns the configuration for all tenants; the defaults if there is no InfraConfig.
    #[must_use]
    pub fn config(&self) -> Arc<InfraConfig> {
        let defaults =
            || Arc::new(InfraConfig::new(config::NAME, berth_api::InfraConfigSpec::default()));
        self.configs.get(config::NAME).unwrap_or_else(defaults)
    }

    fn followers(&self) -> tenants::Followers {
        tenants::Followers {
            tenants: self.tenants.clone(),
            claims: self.claims.clone(),
            configs: self.configs.clone(),
            infra_nodes: self.infra_nodes.clone(),
            nodes: self.nodes.clone(),
        }
    }
}

/// Name of the leader lease.
const LEASE: &str = "berth-controller";
/// Timeout for the release of the leader lease when the program ends.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the current time in whole seconds, for conditions.
#[must_use]
pub fn now() -> Time {
    Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default())
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the daemon cannot start, for example without a cluster, or if an address is in use.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run_until_signal(settings));
    // A DNS lookup that hangs must not delay the exit of the program.
    runtime.shutdown_background();
    result
}

async fn run_until_signal(settings: &Settings) -> anyhow::Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = Arc::new(Metrics::default());
    let counted = Arc::clone(&metrics);
    let client::Connected { client, .. } =
        client::connect(settings.kubeconfig.as_deref(), "", move |method| counted.request(method))
            .await?;
    let watches = Arc::new(WatchHealth::default());
    let (leading, mut leadership) = watch::channel(false);
    let extender_listed = Arc::new(extender::Listed::new(settings.extender.is_some()));
    let pages = Arc::new(Pages::new(
        Arc::clone(&metrics),
        Arc::clone(&watches),
        Arc::clone(&extender_listed),
    ));
    let mut servers = JoinSet::new();
    for listen in &settings.listen {
        let server = serve::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
        servers.spawn(serve::serve(server, Arc::clone(&pages)));
    }
    let guard = LeaderGuard::default();
    let mut watch_tasks = JoinSet::new();
    let guarded = client::guarded(client.clone(), guard.clone());
    let context = Arc::new(context(settings, &guarded, &mut watch_tasks, &watches, &metrics));
    if let Some(settings) = &settings.extender {
        let shared = extender::Shared {
            nodes: context.nodes.clone(),
            infra_nodes: context.infra_nodes.clone(),
            profiles: context.profiles.clone(),
        };
        extender::start(settings, &client, shared, &metrics, &extender_listed, &mut watch_tasks)
            .await?;
    }
    let leases = Api::namespaced(client, &settings.lease_namespace);
    let election = Election {
        lease: LEASE,
        identity: settings.identity.clone(),
        duration: settings.lease_duration,
        field_manager: CONTROLLER,
    };
    let mut elector = LeaderElector::new(leases, election, guard);
    let (identity, namespace) = (&settings.identity, &settings.lease_namespace);
    tracing::info!(identity, namespace, lease = LEASE, "started leader election");
    // Reconcilers stop when the set is dropped.
    let mut reconcilers = JoinSet::new();
    let result = loop {
        tokio::select! {
            () = elector.run(&leading) => {}
            changed = leadership.changed() => {
                let is_leader = changed.is_ok() && *leadership.borrow_and_update();
                metrics.set_leader(is_leader);
                if is_leader {
                    tracing::info!(identity, "acquired the leader lease; starting reconcilers");
                    reconcilers = start_reconcilers(&context);
                } else {
                    tracing::warn!(identity, "lost the leader lease; stopping reconcilers");
                    reconcilers.shutdown().await;
                }
            }
            _ = end.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            // No task ends in normal operation. If a task ends, the program exits, and systemd or the kubelet
            // restarts it.
            Some(ended) = reconcilers.join_next() => break Err(unexpected_end(ended)),
            Some(ended) = watch_tasks.join_next() => break Err(unexpected_end(ended)),
        }
    };
    tracing::info!(identity, "stopping");
    reconcilers.shutdown().await;
    if tokio::time::timeout(RELEASE_TIMEOUT, elector.release()).await.is_err() {
        tracing::warn!(identity, "failed to release the leader lease in time; it will expire");
    }
    result
}

fn context(
    settings: &Settings,
    client: &Client,
    tasks: &mut JoinSet<()>,
    watches: &Arc<WatchHealth>,
    metrics: &Arc<Metrics>,
) -> Context {
    Context {
        client: client.clone(),
        writer: Writer::new(client.clone(), Arc::clone(metrics)),
        events: Arc::new(Events::new(client.clone(), &settings.identity)),
        nodes: Informer::start(client, tasks, watches, trim_node),
        infra_nodes: Informer::start(client, tasks, watches, |_| {}),
        profiles: Informer::start(client, tasks, watches, |profile| {
            profile.metadata.managed_fields = None
        }),
        tenants: Informer::start(client, tasks, watches, |tenant| {
            reduce_to_conditions(&mut tenant.metadata);
        }),
        configs: Informer::start(client, tasks, watches, |config| {
            config.metadata.managed_fields = None
        }),
        claims: Informer::start(client, tasks, watches, |claim| {
            claim.metadata.managed_fields = None
        }),
        resync: settings.resync,
        watches: Arc::clone(watches),
        metrics: Arc::clone(metrics),
        lease_namespace: settings.lease_namespace.clone(),
        fleet: FleetStore::default(),
        agent_leases: AgentLeases::default(),
        config_changed: Notify::new(),
    }
}

/// Starts the reconcilers, which never end.
fn start_reconcilers(context: &Arc<Context>) -> JoinSet<()> {
    let mut all = JoinSet::new();
    all.spawn(hosts::run(Arc::clone(context)));
    all.spawn(config::run(Arc::clone(context)));
    all.spawn(malformed::run(Arc::clone(context)));
    let (client, events) = (context.client.clone(), Arc::clone(&context.events));
    let (metrics, resync) = (Arc::clone(&context.metrics), context.resync);
    all.spawn(machines::run(client.clone(), Arc::clone(&events), Arc::clone(&metrics), resync));
    let followers = context.followers();
    all.spawn(async move {
        let Err(error) = tenants::run(client, events, metrics, followers, resync).await;
        tracing::error!(%error, "the reconciler of tenants ended");
    });
    all
}

fn unexpected_end(ended: Result<(), tokio::task::JoinError>) -> anyhow::Error {
    let why = ended.err().map(|error| format!(": {error}")).unwrap_or_default();
    anyhow::anyhow!("a task ended unexpectedly, which is a bug of berth-controller{why}")
}

/// Removes images and conditions of a Node, which are most of the object and change often. The extender reads
/// taints and resources, and NetworkPolicies use addresses and pod CIDRs, so these fields stay.
fn trim_node(node: &mut Node) {
    node.metadata.managed_fields = None;
    node.metadata.annotations = None;
    node.spec = node.spec.take().map(|spec| NodeSpec {
        taints: spec.taints,
        unschedulable: spec.unschedulable,
        pod_cidr: spec.pod_cidr,
        pod_cidrs: spec.pod_cidrs,
        ..NodeSpec::default()
    });
    node.status = node.status.take().map(|status| NodeStatus {
        addresses: status.addresses,
        allocatable: status.allocatable,
        node_info: status.node_info.map(|info| NodeSystemInfo {
            kubelet_version: info.kubelet_version,
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    });
}
