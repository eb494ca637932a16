//! A tenant's VLAN or VNI: chosen by [`crate::tenants::claims`], had by whoever creates its claim.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::{MANAGED_BY, TENANT};
use berth_api::{TenantCluster, VlanClaim, VlanClaimSpec};
use kube::ResourceExt as _;
use kube::api::{Api, Patch};
use serde_json::{Value, json};

use super::context::Context;
use super::error::{Error, at, found};
use crate::launcher::RESOURCE_NAME;
use crate::run::calls::{made_by, patched_by};
use crate::run::optional::Optional;
use crate::tenants::claims::{self, Choice, Request, choose};
use crate::tenants::fault::Fault;
use crate::tenants::ids::NetworkId;
use crate::tenants::imports::{Attachment, used};
use crate::tenants::network::HostNetwork;

/// Claims that may be found taken in one look. A list that is so far behind is soon a better one.
const TRIES: usize = 32;

/// What a tenant got, and what is to be said of it.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) id: NetworkId,
    pub(super) note: Option<String>,
}

impl Context {
    /// The tenant's VLAN or VNI, claimed.
    pub(super) async fn claim(
        &self,
        tenant: &TenantCluster,
        network: &HostNetwork,
    ) -> Result<Result<Got, Fault>, Error> {
        let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
        let asked = tenant.spec.network.as_ref();
        let request = Request {
            tenant: &name,
            uid: &uid,
            network: &network.name,
            by_vni: network.by_vni(),
            fixed: asked.and_then(NetworkId::asked),
            before: tenant.status.as_ref().and_then(NetworkId::of_status),
        };
        let (all, config) = (self.stores.followers.claims.all(), self.config());
        let foreign = if claims::held(request, &all).is_some() {
            BTreeMap::new()
        } else {
            self.foreign(tenant, network)
        };
        let mut refused = BTreeSet::new();
        for _ in 0..TRIES {
            let known = claims::Known {
                config: &config,
                claims: &all,
                refused: &refused,
                foreign: &foreign,
            };
            let choice = match choose(request, known) {
                Ok(choice) => choice,
                Err(fault) => return Ok(Err(fault)),
            };
            let got = |id, note| Ok(Ok(Got { id, note }));
            match choice {
                Choice::Have(id) => return got(id, moved(request, id)),
                Choice::TakeOver(id, claim) => match self.take_over(claim, &uid).await {
                    Ok(()) => {
                        let note = format!("{id} was that of an earlier tenant of this name");
                        return got(id, Some(note));
                    }
                    // It is another's by now, or gone.
                    Err(Error::Changed(_)) => drop(refused.insert(claim.name_any())),
                    Err(error) => return Err(error),
                },
                Choice::Create(id) => {
                    if self.create(id, request).await? {
                        return got(id, moved(request, id));
                    }
                    refused.insert(id.claim_name(&network.name));
                }
            }
        }
        Err(Error::Changed(format!("claims of network {}", network.name)))
    }

    fn claims(&self) -> Api<VlanClaim> {
        Api::all(self.client.clone())
    }

    /// Creates a claim. False if it is somebody else's.
    async fn create(&self, id: NetworkId, request: Request<'_>) -> Result<bool, Error> {
        let mut claim = id.claim(request.network, request.tenant, request.uid);
        claim.metadata.labels = Some(BTreeMap::from([
            (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned()),
            (TENANT.to_owned(), request.tenant.to_owned()),
        ]));
        let name = claim.name_any();
        let what = format!("VlanClaim {name}");
        let params = made_by();
        match self.claims().create(&params, &claim).await {
            Ok(_) => {
                tracing::info!("{id} on {} is that of {}", request.network, request.tenant);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // By another controller, or by this one before it was ended.
                let there = at(format!("get {what}"), found(self.claims().get(&name).await))?;
                Ok(there.is_some_and(|there| {
                    there.spec.tenant_uid == request.uid && there.spec.network == request.network
                }))
            }
            Err(error) => at(format!("create {what}"), Err(error)),
        }
    }

    /// Makes a claim in quarantine that of a later tenant of the same name.
    async fn take_over(&self, claim: &VlanClaim, uid: &str) -> Result<(), Error> {
        let name = claim.name_any();
        let mut new = claim.clone();
        new.spec = VlanClaimSpec { tenant_uid: uid.to_owned(), ..new.spec };
        let params = made_by();
        // With its resource version: if anybody wrote it in between, it is refused.
        let result = self.claims().replace(&name, &params, &new).await;
        let new = match result {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(Error::Changed(format!("VlanClaim {name}")));
            }
            result => at(format!("replace VlanClaim {name}"), result)?,
        };
        self.mark(&new, Value::Null).await
    }

    /// Says in a claim since when it is in quarantine, or that it is not.
    pub(super) async fn mark(&self, claim: &VlanClaim, released_at: Value) -> Result<(), Error> {
        let name = claim.name_any();
        let patch = json!({
            "metadata": {"resourceVersion": claim.resource_version()},
            "status": {"releasedAt": released_at},
        });
        let params = patched_by();
        let result = self.claims().patch_status(&name, &params, &Patch::Merge(patch)).await;
        at(format!("patch status of VlanClaim {name}"), result).map(drop)
    }

    fn foreign(
        &self,
        tenant: &TenantCluster,
        network: &HostNetwork,
    ) -> BTreeMap<NetworkId, String> {
        let kind = crate::tenants::objects::Kind::NetworkAttachmentDefinition;
        let all = self.stores.kind(kind).map(Optional::all).unwrap_or_default();
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

/// What is said of a tenant whose claim was lost to another.
fn moved(request: Request<'_>, id: NetworkId) -> Option<String> {
    let before = request.before.filter(|before| *before != id)?;
    Some(format!(
        "was {before}, whose claim is not its own: machines that run there must be restarted"
    ))
}
