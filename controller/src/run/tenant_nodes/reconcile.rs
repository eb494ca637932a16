//! Reconciles the Nodes of one tenant: plan, writes, and the conditions of its TenantCluster.

use std::sync::{Arc, PoisonError};

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_api::{ConditionReason, TenantCluster};
use berth_runtime::untrusted::{CollectionEvent, UntrustedError};
use futures::TryStreamExt as _;
use futures::stream;
use kube::ResourceExt as _;

use super::status::{AccessState, StatusWriter};
use super::triggers::SharedMachines;
use super::write::{WriteError, apply_labels};
use crate::run::context::Context;
use crate::run::tenant_access::{Access, Connections};
use crate::tenant_nodes::keys::ReplicatedKeys;
use crate::tenant_nodes::plan::{TenantPlan, plan_tenant};
use crate::tenant_nodes::report::report;
use crate::tenants::fault::Fault;

/// Number of writes to one tenant at the same time. The client has the same limit.
const CONCURRENT_WRITES: usize = 4;

/// Reconciler of the Nodes of tenants.
pub(super) struct NodeReconciler {
    pub(super) context: Arc<Context>,
    pub(super) connections: Connections,
    pub(super) machines: SharedMachines,
}

/// State of a tenant's connection, and the plan for its Nodes if there is a connection.
type Planned = Result<(Access, TenantPlan, usize), Fault>;

impl NodeReconciler {
    /// Writes the labels of a tenant's Nodes that differ, and the conditions of the tenant.
    pub(super) async fn reconcile(&self, tenant: &TenantCluster) -> Result<(), WriteError> {
        if tenant.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let status = StatusWriter::new(&self.context, tenant);
        if tenant.spec.kubeconfig_secret_ref.is_none() {
            return status.write(None).await;
        }
        // Before the first answer of the tenant's API server, its conditions stay.
        let Some(planned) = self.plan(&tenant.name_any()) else { return Ok(()) };
        let (access, plan, omitted) = match planned {
            Ok(planned) => planned,
            Err(fault) => return status.write(Some(AccessState::Failed(fault))).await,
        };
        let written = self.write(&tenant.name_any(), &access, &plan).await;
        let labels = match &written {
            Err(WriteError::Node { node, error }) if *error != UntrustedError::Status(409) => {
                let message = format!("Node {node} of the tenant: {error}");
                Err(Fault::new(ConditionReason::ApplyFailed, message))
            }
            _ => report(&plan, omitted),
        };
        let certificate = access.certificate;
        status.write(Some(AccessState::Connected { certificate, labels })).await?;
        written
    }

    fn plan(&self, tenant: &str) -> Option<Planned> {
        let keys = ReplicatedKeys::from_config(&self.context.config().spec);
        let namespace = TenantCluster::namespace_of(tenant);
        let machines = {
            let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
            machines.machines_in(&namespace)
        };
        let host_labels = |host: &str| {
            let node = self.context.nodes.get(host)?;
            Some(keys.select(node.labels()))
        };
        let planned = self.connections.read(tenant, |state| {
            let access = state.access.clone()?;
            Some(access.map(|access| {
                let plan = plan_tenant(&machines, state.nodes.nodes(), host_labels);
                (access, plan, state.nodes.omitted())
            }))
        });
        planned.flatten()
    }

    /// Sends the writes of a plan, and stops at the first failure.
    async fn write(
        &self,
        tenant: &str,
        access: &Access,
        plan: &TenantPlan,
    ) -> Result<(), WriteError> {
        let writes = stream::iter(plan.writes.iter().cloned().map(Ok));
        writes
            .try_for_each_concurrent(CONCURRENT_WRITES, |write| async move {
                if let Some(node) = apply_labels(&access.client, &write).await? {
                    // The watch delivers the same Node soon; without this update, a reconcile meanwhile would send the
                    // write again.
                    self.connections.update_nodes(tenant, |nodes| {
                        nodes.handle(CollectionEvent::Applied(node), CONTROLLER_FIELD_MANAGER);
                        false
                    });
                    self.context.metrics.count_tenant_node_write();
                }
                Ok(())
            })
            .await
    }
}
