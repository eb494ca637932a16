//! Reconciles the Nodes of one tenant: plans and sends the writes, and sets the conditions of the TenantCluster.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use berth_api::TenantCluster;
use berth_runtime::untrusted::CollectionEvent;
use futures::TryStreamExt as _;
use futures::stream;
use kube::ResourceExt as _;

use super::status::AccessState;
use super::triggers::SharedMachines;
use super::write::{apply_metadata, apply_taints};
use crate::run::context::Context;
use crate::run::tenant_access::{Access, Connections, SharedState, WriteError, write_fault_of};
use crate::run::tenant_conditions::ConditionWriter;
use crate::tenant_nodes::host_fields::ReplicationConfig;
use crate::tenant_nodes::plan::{TenantPlan, plan_tenant};
use crate::tenant_nodes::report::report;
use crate::tenants::fault::Fault;

/// Maximum number of concurrent writes to one tenant's API server. The client has the same limit.
const CONCURRENT_WRITES: usize = 4;
/// Time limit for the writes of one plan. A server that answers each write late must not delay the next plan, which may
/// be for a new kubeconfig.
const MAX_WRITE_TIME: Duration = Duration::from_secs(60);
/// Command that prints the RBAC permissions that the writes need.
const RBAC_COMMAND: &str = "berth-controller render --tenant-rbac";

/// Reconciler of the Nodes of tenants.
pub(super) struct NodeReconciler {
    pub(super) context: Arc<Context>,
    pub(super) connections: Connections,
    pub(super) machines: SharedMachines,
    pub(super) condition_writer: ConditionWriter,
}

/// Connection to a tenant, plan for its Nodes, and number of Nodes that the store omits; or the reason why there is no
/// connection.
type PlanResult = Result<(Access, TenantPlan, usize), Fault>;
/// Time after which the tenant must be reconciled again; `None` if only an event triggers the next reconcile.
type RequeueDelay = Option<Duration>;

impl NodeReconciler {
    /// Writes those labels, annotations and taints of a tenant's Nodes that differ from the desired ones, and the
    /// conditions of the TenantCluster.
    pub(super) async fn reconcile(
        &self,
        tenant: &TenantCluster,
    ) -> Result<RequeueDelay, WriteError> {
        let name = tenant.name_any();
        if tenant.metadata.deletion_timestamp.is_some() {
            self.condition_writer.forget(&name);
            return Ok(None);
        }
        if tenant.spec.kubeconfig_secret_ref.is_none() {
            return self.write_status(tenant, None).await;
        }
        // Without a state, the tenant's API server has not answered yet, so the conditions of the TenantCluster are not
        // changed.
        let Some(state) = self.connections.state(&name) else { return Ok(None) };
        let Some(planned) = self.plan(&name, &state) else { return Ok(None) };
        let (access, plan, omitted) = match planned {
            Ok(planned) => planned,
            Err(fault) => return self.write_status(tenant, Some(AccessState::Failed(fault))).await,
        };
        let writes = self.write((&name, &state), &access, &plan);
        let written = tokio::time::timeout(MAX_WRITE_TIME, writes).await;
        let written = written.unwrap_or(Err(WriteError::Slow("Nodes")));
        let labels = match write_fault_of(&written, RBAC_COMMAND) {
            Some(fault) => Err(fault),
            None => report(&plan, omitted),
        };
        let certificate = access.certificate;
        let state = AccessState::Connected { certificate, labels };
        let retry = self.write_status(tenant, Some(state)).await?;
        written.map(|()| retry)
    }

    /// Writes the conditions for a state. Without a state, removes the conditions.
    async fn write_status(
        &self,
        tenant: &TenantCluster,
        state: Option<AccessState>,
    ) -> Result<RequeueDelay, WriteError> {
        let updates = state.map(|state| state.conditions(SystemTime::now())).unwrap_or_default();
        let written = self.condition_writer.write(tenant, &updates).await;
        written.map_err(|error| WriteError::Status(tenant.name_any(), error))
    }

    fn plan(&self, tenant: &str, state: &SharedState) -> Option<PlanResult> {
        let replication = ReplicationConfig::from_config(&self.context.config().spec);
        let namespace = TenantCluster::namespace_of(tenant);
        let machines = {
            let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
            machines.machines_in(&namespace)
        };
        let host_fields = |host: &str| Some(replication.select(&*self.context.nodes.get(host)?));
        let state = state.lock();
        let access = state.access.clone()?;
        Some(access.map(|access| {
            let plan = plan_tenant(&machines, state.nodes.nodes(), host_fields);
            (access, plan, state.nodes.omitted())
        }))
    }

    /// Sends the writes of a plan, and stops at the first failure.
    async fn write(
        &self,
        (tenant, state): (&str, &SharedState),
        access: &Access,
        plan: &TenantPlan,
    ) -> Result<(), WriteError> {
        let writes = stream::iter(plan.writes.iter().cloned().map(Ok));
        writes
            .try_for_each_concurrent(CONCURRENT_WRITES, |write| async move {
                let client = &access.client;
                let written =
                    [apply_metadata(client, &write).await?, apply_taints(client, &write).await?];
                for node in written.into_iter().flatten() {
                    // The store is updated without waiting for the watch event, because a reconcile before this event
                    // would send the write again.
                    let applied = CollectionEvent::Applied(node);
                    self.connections.handle_node_answer(tenant, state, applied);
                    self.context.metrics.count_tenant_node_write();
                }
                Ok(())
            })
            .await
    }
}
