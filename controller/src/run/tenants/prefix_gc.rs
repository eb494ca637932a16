//! Garbage collection of PrefixClaims: puts claims that no tenant needs into quarantine, and deletes them after their
//! quarantine. [`crate::tenants::prefixes::release`] computes the actions.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{PrefixClaim, TenantCluster};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::context::TenantContext;
use super::error::Error;
use crate::observation::Clocks;
use crate::tenants::addresses::release::is_released;
use crate::tenants::claim_gc::ClaimAction;
use crate::tenants::claims::quarantine_duration;
use crate::tenants::prefixes::release::next_action;
use crate::tenants::quarantine::QuarantineObserver;

impl TenantContext {
    /// Executes all actions that are due. Returns the time at which the next action is due.
    pub(super) async fn collect_prefix_claims(
        &self,
        observer: &mut QuarantineObserver,
        clocks: Clocks,
    ) -> Option<Timestamp> {
        let tenants = self.stores.shared_informers.tenants.all();
        let tenants: BTreeMap<String, Arc<TenantCluster>> =
            tenants.into_iter().filter_map(|tenant| Some((tenant.uid()?, tenant))).collect();
        let (limit, now) = (quarantine_duration(&self.config()), clocks.wall);
        let mut next: Option<Timestamp> = None;
        let all = self.stores.shared_informers.prefix_claims.all();
        let released = all.iter().filter_map(|claim| {
            let released_at = claim.status.as_ref()?.released_at.as_ref()?.0;
            Some((claim.metadata.name.as_deref()?, released_at))
        });
        observer.observe(released, clocks);
        for claim in &all {
            let tenant = tenants.get(&claim.spec.tenant_uid).map(Arc::as_ref);
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let quarantine_end = observer.quarantine_end(name, limit);
            match next_action(claim, tenant, self.has_addresses_in(claim), quarantine_end) {
                Some((action, due)) if due <= now => {
                    match self.apply_prefix_action(claim, action, quarantine_end).await {
                        // After a conflict with another client, the watch delivers the new version, which triggers the
                        // next run.
                        Ok(()) | Err(Error::ChangedConcurrently(_)) => {}
                        Err(error) => {
                            let claim = claim.name_any();
                            tracing::warn!(%claim, %error, "failed to garbage-collect a PrefixClaim");
                        }
                    }
                }
                Some((_, due)) => next = Some(next.map_or(due, |next| next.min(due))),
                None => {}
            }
        }
        next
    }

    /// Returns true if machines of the claim's tenant have addresses in the prefix of the claim.
    fn has_addresses_in(&self, claim: &PrefixClaim) -> bool {
        let network = TenantCluster::namespace_of(&claim.spec.tenant);
        self.stores.shared_informers.addresses.read(&network, |addresses| {
            addresses
                .iter()
                .any(|one| claim.spec.prefix.contains(&one.spec.address) && !is_released(one))
        })
    }

    /// Executes an action on a claim if the API server confirms that the action is still due, because the store may be
    /// stale.
    async fn apply_prefix_action(
        &self,
        claim: &PrefixClaim,
        action: ClaimAction,
        quarantine_end: Option<Timestamp>,
    ) -> Result<(), Error> {
        let fresh = self.get_tenant(&claim.spec.tenant).await?;
        let fresh = fresh.filter(|one| one.uid().as_ref() == Some(&claim.spec.tenant_uid));
        let has_addresses = self.has_addresses_in(claim);
        let current = next_action(claim, fresh.as_ref(), has_addresses, quarantine_end);
        if current.is_none_or(|(current, _)| current != action) {
            return Ok(());
        }
        let name = claim.name_any();
        match action {
            ClaimAction::Reclaim => {
                self.set_prefix_released_at(claim, &Value::Null).await.map(drop)
            }
            ClaimAction::Release => {
                tracing::info!(
                    claim = %name, tenant = %claim.spec.tenant,
                    "starting the quarantine of a PrefixClaim"
                );
                self.set_prefix_released_at(claim, &json!(Timestamp::now())).await.map(drop)
            }
            ClaimAction::Delete => {
                tracing::info!(claim = %name, "deleting a PrefixClaim after its quarantine");
                self.delete_prefix_claim(claim).await
            }
        }
    }
}
