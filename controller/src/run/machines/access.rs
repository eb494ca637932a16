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

/// Number of refused Services after which a reconcile does not apply the remaining Services. Usually all Services are
/// refused for the same reason, such as an exhausted port range or quota, and each attempt costs a request.
const MAX_REFUSALS: usize = 5;

/// Reason why the Service of a machine cannot be applied.
#[derive(Debug, thiserror::Error)]
enum ServiceProblem {
    #[error("Service {service} exists and was not created by Berth; delete it")]
    NotOwned { service: String },
    #[error("the API server refuses Service {service}: {reason}")]
    Refused { service: String, reason: String },
}

/// Problems of the Services of a MachineDeployment.
#[derive(Debug, Default)]
struct ServiceProblems(Vec<ServiceProblem>);

impl ServiceProblems {
    /// Returns true if the API server refused so many Services that it will probably refuse the remaining Services. A
    /// Service that another user created does not count, because it affects only one machine.
    fn has_many_refusals(&self) -> bool {
        let is_refused = |one: &&ServiceProblem| matches!(one, ServiceProblem::Refused { .. });
        self.0.iter().filter(is_refused).count() >= MAX_REFUSALS
    }
}

impl ValidatedDeployment<'_> {
    /// Creates missing Services, applies Services that differ, and deletes Services that the tenant no longer
    /// requests. Returns the reasons why Services cannot be applied. Machines without a tenant have no Services.
    pub(super) async fn ensure_access_services(&self) -> Result<Vec<Problem>, RequestError> {
        let Some(tenant) = self.tenant() else { return Ok(Vec::new()) };
        let mut found = ServiceProblems::default();
        for vm in self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting) {
            found.0.extend(self.ensure_access_service(tenant, vm).await?);
            if found.has_many_refusals() {
                break;
            }
        }
        let object = self.deployment.qualified_name();
        let problem = |one: &ServiceProblem| Problem::new(object.as_str(), "", "", one.to_string());
        Ok(found.0.iter().map(problem).collect())
    }

    async fn ensure_access_service(
        &self,
        tenant: &TenantCluster,
        vm: &ExistingVm,
    ) -> Result<Option<ServiceProblem>, RequestError> {
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

    /// Applies a Service. Returns the problem if the API server refuses it, or if another user created a Service of
    /// this name.
    async fn apply_access_service(
        &self,
        desired: DesiredObject,
        known: Option<&DynamicObject>,
    ) -> Result<Option<ServiceProblem>, RequestError> {
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
                let found = none_if_not_found(self.services_api().get_metadata(name).await);
                let found = with_request(request, found)?;
                if found.is_some_and(|found| !is_created_by_berth(found.labels())) {
                    let service = format!("{}/{name}", self.namespace);
                    return Ok(Some(ServiceProblem::NotOwned { service }));
                }
            }
        }
        let applied = self.services_api().patch(name, &params, &Patch::Apply(&desired.body)).await;
        if let Some(reason) = refusal_message(&applied) {
            let service = format!("{}/{name}", self.namespace);
            return Ok(Some(ServiceProblem::Refused { service, reason }));
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
        let deleted = none_if_not_found(self.services_api().delete(&name, &params).await);
        with_request(|| format!("delete Service {}/{name}", self.namespace), deleted).map(drop)
    }

    fn services_api(&self) -> Api<DynamicObject> {
        let resource = ObjectKind::Service.resource();
        Api::namespaced_with(self.context.client.clone(), &self.namespace, &resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_services_do_not_stop_later_machines() {
        let mut found = ServiceProblems::default();
        for number in 0..100 {
            let service = format!("cluster-shop/access-web-{number}");
            found.0.push(ServiceProblem::NotOwned { service });
            assert!(!found.has_many_refusals());
        }
        let words = "Service cluster-shop/access-web-0 exists and was not created by Berth";
        assert!(found.0[0].to_string().starts_with(words), "{}", found.0[0]);
        let refused = || ServiceProblem::Refused { service: String::new(), reason: String::new() };
        found.0.extend((1..MAX_REFUSALS).map(|_| refused()));
        assert!(!found.has_many_refusals());
        found.0.push(refused());
        assert!(found.has_many_refusals());
    }
}
