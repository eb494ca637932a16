//! Writes the condition of a tenant with machines on lost hosts.

use berth_api::names::HOST_LOSS_FIELD_MANAGER;
use berth_api::names::condition::HOST_LOST;
use berth_api::{Condition, TenantCluster};
use berth_runtime::call::with_timeout;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};

use super::state::LossState;
use crate::host_loss::report::tenant_condition;
use crate::profiles::new_condition;
use crate::run::clock::now_in_seconds;
use crate::run::context::Context;
use crate::run::reconcile::ReconcileFailure;
use crate::run::tenant_conditions::conditions_body;

/// Writes the condition of a tenant if it differs. Emits an Event about a new condition.
pub(super) async fn reconcile_tenant(
    tenant: &TenantCluster,
    context: &Context,
    state: &LossState,
) -> Result<(), ReconcileFailure> {
    let name = tenant.name_any();
    let (update, are_down_hosts_decided) = {
        let facts = state.lock();
        let namespace = TenantCluster::namespace_of(&name);
        (tenant_condition(&namespace, &facts.lost), facts.are_down_hosts_decided())
    };
    let before = tenant.status.as_ref().map(|status| status.conditions.as_slice());
    let before = before.unwrap_or_default();
    let existing = before.iter().find(|one| one.type_ == HOST_LOST);
    // A new leader has no verdicts yet. The condition of the previous leader stays until all hosts that are down have
    // verdicts.
    let is_kept = update.is_none() && (existing.is_none() || !are_down_hosts_decided);
    if tenant.metadata.deletion_timestamp.is_some() || is_kept {
        return Ok(());
    }
    let generation = tenant.metadata.generation;
    let now = now_in_seconds();
    let conditions: Vec<Condition> =
        update.iter().map(|update| new_condition(update, before, generation, &now)).collect();
    if conditions.first() == existing {
        return Ok(());
    }
    let params = PatchParams::apply(HOST_LOSS_FIELD_MANAGER).force();
    let patch = Patch::Apply(conditions_body(tenant, &[HOST_LOST], &conditions));
    let api: Api<TenantCluster> = Api::all(context.client.clone());
    match with_timeout(api.patch_status(&name, &params, &patch)).await {
        Ok(_) => {}
        // The tenant was deleted.
        Err(error) if error.status_code() == Some(404) => return Ok(()),
        Err(error) => {
            let request = format!("apply condition {HOST_LOST} of TenantCluster {name}");
            return Err(ReconcileFailure::RequestFailed(request, error));
        }
    }
    if let Some(update) = &update {
        context.events.warn(tenant, update.reason.as_str(), &update.message).await;
    }
    Ok(())
}
