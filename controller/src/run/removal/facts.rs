//! Facts of a removal that are read from stores: the tenant, the Node of the machine, and the state of its VM and of
//! its host.

use std::sync::Arc;

use berth_api::{ConditionReason, TenantCluster, names};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::context::RemovalContext;
use crate::host_loss::deletion::{HostOfMachine, may_delete};
use crate::host_loss::evidence::is_ready;
use crate::host_loss::machine_hosts::MachineHost;
use crate::machine_owner::owner_uid;
use crate::removal::mark::RemovalMark;
use crate::run::packed_content::unpack_content;
use crate::run::tenant_access::{Access, SharedState};
use crate::tenant_nodes::node_match::{NodeIndex, NodeMatch};
use crate::tenants::fault::Fault;

/// Node of a machine in the tenant's cluster.
#[derive(Clone, Debug)]
pub(super) struct MachineNode {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) is_cordoned: bool,
    pub(super) is_cordoned_by_berth: bool,
    pub(super) is_ready: bool,
}

/// Connection to the tenant's API server, and the Node of the machine if there is one.
pub(super) struct TenantConnection {
    pub(super) tenant: String,
    pub(super) state: SharedState,
    pub(super) access: Access,
    pub(super) node: Option<MachineNode>,
}

/// State of the VM of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VmState {
    pub(super) has_ended: bool,
    /// True if it is unknown whether the VM still runs, because its host is lost.
    pub(super) is_host_lost: bool,
    pub(super) is_host_ready: bool,
}

impl RemovalContext {
    /// Returns the tenant in whose cluster the Nodes of a namespace's machines are drained; `None` if they are not
    /// drained.
    pub(super) fn draining_tenant(&self, namespace: &str) -> Option<Arc<TenantCluster>> {
        let tenant = self.tenants.get(namespace.strip_prefix(names::TENANT_PREFIX)?)?;
        crate::removal::drains_machines(&tenant).then_some(tenant)
    }

    /// Returns the connection to the tenant's API server and the Node of a machine, or the reason why they are not
    /// known.
    pub(super) fn tenant_connection(
        &self,
        tenant: &TenantCluster,
        machine: &str,
    ) -> Result<TenantConnection, ConditionReason> {
        let tenant = tenant.name_any();
        let state = self.connections.state(&tenant);
        let state = state.ok_or(ConditionReason::TenantUnreachable)?;
        let (access, node) = {
            let locked = state.lock();
            let access = match &locked.access {
                None => return Err(ConditionReason::TenantUnreachable),
                Some(Err(Fault { reason, .. })) => return Err(*reason),
                Some(Ok(access)) => access.clone(),
            };
            let node = match NodeIndex::new(locked.nodes.nodes()).find(machine) {
                NodeMatch::Found(node) => Some(MachineNode {
                    name: node.name.clone(),
                    uid: node.uid.clone(),
                    is_cordoned: node.is_unschedulable,
                    is_cordoned_by_berth: node.is_cordoned_by_berth,
                    is_ready: node.ready_since.is_some(),
                }),
                NodeMatch::Ambiguous(_) => return Err(ConditionReason::AmbiguousNodes),
                // The store lacks Nodes because of its size limits, and one of them may be the Node of the machine.
                NodeMatch::None if locked.nodes.omitted() > 0 => {
                    return Err(ConditionReason::TooManyNodes);
                }
                NodeMatch::None => None,
            };
            (access, node)
        };
        Ok(TenantConnection { tenant, state, access, node })
    }

    /// Returns the state of the VM of a machine whose removal mark is `removal`.
    pub(super) fn vm_state(&self, machine: &DynamicObject, removal: &RemovalMark) -> VmState {
        let namespace = machine.namespace().unwrap_or_default();
        let Some(instance) = self.instances.get(&namespace, &machine.name_any()) else {
            return VmState::default();
        };
        let instance = serde_json::to_value(unpack_content(&instance)).unwrap_or_default();
        let vm = serde_json::to_value(unpack_content(machine)).unwrap_or_default();
        let has_ended = ExistingVm::from_objects(&vm, Some(&instance)).has_failed;
        let (is_deletable, is_host_ready) = match MachineHost::of_instance(&instance) {
            None => (may_delete(removal, HostOfMachine::None), false),
            Some(host) => match self.nodes.get(&host.name) {
                None => (may_delete(removal, HostOfMachine::Deleted), false),
                Some(node) => (may_delete(removal, HostOfMachine::Node(&node)), is_ready(&node)),
            },
        };
        VmState { has_ended, is_host_lost: !is_deletable, is_host_ready }
    }

    pub(super) fn deployment_of(&self, machine: &DynamicObject) -> Option<Arc<DynamicObject>> {
        let name = machine.labels().get("md")?;
        let uid = owner_uid(machine)?;
        let is_owner = |object: &DynamicObject| object.metadata.uid.as_deref() == Some(uid);
        let namespace = machine.namespace().unwrap_or_default();
        let near = self.deployments.get(&namespace, name).filter(|object| is_owner(object));
        near.or_else(|| self.deployments.filter(is_owner).into_iter().next())
    }
}
