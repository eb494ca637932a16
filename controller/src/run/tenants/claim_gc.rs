//! Garbage collection of VlanClaims: puts claims without a tenant into quarantine, and deletes them after their
//! quarantine. [`crate::tenants::claim_gc`] computes the actions. The same loop garbage-collects PrefixClaims.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{TenantCluster, VlanClaim};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Preconditions};
use serde_json::{Value, json};

use super::context::TenantContext;
use super::error::{Error, none_if_not_found, with_request};
use crate::run::clock::ProcessClock;
use crate::tenants::claim_gc::{ClaimAction, LiveTenant, due_actions, next_action};
use crate::tenants::claims::quarantine_duration;
use crate::tenants::network_id::NetworkId;
use crate::tenants::quarantine::QuarantineObserver;

/// Time after a change for which further changes are collected before the garbage collection runs.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Maximum time between two runs of the garbage collection.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Garbage-collects VlanClaims and PrefixClaims until this future is dropped.
pub(super) async fn run(context: &TenantContext) {
    context.wait_until_ready().await;
    let clock = ProcessClock::start();
    let mut vlan_observer = QuarantineObserver::new(clock.now());
    let mut prefix_observer = QuarantineObserver::new(clock.now());
    loop {
        let claims = context.stores.shared_informers.vlan_claims.all();
        let tenants = context.stores.shared_informers.tenants.all();
        let live_tenants: BTreeMap<String, LiveTenant> = tenants
            .iter()
            .filter_map(|tenant| Some((tenant.uid()?, to_live_tenant(tenant))))
            .collect();
        let (now, limit) = (clock.now(), quarantine_duration(&context.config()));
        let released = claims.iter().filter_map(|claim| {
            let released_at = claim.status.as_ref()?.released_at.as_ref()?.0;
            Some((claim.metadata.name.as_deref()?, released_at))
        });
        vlan_observer.observe(released, now);
        let quarantine_end_of = |claim: &VlanClaim| {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            vlan_observer.quarantine_end(name, limit)
        };
        let (claim_actions, next) =
            due_actions(&claims, &live_tenants, quarantine_end_of, now.wall);
        for (claim, action) in claim_actions {
            match context.apply_claim_action(claim, action, quarantine_end_of(claim)).await {
                // After a conflict with another client, the watch delivers the new version, which triggers the next
                // run.
                Ok(()) | Err(Error::ChangedConcurrently(_)) => {}
                Err(error) => tracing::warn!(%error, "failed to garbage-collect a VlanClaim"),
            }
        }
        let next_prefix = context.collect_prefix_claims(&mut prefix_observer, clock.now()).await;
        let next = next.into_iter().chain(next_prefix).min();
        let due = next.and_then(|next| Duration::try_from(next - Timestamp::now()).ok());
        let delay = due.map_or(MAX_INTERVAL, |due| due.clamp(DEBOUNCE, MAX_INTERVAL));
        tokio::select! {
            () = context.stores.triggers.claims_changed.notified() => tokio::time::sleep(DEBOUNCE).await,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

fn to_live_tenant(tenant: &TenantCluster) -> LiveTenant {
    let network = tenant.spec.network.as_ref().map(|network| network.name.clone());
    let id = tenant.status.as_ref().and_then(NetworkId::from_status);
    LiveTenant { assigned_id: network.zip(id) }
}

impl TenantContext {
    /// Executes an action on a claim if the API server confirms that it is still due. The store may be stale: it may
    /// still record the VLAN in the status of a tenant that was just deleted, or that cannot be parsed.
    async fn apply_claim_action(
        &self,
        claim: &VlanClaim,
        action: ClaimAction,
        quarantine_end: Option<Timestamp>,
    ) -> Result<(), Error> {
        let fresh = self.get_tenant(&claim.spec.tenant).await?;
        let fresh = fresh.filter(|one| one.uid().as_ref() == Some(&claim.spec.tenant_uid));
        let current =
            next_action(claim, fresh.as_ref().map(to_live_tenant).as_ref(), quarantine_end);
        if current.is_none_or(|(current, _)| current != action) {
            return Ok(());
        }
        let name = claim.name_any();
        match action {
            ClaimAction::Reclaim => self.set_released_at(claim, Value::Null).await,
            ClaimAction::Release => {
                tracing::info!(
                    claim = %name, tenant = %claim.spec.tenant,
                    "starting the quarantine of a VlanClaim"
                );
                self.set_released_at(claim, json!(Timestamp::now())).await
            }
            ClaimAction::Delete => {
                let preconditions =
                    Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
                let params =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                tracing::info!(claim = %name, "deleting a VlanClaim after its quarantine");
                with_request(
                    format!("delete VlanClaim {name}"),
                    none_if_not_found(self.claims_api().delete(&name, &params).await),
                )
                .map(drop)
            }
        }
    }
}
