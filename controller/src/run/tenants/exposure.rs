//! Applies the objects that expose a tenant's Services, and deletes such objects that are no longer desired.
//! [`crate::tenants::exposure`] plans the objects.

use berth_api::names::TENANT_LABEL;
use berth_api::{ConditionReason, TenantCluster};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::context::TenantContext;
use crate::managed_by::is_created_by_berth;
use crate::run::packed_content::unpack_content;
use crate::tenants::exposure::{DesiredExposure, EXPOSURE_KINDS};
use crate::tenants::fault::Fault;
use crate::tenants::objects::ObjectKind;
use crate::tenants::objects::cloud_controller_manager::CLOUD_CONTROLLER_MANAGER;
use crate::tenants::pool_use::{AppliedPool, PoolUse};
use crate::tenants::status::{PartResult, ReadyPart, join_faults};

impl TenantContext {
    /// Returns the address pools and the Service addresses of all tenants, as they are in the cluster. Pools that were
    /// written a moment ago are included even if the watch has not delivered them yet, because two tenants must not get
    /// the same addresses.
    pub(super) fn pool_use(&self) -> PoolUse {
        let kind = ObjectKind::IpAddressPool;
        let stored = self.stores.store_of_kind(kind).map(|all| {
            let own = all.filter(|object| is_created_by_berth(object.labels()));
            own.iter().filter_map(|object| applied_pool(object)).collect::<Vec<_>>()
        });
        let mut pools = stored.unwrap_or_default();
        pools.extend(self.recently_written(kind).iter().filter_map(applied_pool));
        PoolUse { pools, addresses: self.stores.services.addresses() }
    }

    /// Applies the objects that expose the Services of a tenant. Returns the state of this part; `None` if the tenant
    /// requests no exposure and all objects of an earlier exposure have been deleted.
    pub(super) async fn apply_exposure(
        &self,
        tenant: &str,
        desired: DesiredExposure,
        may_adopt: bool,
    ) -> Option<PartResult> {
        let mut faults = desired.faults.clone();
        for one in &desired.objects {
            // Objects in the namespace of MetalLB are not adopted, because Berth did not create this namespace.
            let may_adopt = may_adopt && !one.kind.is_in_metallb_namespace();
            faults.extend(self.apply_object(one.clone(), may_adopt).await.err());
        }
        for kind in EXPOSURE_KINDS {
            let is_undesired =
                |namespace: &str, name: &str| desired.is_undesired(kind, namespace, name);
            faults.extend(self.delete_owned(kind, tenant, is_undesired).await.err());
        }
        if !desired.is_requested && faults.is_empty() {
            return None;
        }
        let has_manager = desired.objects.iter().any(|one| one.kind == ObjectKind::Deployment);
        if has_manager && faults.is_empty() {
            faults.extend(self.cloud_controller_manager_fault(tenant));
        }
        let message = format!("{} objects have been applied", desired.objects.len());
        Some(join_faults(&faults, ReadyPart::ready(message)))
    }

    /// Returns a fault if the tenant's cloud controller manager has no available pod.
    fn cloud_controller_manager_fault(&self, tenant: &str) -> Option<Fault> {
        let (namespace, name) = (TenantCluster::namespace_of(tenant), CLOUD_CONTROLLER_MANAGER);
        let deployment = self.cached_object(ObjectKind::Deployment, &namespace, name)?;
        let number = |pointer: &str| deployment.data.pointer(pointer).and_then(Value::as_u64);
        let (replicas, available) = (number("/spec/replicas"), number("/status/availableReplicas"));
        if replicas == Some(0) || available.is_some_and(|available| available > 0) {
            return None;
        }
        let message = format!(
            "Deployment {namespace}/{name} has no available pod; see kubectl describe and the logs of its pods"
        );
        Some(Fault::new(ConditionReason::CloudControllerManagerUnavailable, message))
    }
}

/// Returns the content of an IPAddressPool whose label names a tenant; `None` without this label.
fn applied_pool(object: &DynamicObject) -> Option<AppliedPool> {
    let tenant = object.labels().get(TENANT_LABEL)?;
    Some(AppliedPool::new(tenant, &unpack_content(object).data["spec"]))
}
