//! Claims the VLAN or VNI of a tenant: [`crate::tenants::claims`] chooses it, and the creator of its VlanClaim has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::{MANAGED_BY, TENANT};
use berth_api::{InfraConfigSpec, TenantCluster, VlanClaim, VlanClaimSpec};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, Preconditions};
use serde_json::{Value, json};

use super::context::Context;
use super::error::{Error, at, found};
use crate::run::calls::{made_by, patched_by};
use crate::tenants::claims::{self, Choice, Request, choose};
use crate::tenants::fault::Fault;
use crate::tenants::ids::NetworkId;
use crate::tenants::imports::{Attachment, used};
use crate::tenants::network::HostNetwork;
use crate::tenants::shared_wire;
use berth_kubevirt_render::launcher::RESOURCE_NAME;
use berth_runtime::watch::OptionalInformer;

/// Attempts in one reconcile. A store that misses more claims is soon updated.
const MAX_ATTEMPTS: usize = 32;
/// Annotation of a claim that was created before the claims of other networks were read, and has no rival among them.
const VERIFIED: &str = "berth.dev/verified";
/// Number of reads of a rival's claim by the one of two tenants that need not withdraw at once, and the delay between them.
const RIVAL_READS: usize = 4;
const RIVAL_READ_DELAY: Duration = Duration::from_millis(200);

/// VLAN or VNI of a tenant, and a note for its condition.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) id: NetworkId,
    pub(super) note: Option<String>,
}

impl Context {
    /// Claims a VLAN or VNI for the tenant.
    pub(super) async fn claim(
        &self,
        tenant: &TenantCluster,
        network: &HostNetwork,
    ) -> Result<Result<Claimed, Fault>, Error> {
        let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
        let asked = tenant.spec.network.as_ref();
        let request = Request {
            tenant: &name,
            uid: &uid,
            network: &network.name,
            by_vni: network.by_vni(),
            fixed: asked.and_then(NetworkId::requested),
            recorded: tenant.status.as_ref().and_then(NetworkId::from_status),
        };
        let (mut all, config) = (self.stores.followers.claims.all(), self.config());
        let foreign = if claims::held(request, &all).is_some() {
            BTreeMap::new()
        } else {
            self.foreign_ids(tenant, network)
        };
        let mut refused = BTreeSet::new();
        for _ in 0..MAX_ATTEMPTS {
            let known = claims::ClaimState {
                config: &config,
                claims: &all,
                refused: &refused,
                foreign: &foreign,
            };
            let choice = match choose(request, known) {
                Ok(choice) => choice,
                Err(fault) => return Ok(Err(fault)),
            };
            let claimed = |id, note| Ok(Ok(Claimed { id, note }));
            let new = match choice {
                // The status has it, and a tenant keeps its VLAN.
                Choice::Held(id) if request.recorded == Some(id) => return claimed(id, None),
                Choice::Held(id) => {
                    let name = id.claim_name(&network.name);
                    let held = all.iter().find(|claim| claim.name_any() == name);
                    held.map(|claim| (id, claim.as_ref().clone()))
                }
                Choice::TakeOver(id, claim) => match self.take_over(claim, &uid).await {
                    Ok(()) => {
                        let note = format!("{id} was that of an earlier tenant of this name");
                        return claimed(id, Some(note));
                    }
                    // Another tenant has it by now, or it is deleted.
                    Err(Error::Changed(_)) => {
                        refused.insert(claim.name_any());
                        None
                    }
                    Err(error) => return Err(error),
                },
                Choice::Create(id) => {
                    let created = self.create(id, request).await?;
                    if created.is_none() {
                        refused.insert(id.claim_name(&network.name));
                    }
                    created.map(|claim| (id, claim))
                }
            };
            let Some((id, claim)) = new else { continue };
            if claim.annotations().contains_key(VERIFIED) {
                return claimed(id, moved(request, id));
            }
            let others = self.sharing(request, &config, &all);
            let Some(rival) = self.rival(id, request, &others).await? else {
                if !others.is_empty() {
                    self.verify(&claim).await?;
                }
                return claimed(id, moved(request, id));
            };
            tracing::info!(tenant = %name, claim = %claim.name_any(), rival = %rival, "withdraw VlanClaim, as another tenant has the same VLAN or VNI");
            self.withdraw(&claim).await?;
            all.retain(|one| one.name_any() != claim.name_any());
            refused.insert(claim.name_any());
        }
        Err(Error::Changed(format!("claims of network {}", network.name)))
    }

    fn claims(&self) -> Api<VlanClaim> {
        Api::all(self.client.clone())
    }

    /// Returns the other networks that may share the wire.
    fn sharing(
        &self,
        request: Request<'_>,
        config: &InfraConfigSpec,
        claims: &[Arc<VlanClaim>],
    ) -> BTreeSet<String> {
        let hosts = self.stores.hosts();
        let of_hosts = hosts.iter().flat_map(|host| &host.networks).map(|one| one.name.as_str());
        let of_claims = claims.iter().map(|claim| claim.spec.network.as_str());
        let all =
            shared_wire::networks_sharing_wire(config, request.network, of_hosts.chain(of_claims));
        all.into_iter().map(str::to_owned).collect()
    }

    /// Returns the name of the claim of another tenant to the same VLAN or VNI on one of these networks.
    ///
    /// A claim locks the name of one network only. So each of two tenants on two networks creates its own claim first and
    /// reads the other's name afterwards: whatever the order, at least one of them sees the other's claim and withdraws. Of
    /// two that see each other the later name withdraws at once, and the other one reads again.
    ///
    /// A claim without a rival is marked as verified, and only one that is not is withdrawn, both by the version that was
    /// read: of two controllers at work for one tenant, one cannot withdraw what the other has verified.
    async fn rival(
        &self,
        id: NetworkId,
        request: Request<'_>,
        others: &BTreeSet<String>,
    ) -> Result<Option<String>, Error> {
        for other in others {
            let name = id.claim_name(other);
            let reads = if id.claim_name(request.network) < name { RIVAL_READS } else { 1 };
            let mut is_there = false;
            for read in 0..reads {
                if read > 0 {
                    tokio::time::sleep(RIVAL_READ_DELAY).await;
                }
                let there = found(self.claims().get(&name).await);
                let there = at(format!("get VlanClaim {name}"), there)?;
                is_there = there.is_some_and(|claim| {
                    claim.spec.tenant_uid != request.uid
                        && NetworkId::from_claim(&claim) == Some(id)
                });
                if !is_there {
                    break;
                }
            }
            if is_there {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Marks a claim as verified: no tenant of another network has its VLAN or VNI.
    async fn verify(&self, claim: &VlanClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let mut verified = claim.clone();
        verified.annotations_mut().insert(VERIFIED.to_owned(), "true".to_owned());
        // With its resource version.
        let replaced = found(self.claims().replace(&name, &made_by(), &verified).await);
        let replaced = at(format!("replace VlanClaim {name}"), replaced)?;
        replaced.map(drop).ok_or_else(|| Error::Changed(format!("VlanClaim {name}")))
    }

    /// Deletes a claim that is not verified, so that no host has carried it yet.
    async fn withdraw(&self, claim: &VlanClaim) -> Result<(), Error> {
        let name = claim.name_any();
        let only = Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        let deleted = found(self.claims().delete(&name, &params).await);
        at(format!("delete VlanClaim {name}"), deleted).map(drop)
    }

    /// Creates a claim. Returns `None` if another tenant has it.
    async fn create(
        &self,
        id: NetworkId,
        request: Request<'_>,
    ) -> Result<Option<VlanClaim>, Error> {
        let mut claim = id.claim(request.network, request.tenant, request.uid);
        claim.metadata.labels = Some(BTreeMap::from([
            (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned()),
            (TENANT.to_owned(), request.tenant.to_owned()),
        ]));
        let name = claim.name_any();
        let what = format!("VlanClaim {name}");
        let params = made_by();
        match self.claims().create(&params, &claim).await {
            Ok(created) => {
                tracing::info!(tenant = %request.tenant, claim = %name, "created VlanClaim");
                Ok(Some(created))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // Created by another controller, or by this one before it was restarted.
                let there = at(format!("get {what}"), found(self.claims().get(&name).await))?;
                Ok(there.filter(|there| {
                    there.spec.tenant_uid == request.uid && there.spec.network == request.network
                }))
            }
            Err(error) => at(format!("create {what}"), Err(error)),
        }
    }

    /// Transfers a claim in quarantine to a later tenant of the same name.
    async fn take_over(&self, claim: &VlanClaim, uid: &str) -> Result<(), Error> {
        let name = claim.name_any();
        let mut new = claim.clone();
        new.spec = VlanClaimSpec { tenant_uid: uid.to_owned(), ..new.spec };
        // It existed all the time, so tenants of other networks have seen it.
        new.annotations_mut().insert(VERIFIED.to_owned(), "true".to_owned());
        let params = made_by();
        // With its resource version: the API server refuses it if another client wrote the claim in between.
        let result = self.claims().replace(&name, &params, &new).await;
        let new = match result {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(Error::Changed(format!("VlanClaim {name}")));
            }
            result => at(format!("replace VlanClaim {name}"), result)?,
        };
        self.set_released_at(&new, Value::Null).await
    }

    /// Writes the start of the quarantine to a claim, or null.
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
        let params = patched_by();
        let result = self.claims().patch_status(&name, &params, &Patch::Merge(patch)).await;
        at(format!("patch status of VlanClaim {name}"), result).map(drop)
    }

    fn foreign_ids(
        &self,
        tenant: &TenantCluster,
        network: &HostNetwork,
    ) -> BTreeMap<NetworkId, String> {
        let kind = crate::tenants::objects::Kind::NetworkAttachmentDefinition;
        let all = self.stores.kind(kind).map(OptionalInformer::all).unwrap_or_default();
        let attachments = all.iter().map(|object| Attachment {
            namespace: object.metadata.namespace.as_deref().unwrap_or_default(),
            name: object.metadata.name.as_deref().unwrap_or_default(),
            resource: object.annotations().get(RESOURCE_NAME).map(String::as_str),
            config: object.data["spec"]["config"].as_str().unwrap_or_default(),
        });
        let asked = tenant.spec.network.as_ref();
        let resource = asked.and_then(|asked| asked.sriov_resource.as_deref());
        used(attachments, network, resource, &TenantCluster::namespace_of(&tenant.name_any()))
    }
}

/// Returns the note for a tenant that lost its claim to another.
fn moved(request: Request<'_>, id: NetworkId) -> Option<String> {
    let before = request.recorded.filter(|before| *before != id)?;
    Some(format!(
        "was {before}, whose claim belongs to another tenant: machines that run there must be restarted"
    ))
}
