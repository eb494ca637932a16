//! Step 7 of a reconcile of a tenant: writes the status and emits Events.

use berth_api::names::TENANTS_FIELD_MANAGER;
use berth_api::{TenantCluster, TenantClusterStatus};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};

use super::context::TenantContext;
use super::error::{Error, with_request};
use crate::tenants::network_id::NetworkId;
use crate::tenants::status;

impl TenantContext {
    /// Writes a tenant's VLAN or VNI to its status, from which the reconciler of hosts reads the number. If two
    /// controllers have claimed different numbers, the API server accepts only the first of the two writes.
    pub(super) async fn record_network_id(
        &self,
        tenant: TenantCluster,
        id: NetworkId,
    ) -> Result<TenantCluster, Error> {
        let mut status = tenant.status.clone().unwrap_or_default();
        status.machines = None;
        status.conditions.retain(|one| status::OWNED_CONDITIONS.contains(&one.type_.as_str()));
        (status.vlan, status.vni) = id.to_fields();
        let name = tenant.name_any();
        let params = PatchParams::apply(TENANTS_FIELD_MANAGER).force();
        let body = Patch::Apply(status::apply_body(&tenant, &status, true));
        let api: Api<TenantCluster> = Api::all(self.client.clone());
        with_request(
            format!("patch status of TenantCluster {name}"),
            api.patch_status(&name, &params, &body).await,
        )
    }

    /// Writes the status of a tenant if it has changed, and emits an Event for each new fault.
    pub(super) async fn update_status(
        &self,
        tenant: &TenantCluster,
        desired: &TenantClusterStatus,
    ) -> Result<(), Error> {
        if !status::differs(desired, tenant) {
            return Ok(());
        }
        let name = tenant.name_any();
        let params = PatchParams::apply(TENANTS_FIELD_MANAGER).force();
        // The write contains the resource version, so that a status that was built from a stale object does not
        // overwrite the VLAN in a newer version.
        let body = Patch::Apply(status::apply_body(tenant, desired, true));
        let result = self.tenants_api().patch_status(&name, &params, &body).await;
        with_request(format!("patch status of TenantCluster {name}"), result)?;
        for one in desired.conditions.iter().filter(|one| one.status == "False") {
            // For these conditions no Events are emitted, because they change all the time while a tenant starts.
            if ["Ready", "HostsReady"].contains(&one.type_.as_str()) {
                continue;
            }
            let before = tenant.status.iter().flat_map(|status| &status.conditions);
            let mut same = before.filter(|other| other.type_ == one.type_);
            if same.all(|other| other.reason != one.reason || other.message != one.message) {
                self.warn(tenant, &one.reason, &one.message).await;
            }
        }
        Ok(())
    }
}
