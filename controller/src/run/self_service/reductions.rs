//! Reduced grants: the quota counts the earlier amounts until the machines and volumes of the tenant fit the reduced grant.
//!
//! [`crate::self_service::usage`] compares. Two comparisons with more than the time limit of a call between them must find that
//! everything fits: at the first one, a machine of the earlier grant may be about to be created.

use std::collections::BTreeSet;
use std::time::Instant;

use berth_api::{TenantCluster, TenantGrant};
use berth_runtime::call::with_timeout;

use super::objects::resource_quotas;
use super::service::SelfService;
use crate::api_resource::machine_resource;
use crate::list::list_objects;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::objects::{RESOURCE_QUOTA, request_uid};
use crate::self_service::usage::{fits_flavors, fits_limits};

/// Maximum number of pages of the list of a tenant's machines: enough for the largest request.
const MAX_PAGES: usize = 200;

impl SelfService {
    /// Returns the UIDs of the requests whose machines and volumes fit their reduced grants. A tenant that cannot be read fits
    /// later.
    pub(super) async fn settled_grants(&self, grants: &[TenantGrant]) -> BTreeSet<String> {
        let mut settled = BTreeSet::new();
        for grant in grants.iter().filter(|grant| grant.reduced_amounts.is_some()) {
            let fits = match self.fits_reduced_grant(grant).await {
                Ok(fits) => fits,
                Err(error) => {
                    tracing::debug!(tenant = %grant.tenant, %error, "failed to read the usage of a tenant");
                    false
                }
            };
            if self.reductions.record(grant, fits, Instant::now()) {
                settled.insert(grant.uid.clone());
            }
        }
        settled
    }

    async fn fits_reduced_grant(&self, grant: &TenantGrant) -> Result<bool, ReconcileFailure> {
        // The reconciler of machines reads the instance types from the same store.
        let Some(tenant) = self.context.tenants.get(&grant.tenant) else { return Ok(false) };
        let has_flavors =
            tenant.spec.allowed_flavors.as_ref() == Some(&grant.resources.machines.flavors);
        if request_uid(&tenant) != Some(grant.uid.as_str()) || !has_flavors {
            return Ok(false);
        }
        let namespace = TenantCluster::namespace_of(&grant.tenant);
        let api = self.api(&resource_quotas(), &namespace);
        let found = with_timeout(api.get_opt(RESOURCE_QUOTA)).await;
        let request = format!("get ResourceQuota {namespace}/{RESOURCE_QUOTA}");
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        let is_limited = found.is_some_and(|quota| {
            fits_limits(grant, &serde_json::to_value(&quota).unwrap_or_default())
        });
        if !is_limited {
            return Ok(false);
        }
        let mut names = Vec::new();
        let visit = |machine: serde_json::Value| {
            let name = machine.pointer("/spec/instancetype/name").and_then(|name| name.as_str());
            names.push(name.map(str::to_owned));
        };
        let client = &self.context.client;
        let listed =
            list_objects(client, &machine_resource(), &namespace, None, MAX_PAGES, visit).await;
        let request = format!("list VirtualMachines in {namespace}");
        let is_complete = listed.map_err(ReconcileFailure::with_request(request))?;
        Ok(is_complete && fits_flavors(grant, &names))
    }
}
