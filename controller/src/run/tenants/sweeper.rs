//! Claims that nobody needs: released, and deleted after their quarantine, as [`crate::tenants::sweep`] says.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::TenantCluster;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Preconditions};
use serde_json::{Value, json};

use super::context::Context;
use super::error::{Error, at, found};
use crate::tenants::ids::NetworkId;
use crate::tenants::sweep::{Alive, Sweep, sweep as decide};

/// News are gathered for so long.
const GATHER: Duration = Duration::from_secs(1);
/// Without news it is looked so often, for what is due.
const ROUND: Duration = Duration::from_secs(60);

/// Sweeps for ever.
pub(super) async fn sweep(context: &Context) {
    context.ready().await;
    loop {
        let claims = context.stores.followers.claims.all();
        let tenants = context.stores.followers.tenants.all();
        let alive: BTreeMap<String, Alive> =
            tenants.iter().filter_map(|tenant| Some((tenant.uid()?, alive(tenant)))).collect();
        let (todo, next) = decide(&claims, &alive, &context.config(), Timestamp::now());
        for one in todo {
            match context.carry_out(one).await {
                // Somebody wrote it: the watch tells.
                Ok(()) | Err(Error::Changed(_)) => {}
                Err(error) => tracing::warn!("{error}"),
            }
        }
        let due = next.and_then(|next| Duration::try_from(next - Timestamp::now()).ok());
        let pause = due.map_or(ROUND, |due| due.clamp(GATHER, ROUND));
        tokio::select! {
            () = context.stores.news.sweep.notified() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn alive(tenant: &TenantCluster) -> Alive {
    let network = tenant.spec.network.as_ref().map(|network| network.name.clone());
    let id = tenant.status.as_ref().and_then(NetworkId::of_status);
    Alive { name: tenant.name_any(), has: network.zip(id) }
}

impl Context {
    async fn carry_out(&self, one: Sweep<'_>) -> Result<(), Error> {
        match one {
            Sweep::Keep(claim) => self.mark(claim, Value::Null).await,
            Sweep::Release(claim) => {
                // Lists may be old; this is not.
                let api: Api<TenantCluster> = Api::all(self.client.clone());
                let name = &claim.spec.tenant;
                let tenant = at(format!("get TenantCluster {name}"), found(api.get(name).await))?;
                let tenant =
                    tenant.filter(|one| one.uid().as_ref() == Some(&claim.spec.tenant_uid));
                if let Some(tenant) = tenant {
                    match alive(&tenant).has {
                        Some((network, has))
                            if network != claim.spec.network
                                || Some(has) != NetworkId::of_claim(claim) => {}
                        _ => return Ok(()),
                    }
                }
                tracing::info!("VlanClaim {} of {name} goes into quarantine", claim.name_any());
                self.mark(claim, json!(Timestamp::now())).await
            }
            Sweep::Delete(claim) => {
                let name = claim.name_any();
                let only =
                    Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
                let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
                let api: Api<berth_api::VlanClaim> = Api::all(self.client.clone());
                tracing::info!("VlanClaim {name}: its quarantine is over");
                at(format!("delete VlanClaim {name}"), found(api.delete(&name, &params).await))
                    .map(drop)
            }
        }
    }
}
