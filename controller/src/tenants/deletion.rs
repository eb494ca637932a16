//! In which order a tenant goes: machines, then its network on the hosts, then its VLAN or VNI, then its namespace.
//!
//! Nothing is remembered between steps. Each follows from what is still there, so a deletion that was cut short at any
//! moment goes on where it was.

use std::sync::Arc;

use berth_api::{ConditionReason, TenantCluster, TenantClusterSpec, TenantClusterStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::Value;

use super::fault::some_of;
use super::hosts::Host;
use super::ids::NetworkId;

/// A host whose agent is silent for so long is not waited for: it may be gone for good. What is still on it keeps its
/// VLAN through the quarantine.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(10);

/// A tenant's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// There is none.
    Absent,
    /// Berth made it.
    Ours,
    /// Berth made it, and it is being deleted.
    Going,
    /// Somebody else made it.
    NotOurs,
}

/// Something in the namespace that machines are made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine {
    /// Its kind, as `VirtualMachine`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Whether Berth made it.
    pub is_ours: bool,
    /// Whether it is being deleted.
    pub is_going: bool,
}

/// All that the next step follows from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The tenant.
    pub tenant: &'a TenantCluster,
    /// Its namespace.
    pub namespace: Namespace,
    /// What is in it.
    pub machines: &'a [Machine],
    /// Its claims that are not released, by name.
    pub claims: &'a [(String, NetworkId)],
    /// Berth's objects in it.
    pub objects: usize,
    /// The hosts.
    pub hosts: &'a [Arc<Host>],
    /// Now.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: something else has to happen.
    Wait,
    /// Delete these.
    DeleteMachines(Vec<Machine>),
    /// Take VLAN or VNI out of the status: hosts carry what stands there.
    TakeOffHosts,
    /// Begin the quarantine of these claims.
    Release(Vec<String>),
    /// Delete Berth's objects in a namespace that stays.
    DeleteObjects,
    /// Delete the namespace.
    DeleteNamespace,
    /// Take the finalizer away.
    Finish,
}

/// The next step, and what is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// What to do.
    pub action: Action,
    /// Reason of the condition.
    pub reason: ConditionReason,
    /// What it waits for.
    pub message: String,
}

/// A tenant as a server has it. Of one that cannot be read there are its metadata, and the VLAN or VNI that hosts carry: its
/// deletion needs no more.
#[must_use]
pub fn readable(object: &Value) -> Option<TenantCluster> {
    if let Ok(tenant) = serde_json::from_value(object.clone()) {
        return Some(tenant);
    }
    let mut tenant = TenantCluster::new("", TenantClusterSpec::default());
    tenant.metadata = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
    let field = |name: &str| object.pointer(&format!("/status/{name}")).cloned();
    tenant.status = Some(TenantClusterStatus {
        vlan: field("vlan").and_then(|vlan| serde_json::from_value(vlan).ok()),
        vni: field("vni").and_then(|vni| serde_json::from_value(vni).ok()),
        ..TenantClusterStatus::default()
    });
    Some(tenant)
}

/// Decides on the next step.
#[must_use]
pub fn next(view: View<'_>) -> Next {
    let step = |action, reason, message: String| Next { action, reason, message };
    if let Some(machines) = machines(view) {
        return machines;
    }
    let status = view.tenant.status.clone().unwrap_or_default();
    if status.vlan.is_some() || status.vni.is_some() {
        let id = NetworkId::of_status(&status);
        let id = id.map_or_else(|| "its network".to_owned(), |id| id.to_string());
        let message = format!("machines are gone; {id} is taken off the hosts");
        return step(Action::TakeOffHosts, ConditionReason::DeletingNetwork, message);
    }
    let (waiting, given_up) = hosts(view);
    if !waiting.is_empty() {
        let message = format!("network is to go off {}", some_of(&waiting));
        return step(Action::Wait, ConditionReason::DeletingNetwork, message);
    }
    let without = if given_up.is_empty() {
        String::new()
    } else {
        format!("; not waited for {}", some_of(&given_up))
    };
    if !view.claims.is_empty() {
        let names: Vec<String> = view.claims.iter().map(|(name, _)| name.clone()).collect();
        let message = format!("{} go into quarantine{without}", some_of(&names));
        return step(Action::Release(names), ConditionReason::ReleasingClaim, message);
    }
    let namespace = TenantCluster::namespace_of(&view.tenant.name_any());
    match view.namespace {
        Namespace::Ours => {
            let message = format!("namespace {namespace} is deleted{without}");
            step(Action::DeleteNamespace, ConditionReason::NamespaceTerminating, message)
        }
        Namespace::Going => {
            let message = format!("namespace {namespace} is being deleted{without}");
            step(Action::Wait, ConditionReason::NamespaceTerminating, message)
        }
        Namespace::NotOurs if view.objects > 0 => {
            let message = format!(
                "namespace {namespace} is not Berth's and stays; Berth's objects go{without}"
            );
            step(Action::DeleteObjects, ConditionReason::DeletingObjects, message)
        }
        Namespace::NotOurs | Namespace::Absent => {
            step(Action::Finish, ConditionReason::Deleted, format!("nothing is left{without}"))
        }
    }
}

/// In a namespace that somebody else made, only what Berth made is Berth's to delete.
fn machines(view: View<'_>) -> Option<Next> {
    if view.machines.is_empty() {
        return None;
    }
    let may = |machine: &&Machine| view.namespace != Namespace::NotOurs || machine.is_ours;
    let doomed: Vec<Machine> =
        view.machines.iter().filter(|machine| !machine.is_going && may(machine)).cloned().collect();
    let named = |machines: &mut dyn Iterator<Item = &Machine>| {
        some_of(&machines.map(|one| format!("{} {}", one.kind, one.name)).collect::<Vec<_>>())
    };
    let mut message = format!("machines go first: {}", named(&mut view.machines.iter()));
    let mut foreign = view.machines.iter().filter(|machine| !machine.is_going && !may(machine));
    let foreign = named(&mut foreign);
    if !foreign.is_empty() {
        message = format!("{message}; {foreign} are not Berth's, delete them");
    }
    let action = if doomed.is_empty() { Action::Wait } else { Action::DeleteMachines(doomed) };
    Some(Next { action, reason: ConditionReason::DeletingMachines, message })
}

/// The hosts that still have the network, and those that cannot be asked any more.
fn hosts(view: View<'_>) -> (Vec<String>, Vec<String>) {
    let namespace = TenantCluster::namespace_of(&view.tenant.name_any());
    let ids: Vec<NetworkId> = view.claims.iter().map(|(_, id)| *id).collect();
    let (mut waiting, mut given_up) = (Vec::new(), Vec::new());
    for host in view.hosts {
        if !host.carries(view.tenant) && !host.asked.contains_key(&namespace) {
            continue;
        }
        let Some(why) = host.why_still(&namespace, &ids) else { continue };
        let silent = host.silent_since.and_then(|since| since.checked_add(PATIENCE).ok());
        if host.labels.is_none() {
            given_up.push(format!("{} (its Node is gone)", host.name));
        } else if silent.is_some_and(|end| end <= view.now) {
            given_up.push(format!("{} (its agent is silent)", host.name));
        } else {
            waiting.push(format!("{} ({why})", host.name));
        }
    }
    (waiting, given_up)
}

#[cfg(test)]
#[path = "deletion_tests.rs"]
mod tests;
