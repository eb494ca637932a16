//! Reads the tenant and the time limit of a removal, and before each step those facts that may have changed.

use berth_api::{ConditionReason, TenantClusterSpec};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::context::{RemovalContext, Remover};
use super::drain::MarkedMachine;
use super::draining_tenant::DrainingTenant;
use super::facts::{TenantConnection, VmState};
use crate::removal::mark::RemovalMark;
use crate::removal::timeout::{deadline, drain_timeout};
use crate::run::api_requests::{RequestError, with_request};

/// Facts for one step, from stores.
pub(super) struct StepFacts {
    /// Connection to the tenant's API server and Node of the machine, or the reason why they are not known; `None` if
    /// the machine is not drained.
    pub(super) connection: Option<Result<TenantConnection, ConditionReason>>,
    pub(super) vm: VmState,
}

impl Remover {
    /// Reads the tenant of a machine with a valid mark, and the time limit of its removal.
    pub(super) async fn read_machine(
        &self,
        machine: &DynamicObject,
        removal: RemovalMark,
    ) -> Result<(DrainingTenant, MarkedMachine), RequestError> {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        let tenant = self.find_tenant(&namespace).await?;
        let deployment = self.context.deployment_of(machine);
        let spec = match &tenant {
            DrainingTenant::Known(tenant) => tenant.spec.clone(),
            DrainingTenant::None | DrainingTenant::Malformed => TenantClusterSpec::default(),
        };
        let limit = self.context.timeout_limit();
        let resolved = drain_timeout(machine, deployment.as_deref(), &spec, limit);
        let marked = MarkedMachine {
            object: machine.clone(),
            namespace,
            name,
            removal,
            deadline: deadline(removal.since, resolved.timeout),
            problems: resolved.problems,
        };
        Ok((tenant, marked))
    }

    async fn find_tenant(&self, namespace: &str) -> Result<DrainingTenant, RequestError> {
        let RemovalContext { client, tenants, .. } = &self.context;
        let found = DrainingTenant::find(client, namespace, |name| tenants.get(name)).await;
        with_request(|| format!("get TenantCluster of namespace {namespace}"), found)
    }

    /// Returns the facts of the next step.
    pub(super) fn read_facts(&self, tenant: &DrainingTenant, machine: &MarkedMachine) -> StepFacts {
        let connection = match tenant {
            DrainingTenant::None => None,
            DrainingTenant::Malformed => Some(Err(ConditionReason::Malformed)),
            DrainingTenant::Known(tenant) => {
                Some(self.context.tenant_connection(tenant, &machine.name))
            }
        };
        StepFacts { connection, vm: self.context.vm_state(&machine.object, &machine.removal) }
    }
}
