//! Order of a tenant's deletion: machines, network on the hosts, VLAN or VNI, namespace.
//!
//! No state is stored between the steps. Each step is computed from the objects that exist, so an interrupted deletion
//! continues where it stopped.

use std::sync::Arc;

use berth_api::{ConditionReason, TenantCluster, TenantClusterSpec, TenantClusterStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::Value;

use super::fault::join_names_limited;
use super::hosts::TenantHostState;
use super::network_id::NetworkId;

/// Time for which an agent must be unresponsive before the deletion no longer waits for its host, because the host may
/// never return. The links of the host may then still carry the VLAN; the quarantine of the VLAN protects other
/// tenants.
pub const UNRESPONSIVE_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// State of a tenant's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceState {
    /// The namespace does not exist.
    Absent,
    /// Berth created the namespace.
    Owned,
    /// Berth created the namespace, and the namespace is being deleted.
    Terminating,
    /// Berth did not create the namespace, so Berth does not delete it.
    NotOwned,
}

/// An object in the tenant's namespace that is part of a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineObject {
    /// Kind of the object, such as `VirtualMachine`.
    pub kind: String,
    pub name: String,
    /// True if Berth created the object.
    pub is_owned: bool,
    /// True if the object is being deleted.
    pub is_deleting: bool,
}

/// State from which the next step of a tenant's deletion is computed.
#[derive(Clone, Copy, Debug)]
pub struct DeletionState<'a> {
    /// The tenant that is being deleted.
    pub tenant: &'a TenantCluster,
    /// State of the tenant's namespace.
    pub namespace: NamespaceState,
    /// Machines in the tenant's namespace.
    pub machines: &'a [MachineObject],
    /// Machines of other tenants that have addresses in the tenant's network, as namespace/name.
    pub attached_machines: &'a [String],
    /// Claims of the tenant that are not in quarantine: the name of each claim, and its VLAN or VNI.
    pub claims: &'a [(String, NetworkId)],
    /// Number of objects in the tenant's namespace that Berth created.
    pub object_count: usize,
    pub hosts: &'a [Arc<TenantHostState>],
    /// Current time.
    pub now: Timestamp,
}

/// Action of the controller in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionAction {
    /// Wait for another controller or for a host.
    Wait,
    /// Delete these machines.
    DeleteMachines(Vec<MachineObject>),
    /// Remove the VLAN or VNI from the tenant's status, so that hosts remove the tenant's network.
    ClearNetworkId,
    /// Start the quarantine of these claims.
    ReleaseClaims(Vec<String>),
    /// Delete the objects that Berth created in the tenant's namespace, because Berth does not delete this namespace.
    DeleteObjects,
    /// Delete the tenant's namespace.
    DeleteNamespace,
    /// Remove the finalizer from the tenant.
    RemoveFinalizer,
}

impl DeletionAction {
    /// Returns true if the action deletes data of the tenant: disks are deleted with their machines, and all volumes with the
    /// namespace.
    #[must_use]
    pub const fn destroys_data(&self) -> bool {
        matches!(self, Self::DeleteMachines(_) | Self::DeleteNamespace)
    }
}

/// A step of the deletion, and the condition that reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionStep {
    /// Action that the controller takes.
    pub action: DeletionAction,
    pub reason: ConditionReason,
    /// Message of the condition.
    pub message: String,
}

/// Parses a tenant. If its spec cannot be parsed, returns a tenant with only the metadata and those fields of the
/// status that its deletion needs.
#[must_use]
pub fn parse_lenient(object: &Value) -> Option<TenantCluster> {
    if let Ok(tenant) = serde_json::from_value(object.clone()) {
        return Some(tenant);
    }
    let mut tenant = TenantCluster::new("", TenantClusterSpec::default());
    tenant.metadata = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
    let field = |name: &str| object.pointer(&format!("/status/{name}")).cloned();
    tenant.status = Some(TenantClusterStatus {
        vlan: field("vlan").and_then(|vlan| serde_json::from_value(vlan).ok()),
        vni: field("vni").and_then(|vni| serde_json::from_value(vni).ok()),
        mtu: field("mtu").and_then(|mtu| serde_json::from_value(mtu).ok()),
        prefixes: field("prefixes")
            .and_then(|prefixes| serde_json::from_value(prefixes).ok())
            .unwrap_or_default(),
        ..TenantClusterStatus::default()
    });
    Some(tenant)
}

/// Returns the next step of a tenant's deletion.
#[must_use]
pub fn next_step(state: DeletionState<'_>) -> DeletionStep {
    let step = |action, reason, message: String| DeletionStep { action, reason, message };
    if let Some(machines) = machine_step(state) {
        return machines;
    }
    if !state.attached_machines.is_empty() {
        let message = format!(
            "waiting{} until the machines of other tenants in the tenant's network are deleted: {}; remove the network from \
             their MachineDeployments",
            since_deletion(state.tenant),
            join_names_limited(state.attached_machines)
        );
        return step(DeletionAction::Wait, ConditionReason::DeletingMachines, message);
    }
    let status = state.tenant.status.clone().unwrap_or_default();
    if status.vlan.is_some() || status.vni.is_some() {
        let id = NetworkId::from_status(&status);
        let id = id.map_or_else(|| "its network".to_owned(), |id| id.to_string());
        let message =
            format!("all machines are deleted; waiting until the hosts have removed {id}");
        return step(DeletionAction::ClearNetworkId, ConditionReason::DeletingNetwork, message);
    }
    let (waiting, given_up) = blocking_hosts(state);
    if !waiting.is_empty() {
        let message =
            format!("the tenant's network is still on hosts {}", join_names_limited(&waiting));
        return step(DeletionAction::Wait, ConditionReason::DeletingNetwork, message);
    }
    let given_up_note = if given_up.is_empty() {
        String::new()
    } else {
        format!("; no longer waiting for hosts {}", join_names_limited(&given_up))
    };
    if !state.claims.is_empty() {
        let names: Vec<String> = state.claims.iter().map(|(name, _)| name.clone()).collect();
        let message =
            format!("starting the quarantine of {}{given_up_note}", join_names_limited(&names));
        return step(
            DeletionAction::ReleaseClaims(names),
            ConditionReason::ReleasingClaim,
            message,
        );
    }
    let namespace = TenantCluster::namespace_of(&state.tenant.name_any());
    match state.namespace {
        NamespaceState::Owned => {
            let message = format!("deleting namespace {namespace}{given_up_note}");
            step(DeletionAction::DeleteNamespace, ConditionReason::NamespaceTerminating, message)
        }
        NamespaceState::Terminating => {
            let message = format!("waiting until namespace {namespace} is deleted{given_up_note}");
            step(DeletionAction::Wait, ConditionReason::NamespaceTerminating, message)
        }
        NamespaceState::NotOwned if state.object_count > 0 => {
            let message = format!(
                "namespace {namespace} was not created by Berth and stays; deleting Berth's objects in \
                 it{given_up_note}"
            );
            step(DeletionAction::DeleteObjects, ConditionReason::DeletingObjects, message)
        }
        NamespaceState::NotOwned | NamespaceState::Absent => step(
            DeletionAction::RemoveFinalizer,
            ConditionReason::Deleted,
            format!("all objects have been deleted{given_up_note}"),
        ),
    }
}

/// Returns the step that waits until an administrator has deleted objects with data, each as kind and name, that were created
/// in the namespace after its TenantRequest was deleted.
#[must_use]
pub fn remaining_data_step(tenant: &TenantCluster, data: &[String]) -> DeletionStep {
    let message = format!(
        "nothing in namespace {} is deleted, because objects were created in it during the deletion of the TenantRequest: {}; an \
         administrator deletes them",
        TenantCluster::namespace_of(&tenant.name_any()),
        join_names_limited(data)
    );
    let (action, reason) = (DeletionAction::Wait, ConditionReason::MachinesRemain);
    DeletionStep { action, reason, message }
}

/// Returns the step that waits for pods and VirtualMachines that are attached to the network of `tenant`, each as kind,
/// namespace and name. Their ports would otherwise be in the network of the tenant that gets the VLAN or VNI next.
#[must_use]
pub fn network_users_step(tenant: &TenantCluster, users: &[String]) -> DeletionStep {
    let message = format!(
        "waiting{} for objects that use the tenant's network without a MachineDeployment: {}; delete them, or remove the \
         network from them",
        since_deletion(tenant),
        join_names_limited(users)
    );
    let (action, reason) = (DeletionAction::Wait, ConditionReason::DeletingNetwork);
    DeletionStep { action, reason, message }
}

fn since_deletion(tenant: &TenantCluster) -> String {
    let since = tenant.metadata.deletion_timestamp.as_ref();
    since.map(|since| format!(" since {}", since.0)).unwrap_or_default()
}

/// Returns the step that deletes machines; `None` if there are no machines. In a namespace that Berth did not create,
/// only machines that Berth created are deleted.
fn machine_step(state: DeletionState<'_>) -> Option<DeletionStep> {
    if state.machines.is_empty() {
        return None;
    }
    let may_delete =
        |machine: &&MachineObject| state.namespace != NamespaceState::NotOwned || machine.is_owned;
    let to_delete: Vec<MachineObject> = state
        .machines
        .iter()
        .filter(|machine| !machine.is_deleting && may_delete(machine))
        .cloned()
        .collect();
    let named = |machines: &mut dyn Iterator<Item = &MachineObject>| {
        join_names_limited(
            &machines.map(|one| format!("{} {}", one.kind, one.name)).collect::<Vec<_>>(),
        )
    };
    let mut message = format!("deleting the machines first: {}", named(&mut state.machines.iter()));
    let mut foreign =
        state.machines.iter().filter(|machine| !machine.is_deleting && !may_delete(machine));
    let foreign = named(&mut foreign);
    if !foreign.is_empty() {
        message = format!("{message}; Berth did not create {foreign}: delete them");
    }
    let action = if to_delete.is_empty() {
        DeletionAction::Wait
    } else {
        DeletionAction::DeleteMachines(to_delete)
    };
    Some(DeletionStep { action, reason: ConditionReason::DeletingMachines, message })
}

/// Returns the hosts that still have the tenant's network, as two lists: those for which the deletion waits, and those
/// for which it no longer waits.
fn blocking_hosts(state: DeletionState<'_>) -> (Vec<String>, Vec<String>) {
    let namespace = TenantCluster::namespace_of(&state.tenant.name_any());
    let ids: Vec<NetworkId> = state.claims.iter().map(|(_, id)| *id).collect();
    let (mut waiting, mut given_up) = (Vec::new(), Vec::new());
    for host in state.hosts {
        if !host.carries(state.tenant) && !host.desired_networks.contains_key(&namespace) {
            continue;
        }
        let Some(reason) = host.removal_pending_reason(&namespace, &ids) else { continue };
        let timeout =
            host.unresponsive_since.and_then(|since| since.checked_add(UNRESPONSIVE_TIMEOUT).ok());
        if host.labels.is_none() {
            given_up.push(format!("{} (its Node does not exist)", host.name));
        } else if timeout.is_some_and(|end| end <= state.now) {
            given_up.push(format!("{} (its agent is unresponsive)", host.name));
        } else {
            waiting.push(format!("{} ({reason})", host.name));
        }
    }
    (waiting, given_up)
}

#[cfg(test)]
#[path = "deletion_tests.rs"]
mod tests;
