//! Ensures one Service for each machine, if the tenant requests access to its machines. The VirtualMachine owns the
//! Service, so Kubernetes deletes it with the machine.

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_api::{MachineAccess, Problem, TenantCluster};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::errors::{RequestError, none_if_not_found, refusal_message, with_request};
use super::node_ports::{NodePortAllocator, refused_node_port};
use super::validated::ValidatedDeployment;
use crate::managed_by::is_created_by_berth;
use crate::run::packed_content::unpack_content;
use crate::tenants::fault::Fault;
use crate::tenants::node_ports::{NodePorts, read_node_ports};
use crate::tenants::objects::{
    DesiredObject, ObjectKind, access_service, access_service_name, with_node_ports,
};
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
    Refused { service: String, reason: String, node_port: Option<u16> },
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

/// Problems of the Services of a MachineDeployment, and the fault of its condition AccessReady.
pub(super) struct AccessResult {
    pub(super) problems: Vec<Problem>,
    pub(super) fault: Option<Fault>,
}

/// The Service of a machine: the desired object, and the Service in the store.
struct MachineService<'a> {
    /// Namespace and name of the machine.
    machine: &'a str,
    desired: DesiredObject,
    known: Option<&'a DynamicObject>,
    /// Node ports of the existing Service.
    node_ports: NodePorts,
}

impl ValidatedDeployment<'_> {
    /// Creates missing Services, applies Services that differ, and deletes Services that the tenant no longer
    /// requests. Returns the reasons why Services cannot be applied. Machines without a tenant have no Services.
    pub(super) async fn ensure_access_services(&self) -> Result<AccessResult, RequestError> {
        let Some(tenant) = self.tenant() else {
            return Ok(AccessResult { problems: Vec::new(), fault: None });
        };
        let mut found = ServiceProblems::default();
        let mut allocator = NodePortAllocator::new(self, tenant);
        for vm in self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting) {
            found.0.extend(self.ensure_access_service(tenant, vm, allocator.as_mut()).await?);
            if found.has_many_refusals() {
                break;
            }
        }
        let object = self.deployment.qualified_name();
        let problem = |one: &ServiceProblem| Problem::new(object.as_str(), "", "", one.to_string());
        let problems = found.0.iter().map(problem).collect();
        Ok(AccessResult { problems, fault: allocator.and_then(|allocator| allocator.fault()) })
    }

    async fn ensure_access_service(
        &self,
        tenant: &TenantCluster,
        vm: &ExistingVm,
        mut allocator: Option<&mut NodePortAllocator<'_>>,
    ) -> Result<Option<ServiceProblem>, RequestError> {
        let name = access_service_name(&vm.name);
        let known = self.context.services.get(&self.namespace, &name);
        let known = known.map(|known| unpack_content(&known));
        let Some(desired) = access_service(tenant, &vm.name, &vm.uid) else {
            let Some(known) = known else { return Ok(None) };
            return self.delete_access_service(&known).await.map(|()| None);
        };
        if known.as_ref().is_some_and(|known| known.metadata.deletion_timestamp.is_some()) {
            return Ok(None);
        }
        let machine = format!("{}/{}", self.namespace, vm.name);
        let node_ports = match &known {
            Some(known) => read_node_ports(&known.data),
            None => {
                let exhausted =
                    allocator.as_deref_mut().filter(|allocator| allocator.is_exhausted());
                if let Some(allocator) = exhausted {
                    allocator.record_missing(&machine);
                    return Ok(None);
                }
                // The store has neither Services of other users nor Services that were created just now.
                let found = self.get_access_service(&name).await?;
                if found.as_ref().is_some_and(|found| !is_created_by_berth(found.labels())) {
                    let service = format!("{}/{name}", self.namespace);
                    return Ok(Some(ServiceProblem::NotOwned { service }));
                }
                found.map(|found| read_node_ports(&found.data)).unwrap_or_default()
            }
        };
        let service =
            MachineService { machine: &machine, desired, known: known.as_ref(), node_ports };
        match allocator {
            Some(allocator) => self.apply_with_node_ports(service, tenant, allocator).await,
            None => {
                self.apply_access_service(service.desired.with_content_hash(), service.known).await
            }
        }
    }

    /// Applies a Service with node ports of the tenant's range. If there are not enough free node ports, the allocator
    /// records the machine instead.
    async fn apply_with_node_ports(
        &self,
        service: MachineService<'_>,
        tenant: &TenantCluster,
        allocator: &mut NodePortAllocator<'_>,
    ) -> Result<Option<ServiceProblem>, RequestError> {
        let MachineService { machine, desired, known, node_ports: existing } = service;
        let access = tenant.spec.exposure.as_ref().and_then(|one| one.machine_access.as_ref());
        let ports = access.map(MachineAccess::all_ports).unwrap_or_default();
        while let Some(node_ports) = allocator.allocate(machine, &ports, &existing) {
            let desired = with_node_ports(desired.clone(), &node_ports).with_content_hash();
            match self.apply_access_service(desired, known).await? {
                None => {
                    allocator.record_applied(machine, &node_ports);
                    return Ok(None);
                }
                Some(ServiceProblem::Refused { node_port: Some(node_port), reason, service }) => {
                    tracing::info!(machine, node_port, error = %reason, "the API server refused a node port");
                    if !allocator.record_refusal(node_port) {
                        let node_port = Some(node_port);
                        return Ok(Some(ServiceProblem::Refused { service, reason, node_port }));
                    }
                }
                other => return Ok(other),
            }
        }
        Ok(None)
    }

    /// Applies a Service. Returns the problem if the API server refuses it.
    async fn apply_access_service(
        &self,
        desired: DesiredObject,
        known: Option<&DynamicObject>,
    ) -> Result<Option<ServiceProblem>, RequestError> {
        let name = desired.name();
        let mut params = PatchParams::apply(CONTROLLER_FIELD_MANAGER);
        if let Some(known) = known {
            if !desired.differs_from(known) {
                return Ok(None);
            }
            params.force = true;
        }
        let applied = self.services_api().patch(name, &params, &Patch::Apply(&desired.body)).await;
        if let Some(reason) = refusal_message(&applied) {
            let service = format!("{}/{name}", self.namespace);
            let node_port = match &applied {
                Err(kube::Error::Api(status)) => refused_node_port(status, &desired.body),
                _ => None,
            };
            return Ok(Some(ServiceProblem::Refused { service, reason, node_port }));
        }
        with_request(|| format!("apply Service {}/{name}", self.namespace), applied)?;
        tracing::info!(namespace = %self.namespace, service = %name, "applied Service of a machine");
        Ok(None)
    }

    async fn get_access_service(&self, name: &str) -> Result<Option<DynamicObject>, RequestError> {
        let found = none_if_not_found(self.services_api().get(name).await);
        with_request(|| format!("get Service {}/{name}", self.namespace), found)
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
        let refused = || ServiceProblem::Refused {
            service: String::new(),
            reason: String::new(),
            node_port: None,
        };
        found.0.extend((1..MAX_REFUSALS).map(|_| refused()));
        assert!(!found.has_many_refusals());
        found.0.push(refused());
        assert!(found.has_many_refusals());
    }
}
