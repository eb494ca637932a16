//! Hosts to which a HostProfile would be applied, with their spec, report and Node after the change. The spec is the one that
//! the controller would apply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_api::{HostProfile, InfraNode, InfraNodeSpec, Problem};
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use super::change_effect::{ChangeEffect, FieldChange};
use super::profile_effects::apply_spec;
use super::schedulable::make_schedulable;
use crate::fleet::Fleet;
use crate::managed_fields::fields_applied_by;
use crate::profiles::{
    HostObjects, ResolvedProfiles, Selection, desired_infra_node, ineligibility_reason,
    profile_labels,
};

/// A HostProfile that is created, or replaces the one with its name.
#[derive(Clone, Debug)]
pub struct ProfileChange {
    pub profile: HostProfile,
    /// Hosts whose Nodes get the labels that the profile selects. If empty, the Nodes keep their labels.
    pub hosts: BTreeSet<String>,
}

/// A host after the change.
#[derive(Clone, Debug)]
pub(super) struct ChangedHost {
    pub(super) name: String,
    pub(super) infra: InfraNode,
    pub(super) node: Node,
    pub(super) changes: Vec<FieldChange>,
}

impl ChangedHost {
    /// Returns true if its VMs must leave the host for the change.
    pub(super) fn needs_drain(&self) -> bool {
        self.changes.iter().any(|change| change.effect.needs_empty_host())
    }

    /// Returns true if VMs that stay on the host may lose their network for a time.
    pub(super) fn interrupts_network(&self) -> bool {
        self.changes.iter().any(|change| change.effect == ChangeEffect::InterruptsNetwork)
    }
}

/// Returns the hosts that the change concerns, and the reasons why parts of the profile are not applied.
pub(super) fn changed_hosts(
    fleet: &Fleet,
    change: &ProfileChange,
) -> (Vec<ChangedHost>, Vec<Problem>) {
    let name = change.profile.metadata.name.clone().unwrap_or_default();
    let object = format!("HostProfile {name}");
    let mut problems = Vec::new();
    if let Some(reason) = ineligibility_reason(&change.profile) {
        problems.push(Problem::new(&object, "", "", reason));
    }
    for host in &change.hosts {
        if !fleet.infra_nodes.contains_key(host) || !fleet.nodes.contains_key(host) {
            let message = "has no InfraNode or no Node, and is left out";
            problems.push(Problem::new(format!("Node {host}"), "", "", message));
        }
    }
    let before = resolve(fleet, fleet.profiles.values().cloned(), &current_nodes(fleet));
    let mut profiles = fleet.profiles.clone();
    profiles.insert(name.clone(), change.profile.clone());
    let nodes = labelled_nodes(fleet, change);
    let after = resolve(fleet, profiles.into_values(), &nodes);
    let mut changed = Vec::new();
    for (host, infra) in &fleet.infra_nodes {
        let Some(node) = nodes.get(host) else { continue };
        let is_chosen = change.hosts.contains(host);
        match after.selection(host) {
            Selection::One(profile) if is_named(profile, &name) => {
                let class = class_change(before.selection(host), profile);
                let mut one = change_host(&after, host, infra, node, &mut problems);
                one.changes.extend(class);
                one.node.metadata.labels.get_or_insert_default().extend(profile_labels(profile));
                changed.push(one);
            }
            Selection::One(other) if is_chosen => {
                let other = other.metadata.name.clone().unwrap_or_default();
                let message =
                    format!("HostProfile {other} has a higher priority and applies to {host}");
                problems.push(Problem::new(
                    &object,
                    "spec.priority",
                    change.profile.spec.priority,
                    message,
                ));
            }
            Selection::Tie(others) if others.iter().any(|other| is_named(other, &name)) => {
                let others: Vec<&str> =
                    others.iter().filter_map(|other| other.metadata.name.as_deref()).collect();
                let message = format!(
                    "the profiles {} have the same priority: none is applied to {host}",
                    others.join(", ")
                );
                problems.push(Problem::new(
                    &object,
                    "spec.priority",
                    change.profile.spec.priority,
                    message,
                ));
            }
            // Without the profile, the host keeps its state, but not its class.
            _ if matches!(before.selection(host), Selection::One(old) if is_named(old, &name)) => {
                let (name, infra, node) = (host.clone(), infra.clone(), node.clone());
                changed.push(ChangedHost { name, infra, node, changes: Vec::new() });
            }
            _ => {}
        }
    }
    (changed, problems)
}

fn is_named(profile: &HostProfile, name: &str) -> bool {
    profile.metadata.name.as_deref() == Some(name)
}

fn current_nodes(fleet: &Fleet) -> BTreeMap<&String, Node> {
    let nodes = fleet.nodes.iter().filter(|(name, _)| fleet.infra_nodes.contains_key(*name));
    nodes.map(|(name, node)| (name, node.clone())).collect()
}

/// Returns the Nodes of hosts. Those of the change have the labels that the profile selects.
fn labelled_nodes<'f>(fleet: &'f Fleet, change: &ProfileChange) -> BTreeMap<&'f String, Node> {
    let mut nodes = current_nodes(fleet);
    for (name, node) in &mut nodes {
        if change.hosts.contains(*name) {
            let labels = node.metadata.labels.get_or_insert_default();
            labels.extend(change.profile.spec.node_selector.clone());
        }
    }
    nodes
}

fn resolve(
    fleet: &Fleet,
    profiles: impl Iterator<Item = HostProfile>,
    nodes: &BTreeMap<&String, Node>,
) -> ResolvedProfiles {
    let profiles: Vec<Arc<HostProfile>> = profiles.map(Arc::new).collect();
    let hosts = nodes
        .iter()
        .map(|(name, node)| HostObjects { node, infra_node: fleet.infra_nodes.get(*name) });
    ResolvedProfiles::new(&profiles, hosts)
}

fn class_change(before: &Selection, profile: &HostProfile) -> Option<FieldChange> {
    let old = match before {
        Selection::One(old) => old.spec.class,
        Selection::None | Selection::Tie(_) => berth_api::Class::default(),
    };
    (old != profile.spec.class).then(|| FieldChange {
        field: "class",
        before: format!("{old:?}"),
        after: format!("{:?}", profile.spec.class),
        effect: ChangeEffect::Immediate,
        note: "VMs of this class are preferably placed on the host; VMs that run stay".to_owned(),
    })
}

fn change_host(
    resolved: &ResolvedProfiles,
    name: &str,
    infra: &InfraNode,
    node: &Node,
    problems: &mut Vec<Problem>,
) -> ChangedHost {
    let mut changed = ChangedHost {
        name: name.to_owned(),
        infra: infra.clone(),
        node: node.clone(),
        changes: Vec::new(),
    };
    let object = format!("InfraNode {name}");
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let Some(desired) = desired_infra_node(resolved, &labels, infra, &[], &BTreeSet::new()) else {
        return changed;
    };
    let mut report = |field: &str, message: String| {
        problems.push(Problem::new(&object, field, "", message));
    };
    for (field, manager) in &desired.overridden {
        let message = format!("belongs to {manager}, and keeps its value");
        report(&format!("spec.{field}"), message);
    }
    for reason in desired.incomplete {
        report("spec.networks", reason);
    }
    let overridden = desired.overridden.keys().map(String::as_str);
    match applied_spec(infra, desired.spec, overridden) {
        Ok(spec) => {
            changed.changes = apply_spec(&mut changed.infra, &mut changed.node, &spec);
        }
        Err(error) => report("spec", format!("would be invalid with the profile: {error}")),
    }
    if changed.needs_drain() {
        leave_host(&mut changed);
    }
    changed
}

/// Returns the spec after the controller has applied `desired`: fields of other managers stay, and fields that the
/// controller applied before and that are missing now are removed. The networks of tenants do not change.
fn applied_spec<'p>(
    infra: &InfraNode,
    desired: Value,
    overridden: impl Iterator<Item = &'p str>,
) -> Result<InfraNodeSpec, serde_json::Error> {
    let live = serde_json::to_value(&infra.spec)?;
    let kept: BTreeSet<&str> = overridden.map(first_field).collect();
    let entries = infra.metadata.managed_fields.as_deref().unwrap_or_default();
    let ours = fields_applied_by(entries, CONTROLLER_FIELD_MANAGER, "spec").extract(&live);
    let mut spec = live.as_object().cloned().unwrap_or_default();
    let stays = |field: &str| kept.contains(field) || field == "tenantNetworks";
    for field in ours.as_object().into_iter().flat_map(|fields| fields.keys()) {
        if !stays(field) {
            spec.remove(field);
        }
    }
    if let Value::Object(fields) = desired {
        spec.extend(fields.into_iter().filter(|(field, _)| !stays(field)));
    }
    serde_json::from_value(Value::Object(spec))
}

/// Returns the first field of a path such as `cpu.reserved` or `networks[trunk].mtu`.
fn first_field(path: &str) -> &str {
    path.split(['.', '[']).next().unwrap_or_default()
}

/// Removes what the report and the Node have because of the VMs of the host, and because of the drain.
fn leave_host(host: &mut ChangedHost) {
    if let Some(status) = &mut host.infra.status {
        status.allocations.clear();
        for zone in &mut status.zones {
            zone.pinned_cpus = None;
            zone.hugepages.iter_mut().for_each(|pool| pool.free = Some(pool.total));
        }
    }
    make_schedulable(&mut host.node);
}
