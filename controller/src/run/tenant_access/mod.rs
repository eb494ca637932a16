//! Connections to the API servers of tenants: one task per tenant with a `kubeconfigSecretRef`, which watches the
//! Secret, and in the tenant's cluster the Nodes and, if needed, the StorageClasses. A tenant's API server that answers
//! slowly, or not at all, delays only the task of this tenant.
//!
//! The client of a connection checks each address to which it connects, limits the size of all answers, and writes only
//! while this process is the leader ([`berth_runtime::untrusted`]).

mod class_watch;
mod collection_watch;
mod connection;
mod connections;
mod faults;
mod infra_server;
mod queue;
mod spec;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::TenantCluster;
use berth_runtime::untrusted::LargeAnswerPermits;
use berth_runtime::watch::Change;
use kube::ResourceExt as _;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{AbortHandle, JoinSet};

use super::context::Context;
use super::tenants::WatchedKubeconfig;
use connection::Environment;
pub(super) use connection::{NODE_LIMITS, NODES_PATH};
pub use connections::Connections;
pub(super) use connections::{Access, ChangedMachines, SharedState, TenantObjects};
pub(super) use faults::{drain_fault_of, write_fault_of};
use infra_server::InfraServer;
pub(super) use queue::TenantQueue;
use spec::AccessSpec;
pub(super) use write::{MAX_OBJECT_LENGTH, WriteError, json_body, patch_object};

/// Running tasks, each with the [`AccessSpec`] from which it was started.
#[derive(Default)]
struct ConnectionTasks {
    tasks: JoinSet<()>,
    by_tenant: BTreeMap<String, (AccessSpec, AbortHandle)>,
}

/// Maintains the connections to all tenants until this future is dropped. Sends each observed state of a kubeconfig to
/// `kubeconfigs`.
pub(super) async fn run(
    context: Arc<Context>,
    connections: Connections,
    kubeconfigs: UnboundedSender<WatchedKubeconfig>,
) {
    let (mut tenants, mut configs) = (context.tenants.subscribe(), context.configs.subscribe());
    tokio::join!(
        context.tenants.wait_until_ready(),
        context.configs.wait_until_ready(),
        context.nodes.wait_until_ready()
    );
    let infra_server = InfraServer::default();
    let watch_infra_server = infra_server.watch(&context.client, context.own_server.clone());
    let environment = Arc::new(Environment {
        client: context.client.clone(),
        guard: context.guard.clone(),
        infra_nodes: context.nodes.clone(),
        infra_server: infra_server.clone(),
        connections,
        large_answers: LargeAnswerPermits::default(),
        kubeconfigs,
    });
    let maintain = async {
        let mut tasks = ConnectionTasks::default();
        tasks.update_all(&context, &environment).await;
        loop {
            tokio::select! {
                change = tenants.recv() => match change {
                    Some(Change::Relisted) => tasks.update_all(&context, &environment).await,
                    Some(Change::Object(before, after)) => {
                        if let Some(tenant) = after.as_ref().or(before.as_ref()) {
                            tasks.update(&context, &environment, &tenant.name_any()).await;
                        }
                    }
                    None => return,
                },
                // The InfraConfig lists the Secrets in other namespaces to which tenants may refer.
                change = configs.recv() => match change {
                    Some(_) => tasks.update_all(&context, &environment).await,
                    None => return,
                },
                // Removes the tasks that were stopped from the set.
                Some(_) = tasks.tasks.join_next() => {}
            }
        }
    };
    tokio::join!(maintain, watch_infra_server);
}

impl ConnectionTasks {
    async fn update_all(&mut self, context: &Context, environment: &Arc<Environment>) {
        let known = self.by_tenant.keys().cloned();
        let names: Vec<String> =
            known.chain(context.tenants.all().iter().map(|tenant| tenant.name_any())).collect();
        for name in names {
            self.update(context, environment, &name).await;
        }
    }

    /// Starts, restarts or stops the task of a tenant.
    async fn update(&mut self, context: &Context, environment: &Arc<Environment>, name: &str) {
        let tenant = context.tenants.get(name);
        let spec = tenant.and_then(|tenant: Arc<TenantCluster>| {
            AccessSpec::of_tenant(&tenant, &context.config().spec)
        });
        let is_same = self.by_tenant.get(name).map(|(running, _)| running) == spec.as_ref();
        if is_same {
            return;
        }
        if let Some((_, task)) = self.by_tenant.remove(name) {
            task.abort();
            // An aborted task may still set the state of the tenant until it has ended.
            while !task.is_finished() {
                tokio::task::yield_now().await;
            }
            environment.connections.remove(name);
        }
        if let Some(spec) = spec {
            tracing::info!(tenant = name, "starting the connection to a tenant");
            let task = connection::run(name.to_owned(), spec.clone(), Arc::clone(environment));
            let task = self.tasks.spawn(task);
            self.by_tenant.insert(name.to_owned(), (spec, task));
        }
    }
}
