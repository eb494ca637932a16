//! Claims the prefixes of a tenant's network, which [`crate::tenants::prefixes`] chooses. If several tenants choose the
//! same prefix, the tenant whose PrefixClaim is created first gets the prefix.

use std::sync::Arc;

use berth_api::{PrefixClaim, TenantCluster};
use ipnet::IpNet;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, Preconditions};
use kube::core::DeserializeGuard;
use serde_json::{Value, json};

use super::claims::VERIFIED_ANNOTATION;
use super::context::TenantContext;
use super::error::{Error, none_if_not_found, with_request};
use crate::run::api_requests::{patch_params, post_params};
use crate::tenants::addresses::family::Family;
use crate::tenants::addresses::resolved::PoolSource;
use crate::tenants::fault::Fault;
use crate::tenants::prefixes::choose::{
    PrefixChoice, PrefixState, choose_prefix, is_conflict, malformed_claim, new_claim,
};
use crate::tenants::prefixes::grant::TenantPrefixes;
use crate::tenants::prefixes::request::PrefixRequest;

/// Maximum number of prefixes that are tried in one reconcile. If the store lacks even more claims of other tenants,
/// the next reconcile continues with an updated store.
const MAX_ATTEMPTS: usize = 32;

impl TenantContext {
    /// Claims the prefixes of a tenant's network.
    pub(super) async fn ensure_prefixes(
        &self,
        tenant: &TenantCluster,
    ) -> Result<TenantPrefixes, Error> {
        let mut all = TenantPrefixes::default();
        for family in [Family::V4, Family::V6] {
            // A condition of the tenant reports the problems of an invalid spec, see `NetworkPools`.
            let Ok(request) = PrefixRequest::of_tenant(tenant, family) else {
                all.keep_recorded(tenant, family);
                continue;
            };
            let Some(request) = request else { continue };
            match (self.claim_prefix(request).await?, request.source) {
                (Ok(prefix), PoolSource::FromPool(pool)) => {
                    all.add(request, pool, prefix, tenant, &self.config());
                }
                (Ok(_), PoolSource::Cidr(_)) => {}
                (Err(fault), _) => {
                    all.keep_recorded(tenant, family);
                    all.faults.push(fault);
                }
            }
        }
        Ok(all)
    }

    /// Claims one prefix. Returns a fault if no prefix can be claimed.
    async fn claim_prefix(
        &self,
        request: PrefixRequest<'_>,
    ) -> Result<Result<IpNet, Fault>, Error> {
        let config = self.config();
        let tenants = self.stores.shared_informers.tenants.all();
        let mut claims = self.stores.shared_informers.prefix_claims.all();
        for _ in 0..MAX_ATTEMPTS {
            let state = PrefixState { config: &config, claims: &claims, tenants: &tenants };
            let (claim, is_new) = match choose_prefix(request, state) {
                Err(fault) => return Ok(Err(fault)),
                Ok(PrefixChoice::Unclaimed(prefix)) => return Ok(Ok(prefix)),
                Ok(PrefixChoice::KeepClaim(claim)) => (claim.clone(), false),
                Ok(PrefixChoice::TakeOver(claim)) => {
                    (self.take_over_prefix_claim(claim, request).await?, false)
                }
                Ok(PrefixChoice::Create(prefix)) => {
                    let new = new_claim(prefix, request);
                    match self.create_prefix_claim(&new).await? {
                        PrefixCreation::Created(claim) => (claim, true),
                        PrefixCreation::Exists(existing) => {
                            claims.extend(existing.map(Arc::new));
                            continue;
                        }
                    }
                }
            };
            let prefix = claim.spec.prefix;
            let is_verified = claim.annotations().contains_key(VERIFIED_ANNOTATION);
            // A prefix is in the status only if its claim was verified, and a tenant retains its prefix.
            if is_verified || (!is_new && request.recorded == Some(prefix)) {
                return Ok(Ok(prefix));
            }
            let Some(other) = self.find_conflict(&claim, &mut claims).await? else {
                self.mark_prefix_verified(&claim).await?;
                return Ok(Ok(prefix));
            };
            tracing::info!(tenant = %request.tenant, claim = %claim.name_any(), conflicting_claim = %other, "deleting PrefixClaim because the prefix of another tenant overlaps it");
            self.delete_prefix_claim(&claim).await?;
            claims.retain(|one| one.name_any() != claim.name_any());
        }
        Err(Error::ChangedConcurrently(format!("a prefix for {}", request.tenant)))
    }

    fn prefix_claims_api(&self) -> Api<PrefixClaim> {
        Api::all(self.client.clone())
    }

    /// Reads all claims from the API server, and returns the name of a claim that conflicts with the given claim.
    async fn find_conflict(
        &self,
        claim: &PrefixClaim,
        claims: &mut Vec<Arc<PrefixClaim>>,
    ) -> Result<Option<String>, Error> {
        // A malformed claim must not prevent the claims of all tenants. The watch reports malformed claims.
        let api: Api<DeserializeGuard<PrefixClaim>> = Api::all(self.client.clone());
        let list = with_request("list PrefixClaims", api.list(&ListParams::default()).await)?;
        *claims = list.items.into_iter().filter_map(|one| one.0.ok()).map(Arc::new).collect();
        let other = claims.iter().find(|other| is_conflict(claim, other));
        Ok(other.map(|other| other.name_any()))
    }

    /// Creates a claim. If a claim of this name exists, returns the existing claim, or `None` if it was deleted
    /// meanwhile.
    async fn create_prefix_claim(&self, claim: &PrefixClaim) -> Result<PrefixCreation, Error> {
        let name = claim.name_any();
        match self.prefix_claims_api().create(&post_params(), claim).await {
            Ok(created) => {
                tracing::info!(tenant = %claim.spec.tenant, claim = %name, "created PrefixClaim");
                Ok(PrefixCreation::Created(created))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let existing = match none_if_not_found(self.prefix_claims_api().get(&name).await) {
                    Err(kube::Error::SerdeError(_)) => Some(malformed_claim(claim.spec.prefix)),
                    existing => with_request(format!("get PrefixClaim {name}"), existing)?,
                };
                Ok(PrefixCreation::Exists(existing))
            }
            Err(error) => with_request(format!("create PrefixClaim {name}"), Err(error)),
        }
    }

    /// Transfers a claim of an earlier TenantCluster of the same name to the tenant of the request, if this tenant
    /// still exists in the API server. The writes contain the resource version, so they fail if another client has
    /// written the claim.
    async fn take_over_prefix_claim(
        &self,
        claim: &PrefixClaim,
        request: PrefixRequest<'_>,
    ) -> Result<PrefixClaim, Error> {
        let name = claim.name_any();
        let fresh = self.get_tenant(request.tenant).await?;
        if fresh.and_then(|tenant| tenant.uid()).as_deref() != Some(request.uid) {
            return Err(Error::ChangedConcurrently(format!("TenantCluster {}", request.tenant)));
        }
        let mut new = claim.clone();
        request.uid.clone_into(&mut new.spec.tenant_uid);
        let new = self.replace_prefix_claim(&new).await?;
        tracing::info!(tenant = %request.tenant, claim = %name, "took over PrefixClaim of an earlier tenant of this name");
        self.set_prefix_released_at(&new, &Value::Null).await
    }

    /// Marks a claim as verified: no other claim conflicts with it. If a later claim overlaps a verified one, the later
    /// claim is deleted.
    async fn mark_prefix_verified(&self, claim: &PrefixClaim) -> Result<(), Error> {
        let mut verified = claim.clone();
        verified.annotations_mut().insert(VERIFIED_ANNOTATION.to_owned(), "true".to_owned());
        self.replace_prefix_claim(&verified).await.map(drop)
    }

    async fn replace_prefix_claim(&self, claim: &PrefixClaim) -> Result<PrefixClaim, Error> {
        let name = claim.name_any();
        let replaced = self.prefix_claims_api().replace(&name, &post_params(), claim).await;
        let replaced =
            with_request(format!("replace PrefixClaim {name}"), none_if_not_found(replaced))?;
        replaced.ok_or_else(|| Error::ChangedConcurrently(format!("PrefixClaim {name}")))
    }

    /// Sets the time at which a claim was released, which starts its quarantine. Null ends the quarantine.
    pub(super) async fn set_prefix_released_at(
        &self,
        claim: &PrefixClaim,
        released_at: &Value,
    ) -> Result<PrefixClaim, Error> {
        let name = claim.name_any();
        let patch = json!({
            "metadata": {"resourceVersion": claim.resource_version()},
            "status": {"releasedAt": released_at},
        });
        let params = patch_params();
        let api = self.prefix_claims_api();
        let result = api.patch_status(&name, &params, &Patch::Merge(patch)).await;
        with_request(format!("patch status of PrefixClaim {name}"), result)
    }

    /// Deletes a claim. Fails with a conflict if another client has written the claim since it was read.
    pub(super) async fn delete_prefix_claim(&self, claim: &PrefixClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let preconditions =
            Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = none_if_not_found(self.prefix_claims_api().delete(&name, &params).await);
        with_request(format!("delete PrefixClaim {name}"), deleted).map(drop)
    }
}

/// Result of the creation of a claim.
enum PrefixCreation {
    Created(PrefixClaim),
    /// A claim of this name exists; `None` if the claim was deleted after the API server refused the creation.
    Exists(Option<PrefixClaim>),
}
