//! Reconciles the StorageClasses in one tenant's cluster: plans and sends the writes, and sets the condition of the
//! TenantCluster.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_api::{ConditionReason, TenantCluster};
use berth_runtime::untrusted::{CollectionEvent, UntrustedClient};
use kube::ResourceExt as _;

use super::infra_classes::InfraClasses;
use super::write::apply_class;
use crate::profiles::ConditionUpdate;
use crate::run::context::Context;
use crate::run::tenant_access::{Connections, SharedState, WriteError, write_fault_of};
use crate::run::tenant_conditions::{ConditionWriter, part_condition_update};
use crate::tenant_storage::desired::DesiredClasses;
use crate::tenant_storage::plan::{ClassPlan, plan_classes};
use crate::tenant_storage::report::report;
use crate::tenants::fault::Fault;
use crate::tenants::status::PartResult;

/// Type of the condition that is true if the tenant's cluster has the StorageClasses that the tenant may use. The
/// condition is absent if the tenant may use none, and is not changed while there is no connection.
const STORAGE_CLASSES_READY: &str = "StorageClassesReady";
/// Types of the conditions that this reconciler writes.
pub(super) const OWNED_CONDITIONS: &[&str] = &[STORAGE_CLASSES_READY];
/// Command that prints the RBAC permissions that the writes need.
const RBAC_COMMAND: &str = "berth-controller render --tenant-rbac --storage-classes";
/// Time limit for the writes of one plan.
const MAX_WRITE_TIME: Duration = Duration::from_secs(60);

/// Time after which the tenant must be reconciled again; `None` if only an event triggers the next reconcile.
type RequeueDelay = Option<Duration>;

/// Reconciler of the StorageClasses in tenants' clusters.
pub(super) struct ClassReconciler {
    pub(super) context: Arc<Context>,
    pub(super) connections: Connections,
    pub(super) infra_classes: Arc<InfraClasses>,
    pub(super) condition_writer: ConditionWriter,
}

impl ClassReconciler {
    /// Writes those StorageClasses of a tenant's cluster that differ from the desired ones, and the condition of the
    /// TenantCluster.
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
            return self.write_condition(tenant, None).await;
        }
        let Some(state) = self.connections.state(&name) else { return Ok(None) };
        let Some(client) = connected_client(&state) else { return Ok(None) };
        let config = self.context.config();
        // If the TenantCluster has the condition, the tenant's cluster may contain StorageClasses that the tenant may
        // no longer use.
        let has_condition = has_condition(tenant);
        let Some(infra_classes) = self.infra_classes.read() else {
            if !has_condition && config.spec.infra_storage_classes.is_empty() {
                return Ok(None);
            }
            return self.write_condition(tenant, Some(&Err(unlisted_classes_fault()))).await;
        };
        let desired = DesiredClasses::new(&config.spec, &infra_classes);
        let needs_watch = has_condition || !desired.is_empty();
        let Some(planned) = plan(&state, &desired, needs_watch) else { return Ok(None) };
        let (plan, omitted) = match planned {
            Ok(planned) => planned,
            Err(fault) => return self.write_condition(tenant, Some(&Err(fault))).await,
        };
        if desired.is_empty() && plan == ClassPlan::default() && omitted == 0 {
            let retry = self.write_condition(tenant, None).await?;
            if retry.is_none() {
                set_needs_watch(&state, false);
            }
            return Ok(retry);
        }
        let writes = write(&state, &client, &plan);
        let written = tokio::time::timeout(MAX_WRITE_TIME, writes).await;
        let written = written.unwrap_or(Err(WriteError::Slow("StorageClasses")));
        let part = match write_fault_of(&written, RBAC_COMMAND) {
            Some(fault) => Err(fault),
            None => report(&desired, &plan, omitted),
        };
        let retry = self.write_condition(tenant, Some(&part)).await?;
        written.map(|()| retry)
    }

    /// Writes the condition. Without a state (`None`), removes the condition.
    async fn write_condition(
        &self,
        tenant: &TenantCluster,
        part: Option<&PartResult>,
    ) -> Result<RequeueDelay, WriteError> {
        let updates: Vec<ConditionUpdate> = part
            .map(|part| part_condition_update(STORAGE_CLASSES_READY, part))
            .into_iter()
            .collect();
        let written = self.condition_writer.write(tenant, &updates).await;
        written.map_err(|error| WriteError::Status(tenant.name_any(), error))
    }
}

fn has_condition(tenant: &TenantCluster) -> bool {
    let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|one| one.type_ == STORAGE_CLASSES_READY)
}

fn connected_client(state: &SharedState) -> Option<UntrustedClient> {
    let state = state.lock();
    let access = state.access.as_ref()?.as_ref().ok()?;
    Some(access.client.clone())
}

fn set_needs_watch(state: &SharedState, needs_watch: bool) {
    state.lock().classes.needs_watch.send_if_modified(|current| {
        let is_changed = *current != needs_watch;
        *current = needs_watch;
        is_changed
    });
}

/// Starts or ends the watch of the StorageClasses in the tenant's cluster. Returns the plan, and the number of
/// StorageClasses that the store omits; `None` if the StorageClasses are not needed, or not listed yet.
fn plan(
    state: &SharedState,
    desired: &DesiredClasses,
    needs_watch: bool,
) -> Option<Result<(ClassPlan, usize), Fault>> {
    set_needs_watch(state, needs_watch);
    if !needs_watch {
        return None;
    }
    let state = state.lock();
    let classes = &state.classes;
    let listed = classes.listed.clone()?;
    let store = &classes.store;
    Some(listed.map(|()| (plan_classes(desired, store.classes()), store.omitted())))
}

/// Sends the writes of a plan, and stops at the first failure.
async fn write(
    state: &SharedState,
    client: &UntrustedClient,
    plan: &ClassPlan,
) -> Result<(), WriteError> {
    for change in &plan.changes {
        let class = apply_class(client, change).await?;
        // The store is updated without waiting for the watch event, because a reconcile before this event would send
        // the write again.
        let applied = CollectionEvent::Applied(class);
        state.lock().classes.store.handle(applied, CONTROLLER_FIELD_MANAGER);
    }
    Ok(())
}

fn unlisted_classes_fault() -> Fault {
    let message = "StorageClasses of the infra cluster have not been listed yet; if this persists, the controller \
                   lacks an RBAC permission for them (list, watch; deploy/base/rbac-controller.yaml)";
    Fault::new(ConditionReason::ClusterFactsUnknown, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_planned_only_after_they_are_listed() {
        let (state, desired) = (SharedState::default(), DesiredClasses::default());
        assert!(plan(&state, &desired, true).is_none());
        assert!(*state.lock().classes.needs_watch.borrow());
        state.lock().classes.listed = Some(Ok(()));
        assert_eq!(plan(&state, &desired, true), Some(Ok((ClassPlan::default(), 0))));
        state.lock().classes.listed = Some(Err(unlisted_classes_fault()));
        assert_eq!(plan(&state, &desired, true), Some(Err(unlisted_classes_fault())));
        assert!(plan(&state, &desired, false).is_none());
        assert!(!*state.lock().classes.needs_watch.borrow());
    }
}
