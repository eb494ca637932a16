//! Writes conditions of TenantClusters that depend on tenants' API servers. The writes are rate-limited for each
//! tenant, because a tenant can cause any number of changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_api::{Condition, TenantCluster};
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::token_bucket::TokenBucket;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::clock::now_in_seconds;
use super::context::Context;
use crate::managed_fields::{conditions_are_atomic, with_existing_conditions};
use crate::profiles::{ConditionUpdate, new_condition};
use crate::tenants::status::PartResult;

/// Rate limit of the writes of one tenant's status: the number of writes that are permitted at once, and the interval
/// at which one more write is permitted.
const RATE_LIMIT: (u32, Duration) = (20, Duration::from_secs(5));

/// Returns the update of the condition `type_` for the state of a part of a tenant.
pub(super) fn part_condition_update(type_: &'static str, part: &PartResult) -> ConditionUpdate {
    let (status, reason, message) = match part {
        Ok(ready) => ("True", ready.reason, &ready.message),
        Err(fault) => ("False", fault.reason, &fault.message),
    };
    ConditionUpdate { type_, status, reason, message: message.clone() }
}

/// Writes the conditions of one reconciler.
pub(super) struct ConditionWriter {
    context: Arc<Context>,
    /// Field manager that owns the conditions.
    manager: &'static str,
    /// Types of the conditions that the reconciler writes.
    types: &'static [&'static str],
    /// Rate limits, by tenant.
    limits: Mutex<BTreeMap<String, TokenBucket>>,
}

impl ConditionWriter {
    pub(super) fn new(
        context: Arc<Context>,
        manager: &'static str,
        types: &'static [&'static str],
    ) -> Self {
        Self { context, manager, types, limits: Mutex::default() }
    }

    /// Removes the rate limit and the metrics of a tenant that is deleted.
    pub(super) fn forget(&self, tenant: &str) {
        self.lock_limits().remove(tenant);
        self.context.metrics.tenant_conditions.set(tenant, self.manager, std::iter::empty());
    }

    /// Writes the conditions if they have changed, and removes conditions of the types in `types` that are not in
    /// `updates`. Emits an Event for each new fault. If the rate limit does not permit the write, returns the time
    /// until it does.
    pub(super) async fn write(
        &self,
        tenant: &TenantCluster,
        updates: &[ConditionUpdate],
    ) -> Result<Option<Duration>, CallError> {
        let name = tenant.name_any();
        // The tenant may have been deleted while the reconcile waited for the tenant's API server.
        if self.is_deleted(tenant) {
            self.forget(&name);
            return Ok(None);
        }
        let reasons = updates.iter().map(|update| (update.type_, update.reason));
        self.context.metrics.tenant_conditions.set(&name, self.manager, reasons);
        let before = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        let before = before.unwrap_or_default();
        let now = now_in_seconds();
        let generation = tenant.metadata.generation;
        let conditions: Vec<Condition> =
            updates.iter().map(|update| new_condition(update, before, generation, &now)).collect();
        let written: Vec<&Condition> = before.iter().filter(|one| self.is_own(one)).collect();
        if written.len() == conditions.len() && written.iter().all(|one| conditions.contains(one)) {
            return Ok(None);
        }
        if let Err(delay) = self.take_token(&name) {
            return Ok(Some(delay));
        }
        let api: Api<TenantCluster> = Api::all(self.context.client.clone());
        let params = PatchParams::apply(self.manager).force();
        let patch = Patch::Apply(conditions_body(tenant, self.types, &conditions));
        match with_timeout(api.patch_status(&name, &params, &patch)).await {
            Ok(_) => {}
            // The tenant was deleted meanwhile.
            Err(error) if error.status_code() == Some(404) => return Ok(None),
            Err(error) => return Err(error),
        }
        for update in updates.iter().filter(|update| update.status == "False") {
            let is_known = |one: &&Condition| {
                one.type_ == update.type_
                    && one.status == update.status
                    && one.message == update.message
            };
            if !before.iter().any(|one| is_known(&one)) {
                self.context.events.warn(tenant, update.reason.as_str(), &update.message).await;
            }
        }
        Ok(None)
    }

    fn is_deleted(&self, tenant: &TenantCluster) -> bool {
        let current = self.context.tenants.get(&tenant.name_any());
        current.is_none_or(|current| {
            current.uid() != tenant.uid() || current.metadata.deletion_timestamp.is_some()
        })
    }

    fn is_own(&self, condition: &Condition) -> bool {
        self.types.contains(&condition.type_.as_str())
    }

    fn lock_limits(&self) -> MutexGuard<'_, BTreeMap<String, TokenBucket>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_token(&self, tenant: &str) -> Result<(), Duration> {
        let (capacity, interval) = RATE_LIMIT;
        let mut limits = self.lock_limits();
        let limit = limits.entry(tenant.to_owned());
        limit.or_insert_with(|| TokenBucket::new(capacity, interval)).take_token(Instant::now())
    }
}

/// Returns the body of a request that applies `conditions` to the status of a tenant. `owned` contains the types of all
/// conditions that the caller may write.
pub(super) fn conditions_body(
    tenant: &TenantCluster,
    owned: &[&str],
    conditions: &[Condition],
) -> Value {
    let mut body = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": tenant.name_any(), "uid": tenant.uid()},
        "status": {"conditions": conditions},
    });
    if conditions_are_atomic(tenant.metadata.managed_fields.as_deref().unwrap_or_default()) {
        let existing = tenant.status.iter().flat_map(|status| &status.conditions);
        body["status"]["conditions"] =
            json!(with_existing_conditions(existing, owned, conditions.to_vec()));
        // In this API server, the list of conditions is atomic, so the request also contains the conditions of other
        // reconcilers. The resource version makes the API server refuse the request if these conditions have changed
        // meanwhile.
        body["metadata"]["resourceVersion"] = tenant.resource_version().into();
    }
    body
}
