//! Claims a VLAN or VNI for a tenant: [`crate::tenants::claims`] chooses the number. If several tenants choose the same
//! number, the tenant whose VlanClaim is created first gets the number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::{InfraConfigSpec, TenantCluster, VlanClaim, VlanClaimSpec};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, Preconditions};
use serde_json::{Value, json};

use super::context::TenantContext;
use super::error::{Error, none_if_not_found, with_request};
use crate::managed_by::{is_created_by_berth, tenant_labels};
use crate::run::api_requests::{patch_params, post_params};
use crate::tenants::claims::{self, IdChoice, IdRequest, choose_id};
use crate::tenants::fault::Fault;
use crate::tenants::foreign_ids::{AttachmentFields, ids_in_attachments};
use crate::tenants::network::HostNetwork;
use crate::tenants::network_id::NetworkId;
use crate::tenants::shared_segment;
use berth_kubevirt_render::launcher::RESOURCE_NAME;
use berth_runtime::watch::OptionalInformer;

/// Maximum number of VLANs or VNIs that are tried in one reconcile. If the store lacks even more claims of other
/// tenants, the next reconcile continues with an updated store.
const MAX_ATTEMPTS: usize = 32;
/// Annotation of a verified VlanClaim: after the creation of the claim, the controller has read the claims on the
/// networks that share a segment, and found no conflicting claim.
pub(super) const VERIFIED_ANNOTATION: &str = "berth.dev/verified";
/// Number of times that a tenant reads a conflicting claim of another tenant before it deletes its own claim. Of two
/// tenants in conflict, only the tenant whose claim has the earlier name reads more than once.
const MAX_CONFLICT_READS: usize = 4;
/// Delay between two reads of a conflicting claim.
const CONFLICT_READ_DELAY: Duration = Duration::from_millis(200);

/// VLAN or VNI that a tenant has claimed, and a note for the message of its condition.
#[derive(Debug)]
pub(super) struct ClaimedId {
    pub(super) id: NetworkId,
    pub(super) note: Option<String>,
}

impl TenantContext {
    /// Claims a VLAN or VNI for a tenant. Returns a fault if no number can be claimed.
    pub(super) async fn claim_network_id(
        &self,
        tenant: &TenantCluster,
        network: &HostNetwork,
    ) -> Result<Result<ClaimedId, Fault>, Error> {
        let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
        let requested = tenant.spec.network.as_ref();
        let request = IdRequest {
            tenant: &name,
            uid: &uid,
            network: &network.name,
            uses_vnis: network.uses_vnis(),
            requested_id: requested.and_then(NetworkId::from_spec),
            recorded_id: tenant.status.as_ref().and_then(NetworkId::from_status),
        };
        let (mut all, config) = (self.stores.shared_informers.vlan_claims.all(), self.config());
        let foreign = if claims::claimed_id(request, &all).is_some() {
            BTreeMap::new()
        } else {
            self.ids_of_foreign_attachments(tenant, network)
        };
        let mut refused = BTreeSet::new();
        for _ in 0..MAX_ATTEMPTS {
            let claim_state = claims::ClaimState {
                config: &config,
                claims: &all,
                refused_names: &refused,
                foreign_ids: &foreign,
            };
            let choice = match choose_id(request, claim_state) {
                Ok(choice) => choice,
                Err(fault) => return Ok(Err(fault)),
            };
            let claimed = |id, note| Ok(Ok(ClaimedId { id, note }));
            let new = match choice {
                // The controller does not search for a conflict, because the number is already in the status, and a
                // tenant retains its number.
                IdChoice::KeepClaim(id) if request.recorded_id == Some(id) => {
                    return claimed(id, None);
                }
                IdChoice::KeepClaim(id) => {
                    let name = id.claim_name(&network.name);
                    let held = all.iter().find(|claim| claim.name_any() == name);
                    held.map(|claim| (id, claim.as_ref().clone()))
                }
                IdChoice::TakeOver(id, claim) => match self.take_over_claim(claim, &uid).await {
                    Ok(()) => {
                        let note =
                            format!("{id} belonged to an earlier TenantCluster of this name");
                        return claimed(id, Some(note));
                    }
                    // Another tenant has taken over the claim meanwhile, or the claim was deleted.
                    Err(Error::ChangedConcurrently(_)) => {
                        refused.insert(claim.name_any());
                        None
                    }
                    Err(error) => return Err(error),
                },
                IdChoice::Create(id) => {
                    let created = self.create_claim(id, request).await?;
                    if created.is_none() {
                        refused.insert(id.claim_name(&network.name));
                    }
                    created.map(|claim| (id, claim))
                }
            };
            let Some((id, claim)) = new else { continue };
            if claim.annotations().contains_key(VERIFIED_ANNOTATION) {
                return claimed(id, lost_claim_note(request, id));
            }
            let others = self.networks_sharing_segment(request, &config, &all);
            let Some(conflicting_claim) = self.conflicting_claim(id, request, &others).await?
            else {
                if !others.is_empty() {
                    self.mark_verified(&claim).await?;
                }
                return claimed(id, lost_claim_note(request, id));
            };
            tracing::info!(tenant = %name, claim = %claim.name_any(), conflicting_claim = %conflicting_claim, "deleting VlanClaim because another tenant has the same VLAN or VNI");
            self.delete_unverified_claim(&claim).await?;
            all.retain(|one| one.name_any() != claim.name_any());
            refused.insert(claim.name_any());
        }
        Err(Error::ChangedConcurrently(format!("a claim of network {}", network.name)))
    }

    pub(super) fn claims_api(&self) -> Api<VlanClaim> {
        Api::all(self.client.clone())
    }

    /// Returns the names of the other networks that may share a segment with the network of the request.
    fn networks_sharing_segment(
        &self,
        request: IdRequest<'_>,
        config: &InfraConfigSpec,
        claims: &[Arc<VlanClaim>],
    ) -> BTreeSet<String> {
        let hosts = self.stores.hosts();
        let of_hosts = hosts.iter().flat_map(|host| &host.networks).map(|one| one.name.as_str());
        let of_claims = claims.iter().map(|claim| claim.spec.network.as_str());
        let all = shared_segment::networks_sharing_segment(
            config,
            request.network,
            of_hosts.chain(of_claims),
        );
        all.into_iter().map(str::to_owned).collect()
    }

    /// Returns the name of another tenant's claim to the same VLAN or VNI on one of the networks `others`; `None` if
    /// there is none.
    ///
    /// The name of a claim locks the number on one network only. Therefore, if two tenants on two networks choose the
    /// same number, each tenant first creates its own claim and then reads the claim of the other tenant: in any order
    /// of these requests, at least one tenant observes the claim of the other tenant, and deletes its own claim. If
    /// both tenants observe the claim of the other tenant, the tenant whose claim has the later name deletes its claim
    /// immediately, and the tenant whose claim has the earlier name reads again.
    ///
    /// A claim without a conflicting claim is marked as verified, and only an unverified claim is deleted. Both writes
    /// require the resource version that was read: if two controllers reconcile the same tenant, one controller cannot
    /// delete a claim that the other controller has verified.
    async fn conflicting_claim(
        &self,
        id: NetworkId,
        request: IdRequest<'_>,
        others: &BTreeSet<String>,
    ) -> Result<Option<String>, Error> {
        for other in others {
            let name = id.claim_name(other);
            let reads = if id.claim_name(request.network) < name { MAX_CONFLICT_READS } else { 1 };
            let mut has_conflict = false;
            for read in 0..reads {
                if read > 0 {
                    tokio::time::sleep(CONFLICT_READ_DELAY).await;
                }
                let existing = none_if_not_found(self.claims_api().get(&name).await);
                let existing = with_request(format!("get VlanClaim {name}"), existing)?;
                has_conflict = existing.is_some_and(|claim| {
                    claim.spec.tenant_uid != request.uid
                        && NetworkId::from_claim(&claim) == Some(id)
                });
                if !has_conflict {
                    break;
                }
            }
            if has_conflict {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Marks a claim as verified: no tenant on another network has the same VLAN or VNI.
    async fn mark_verified(&self, claim: &VlanClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let mut verified = claim.clone();
        verified.annotations_mut().insert(VERIFIED_ANNOTATION.to_owned(), "true".to_owned());
        // The write contains the resource version, so it fails if another client has written the claim meanwhile.
        let replaced =
            none_if_not_found(self.claims_api().replace(&name, &post_params(), &verified).await);
        let replaced = with_request(format!("replace VlanClaim {name}"), replaced)?;
        replaced.map(drop).ok_or_else(|| Error::ChangedConcurrently(format!("VlanClaim {name}")))
    }

    /// Deletes a claim that is not verified. No host has configured its VLAN or VNI yet, so no quarantine is needed.
    async fn delete_unverified_claim(&self, claim: &VlanClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let preconditions =
            Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = none_if_not_found(self.claims_api().delete(&name, &params).await);
        with_request(format!("delete VlanClaim {name}"), deleted).map(drop)
    }

    /// Creates a claim for the tenant of the request. Returns `None` if another tenant already has a claim of this
    /// name.
    async fn create_claim(
        &self,
        id: NetworkId,
        request: IdRequest<'_>,
    ) -> Result<Option<VlanClaim>, Error> {
        let mut claim = id.to_claim(request.network, request.tenant, request.uid);
        claim.metadata.labels = Some(tenant_labels(request.tenant));
        let name = claim.name_any();
        let what = format!("VlanClaim {name}");
        let params = post_params();
        match self.claims_api().create(&params, &claim).await {
            Ok(created) => {
                tracing::info!(tenant = %request.tenant, claim = %name, "created VlanClaim");
                Ok(Some(created))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // The claim may already exist for this tenant: created by another controller, or by this controller
                // before a restart.
                let existing = with_request(
                    format!("get {what}"),
                    none_if_not_found(self.claims_api().get(&name).await),
                )?;
                Ok(existing.filter(|existing| {
                    existing.spec.tenant_uid == request.uid
                        && existing.spec.network == request.network
                }))
            }
            Err(error) => with_request(format!("create {what}"), Err(error)),
        }
    }

    /// Transfers a claim in quarantine to a later TenantCluster of the same name, whose UID is `uid`.
    async fn take_over_claim(&self, claim: &VlanClaim, uid: &str) -> Result<(), Error> {
        let name = claim.name_any();
        let mut new = claim.clone();
        new.spec = VlanClaimSpec { tenant_uid: uid.to_owned(), ..new.spec };
        // The claim counts as verified: it has existed all the time, so the tenants on other networks have observed it.
        new.annotations_mut().insert(VERIFIED_ANNOTATION.to_owned(), "true".to_owned());
        let params = post_params();
        // The write contains the resource version, so the API server refuses it if another client has written the claim
        // since it was read.
        let result = self.claims_api().replace(&name, &params, &new).await;
        let new = match result {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(Error::ChangedConcurrently(format!("VlanClaim {name}")));
            }
            result => with_request(format!("replace VlanClaim {name}"), result)?,
        };
        self.set_released_at(&new, Value::Null).await
    }

    /// Sets the time at which a claim was released, which starts its quarantine. Null ends the quarantine.
    pub(super) async fn set_released_at(
        &self,
        claim: &VlanClaim,
        released_at: Value,
    ) -> Result<(), Error> {
        let name = claim.name_any();
        let patch = json!({
            "metadata": {"resourceVersion": claim.resource_version()},
            "status": {"releasedAt": released_at},
        });
        let params = patch_params();
        let result = self.claims_api().patch_status(&name, &params, &Patch::Merge(patch)).await;
        with_request(format!("patch status of VlanClaim {name}"), result).map(drop)
    }

    fn ids_of_foreign_attachments(
        &self,
        tenant: &TenantCluster,
        network: &HostNetwork,
    ) -> BTreeMap<NetworkId, String> {
        let kind = crate::tenants::objects::ObjectKind::NetworkAttachmentDefinition;
        let all = self.stores.store_of_kind(kind).map(OptionalInformer::all).unwrap_or_default();
        // Machines of other tenants use this tenant's network by a definition in their namespaces.
        let own = TenantCluster::additional_definition_name(&tenant.name_any());
        let is_foreign = |object: &&Arc<DynamicObject>| {
            object.name_any() != own || !is_created_by_berth(object.labels())
        };
        let attachments = all.iter().filter(is_foreign).map(|object| AttachmentFields {
            namespace: object.metadata.namespace.as_deref().unwrap_or_default(),
            name: object.metadata.name.as_deref().unwrap_or_default(),
            resource: object.annotations().get(RESOURCE_NAME).map(String::as_str),
            config: object.data["spec"]["config"].as_str().unwrap_or_default(),
        });
        let requested = tenant.spec.network.as_ref();
        let resource = requested.and_then(|asked| asked.sriov_resource.as_deref());
        ids_in_attachments(
            attachments,
            network,
            resource,
            &TenantCluster::namespace_of(&tenant.name_any()),
        )
    }
}

/// Returns the note for a tenant that gets `id` because its earlier VLAN or VNI now belongs to another tenant; `None`
/// if the tenant has no other number in its status.
fn lost_claim_note(request: IdRequest<'_>, id: NetworkId) -> Option<String> {
    let before = request.recorded_id.filter(|before| *before != id)?;
    Some(format!(
        "the tenant's earlier {before} now belongs to another tenant: restart the machines that still use \
         {before}"
    ))
}
