//! Garbage collection of AddressClaims: puts claims without a machine into quarantine, and deletes them after their
//! quarantine. [`crate::tenants::addresses::release`] computes the actions.

use std::time::Duration;

use berth_api::{AddressClaim, ClaimingMachine, TenantCluster};
use futures::{StreamExt as _, stream};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject, Patch};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::resources::instance_resource;
use crate::api_resource::machine_resource;
use crate::observation::Clocks;
use crate::run::api_requests::patch_params;
use crate::run::clock::ProcessClock;
use crate::run::context::INFRA_CONFIG;
use crate::tenants::addresses::release::{
    ClaimAction, ClaimOwner, next_action, quarantine_duration,
};
use crate::tenants::quarantine::QuarantineObserver;

/// Time for which changes are collected before garbage collection runs.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Maximum time between two runs of garbage collection.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Number of claims whose actions are taken at the same time.
const CONCURRENCY: usize = 8;

/// An action that is due on a claim, and the state from which it was computed.
#[derive(Clone, Copy)]
struct DueAction<'a> {
    claim: &'a AddressClaim,
    action: ClaimAction,
    owner: ClaimOwner,
    quarantine_end: Option<Timestamp>,
}

/// Garbage-collects AddressClaims until the future is dropped. The caller waits until all stores have their first list.
pub(super) async fn run(context: &MachineContext) {
    let mut changes = context.addresses.informer().subscribe();
    let clock = ProcessClock::start();
    let mut observer = QuarantineObserver::new(clock.now());
    loop {
        let next = context.collect_claims(&mut observer, clock.now()).await;
        let due = next.and_then(|next| Duration::try_from(next - Timestamp::now()).ok());
        let delay = due.map_or(MAX_INTERVAL, |due| due.clamp(DEBOUNCE, MAX_INTERVAL));
        tokio::select! {
            () = context.triggers.deleted_machines.changed() => tokio::time::sleep(DEBOUNCE).await,
            Some(_) = changes.recv() => {
                tokio::time::sleep(DEBOUNCE).await;
                while changes.try_recv().is_ok() {}
            }
            () = tokio::time::sleep(delay) => {}
        }
    }
}

impl MachineContext {
    /// Executes all actions that are due. Returns the time at which the next action is due.
    async fn collect_claims(
        &self,
        observer: &mut QuarantineObserver,
        clocks: Clocks,
    ) -> Option<Timestamp> {
        // Without these kinds it is unknown which machines exist: an administrator may be reinstalling KubeVirt, or
        // restoring a backup.
        if self.machines.is_not_installed() || self.instances.is_not_installed() {
            return None;
        }
        let limit = self.address_quarantine();
        let deleted = self.triggers.deleted_machines.all();
        let (all, now) = (self.addresses.informer().all(), clocks.wall);
        let released = all.iter().filter_map(|claim| {
            let released_at = claim.status.as_ref()?.released_at.as_ref()?.0;
            Some((claim.metadata.name.as_deref()?, released_at))
        });
        observer.observe(released, clocks);
        let (mut due_actions, mut next) = (Vec::new(), None::<Timestamp>);
        for claim in all.iter().map(AsRef::as_ref) {
            let ClaimingMachine { namespace, name } = &claim.spec.machine;
            let stores = [&self.machines, &self.instances];
            let tenant = self.tenants.get(&claim.spec.tenant);
            let owner = ClaimOwner {
                tenant_has_other_uid: has_other_uid(claim, tenant.and_then(|one| one.uid())),
                machine_exists: stores.iter().any(|store| store.get(namespace, name).is_some()),
                machine_was_deleted: deleted.contains(&(namespace.clone(), name.clone())),
            };
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let quarantine_end = observer.quarantine_end(name, limit);
            match next_action(claim, owner, quarantine_end) {
                Some((action, due)) if due <= now => {
                    due_actions.push(DueAction { claim, action, owner, quarantine_end });
                }
                Some((_, due)) => next = Some(next.map_or(due, |next| next.min(due))),
                None => {}
            }
        }
        let apply = async |due: DueAction<'_>| {
            if let Err(error) = self.apply_claim_action(due).await {
                let claim = due.claim.name_any();
                tracing::warn!(%claim, %error, "failed to garbage-collect an AddressClaim");
            }
        };
        stream::iter(due_actions).for_each_concurrent(CONCURRENCY, apply).await;
        // Deleted machines without a claim need not be remembered.
        let machines = all.iter().map(|claim| &claim.spec.machine);
        let claiming = machines.map(|one| (one.namespace.clone(), one.name.clone())).collect();
        self.triggers.deleted_machines.forget(&deleted, &claiming);
        next
    }

    fn address_quarantine(&self) -> SignedDuration {
        let config = self.configs.get(INFRA_CONFIG);
        quarantine_duration(&config.map(|config| config.spec.clone()).unwrap_or_default())
    }

    /// Executes an action on a claim if the action is still due according to the API server. The stores may be stale,
    /// and they lack a VirtualMachine whose label `md` was removed.
    async fn apply_claim_action(&self, due_action: DueAction<'_>) -> Result<(), RequestError> {
        let DueAction { claim, action, owner: stored, quarantine_end } = due_action;
        let tenant_name = &claim.spec.tenant;
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::erase::<TenantCluster>(&()));
        let tenant = none_if_object_not_found(api.get_metadata(tenant_name).await, tenant_name);
        let tenant = with_request(|| format!("get TenantCluster {tenant_name}"), tenant)?;
        let tenant_uid = tenant.and_then(|tenant| tenant.uid());
        let owner = ClaimOwner {
            tenant_has_other_uid: has_other_uid(claim, tenant_uid.clone()),
            machine_exists: self.machine_exists(&claim.spec.machine).await?,
            ..stored
        };
        let current = next_action(claim, owner, quarantine_end);
        if current.is_none_or(|(current, due)| current != action || due > Timestamp::now()) {
            return Ok(());
        }
        let name = claim.name_any();
        match action {
            ClaimAction::Delete => {
                tracing::info!(claim = %name, "deleting an AddressClaim");
                self.delete_claim(claim).await
            }
            ClaimAction::Reclaim => self.set_released_at(claim, &Value::Null).await,
            ClaimAction::Adopt => {
                tracing::info!(claim = %name, tenant_uid, "adopting an AddressClaim of a restored tenant");
                self.set_tenant_uid(claim, &json!(tenant_uid)).await
            }
            ClaimAction::Release => {
                let machine = &claim.spec.machine.name;
                tracing::info!(claim = %name, %machine, "starting the quarantine of an AddressClaim");
                self.set_released_at(claim, &json!(berth_api::Time(Timestamp::now()))).await
            }
        }
    }

    /// Writes the time at which a claim was released, which starts its quarantine. Null ends the quarantine.
    pub(super) async fn set_released_at(
        &self,
        claim: &AddressClaim,
        released_at: &Value,
    ) -> Result<(), RequestError> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": claim.resource_version()},
            "status": {"releasedAt": released_at},
        }));
        let (name, params) = (claim.name_any(), patch_params());
        let patched = self.claims_api().patch_status(&name, &params, &patch).await;
        let patched = none_if_not_found(patched);
        let request = || format!("patch status of AddressClaim {name}");
        if let Some(patched) = with_request(request, patched)? {
            self.addresses.record(patched);
        }
        Ok(())
    }

    /// Writes the UID of the tenant to a claim.
    async fn set_tenant_uid(&self, claim: &AddressClaim, uid: &Value) -> Result<(), RequestError> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": claim.resource_version()},
            "spec": {"tenantUID": uid},
        }));
        let name = claim.name_any();
        let patched = self.claims_api().patch(&name, &patch_params(), &patch).await;
        let patched = none_if_not_found(patched);
        if let Some(patched) = with_request(|| format!("patch AddressClaim {name}"), patched)? {
            self.addresses.record(patched);
        }
        Ok(())
    }

    /// Returns true if the API server has the VirtualMachine or its instance. The guest uses its address until the
    /// instance has been deleted.
    async fn machine_exists(&self, machine: &ClaimingMachine) -> Result<bool, RequestError> {
        let ClaimingMachine { namespace, name } = machine;
        for resource in [machine_resource(), instance_resource()] {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace, &resource);
            let found = none_if_object_not_found(api.get_metadata(name).await, name);
            let request = || format!("get {} {namespace}/{name}", resource.kind);
            if with_request(request, found)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns true if the TenantCluster of a claim exists, and its UID differs from the UID in the claim.
fn has_other_uid(claim: &AddressClaim, uid: Option<String>) -> bool {
    uid.is_some_and(|uid| uid != claim.spec.tenant_uid)
}

/// Returns `None` if the API server serves the kind and does not have the object. If it does not serve the kind, it
/// also answers 404, but its answer names no object. This answer stays an error, because the object may exist.
fn none_if_object_not_found<T>(result: kube::Result<T>, name: &str) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status))
            if status.details.as_ref().is_none_or(|details| details.name != name) =>
        {
            Err(kube::Error::Api(status))
        }
        result => none_if_not_found(result),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_object_is_absent_only_if_its_kind_is_served() {
        let find = |status: Value| {
            let status: Status = serde_json::from_value(status).unwrap();
            none_if_object_not_found::<()>(Err(kube::Error::Api(status.into())), "web-1")
        };
        let details = json!({"name": "web-1", "group": "kubevirt.io", "kind": "virtualmachines"});
        assert!(matches!(find(json!({"code": 404, "details": details})), Ok(None)));
        for status in [
            json!({"code": 404, "message": "404 page not found"}),
            json!({"code": 404, "reason": "NotFound", "details": {}}),
            json!({"code": 403, "details": details}),
        ] {
            assert!(find(status.clone()).is_err(), "{status}");
        }
        assert!(matches!(none_if_object_not_found(Ok(1), "web-1"), Ok(Some(1))));
    }
}
