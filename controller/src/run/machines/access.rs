//! Ensures one Service for each machine, if the tenant requests access to its machines. The VirtualMachine owns the
//! Service, so Kubernetes deletes it with the machine.

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_api::{Problem, TenantCluster};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::errors::{RequestError, none_if_not_found, refusal_message, with_request};
use super::validated::ValidatedDeployment;
use crate::managed_by::is_created_by_berth;
use crate::run::packed_content::unpack_content;
use crate::tenants::objects::{DesiredObject, ObjectKind, access_service, access_service_name};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;

impl ValidatedDeployment<'_> {
    /// Creates missing Services, applies Services that differ, and deletes Services that the tenant no longer
    /// requests. Returns the reasons why Services cannot be applied. Machines without a tenant have no Services.
    pub(super) async fn ensure_access_services(&self) -> Result<Vec<Problem>, RequestError> {
        let mut problems = Vec::new();
        let Some(tenant) = self.tenant() else { return Ok(problems) };
        for vm in self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting) {
            if let Some(message) = self.ensure_access_service(tenant, vm).await? {
                problems.push(Problem::new(self.deployment.qualified_name(), "", "", message));
                // The Services of other machines have the same problem: a full range of ports, or a quota.
                break;
            }
        }
        Ok(problems)
    }

    async fn ensure_access_service(
        &self,
        tenant: &TenantCluster,
        vm: &ExistingVm,
    ) -> Result<Option<String>, RequestError> {
        let name = access_service_name(&vm.name);
        let known = self.context.services.get(&self.namespace, &name);
        match (access_service(tenant, &vm.name, &vm.uid), known) {
            (Some(desired), known) => {
                self.apply_access_service(desired.with_content_hash(), known.as_deref()).await
            }
            (None, Some(known)) => self.delete_access_service(&known).await.map(|()| None),
            (None, None) => Ok(None),
        }
    }

    /// Applies a Service. Returns the reason if the API server refuses it, or if another user created a Service of this
    /// name.
    async fn apply_access_service(
        &self,
        desired: DesiredObject,
        known: Option<&DynamicObject>,
    ) -> Result<Option<String>, RequestError> {
        let name = desired.name();
        let mut params = PatchParams::apply(CONTROLLER_FIELD_MANAGER);
        match known {
            Some(known) if known.metadata.deletion_timestamp.is_some() => return Ok(None),
            Some(known) => {
                if !desired.differs_from(&unpack_content(known)) {
                    return Ok(None);
                }
                params.force = true;
            }
            None => {
                let request = || format!("get Service {}/{name}", self.namespace);
                let found = none_if_not_found(self.services().get_metadata(name).await);
                let found = with_request(request, found)?;
                if found.is_some_and(|found| !is_created_by_berth(found.labels())) {
                    return Ok(Some(format!(
                        "Service {}/{name} exists and was not created by Berth; delete it",
                        self.namespace
                    )));
                }
            }
        }
        let applied = self.services().patch(name, &params, &Patch::Apply(&desired.body)).await;
        if let Some(reason) = refusal_message(&applied) {
            return Ok(Some(format!(
                "the API server refuses Service {}/{name}: {reason}",
                self.namespace
            )));
        }
        with_request(|| format!("apply Service {}/{name}", self.namespace), applied)?;
        tracing::info!(namespace = %self.namespace, service = %name, "applied Service of a machine");
        Ok(None)
    }

    async fn delete_access_service(&self, service: &DynamicObject) -> Result<(), RequestError> {
        let name = service.name_any();
        let preconditions = Preconditions { uid: service.uid(), resource_version: None };
        let params =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let deleted = none_if_not_found(self.services().delete(&name, &params).await);
        with_request(|| format!("delete Service {}/{name}", self.namespace), deleted).map(drop)
    }

    fn services(&self) -> Api<DynamicObject> {
        let resource = ObjectKind::Service.resource();
        Api::namespaced_with(self.context.client.clone(), &self.namespace, &resource)
    }
}
