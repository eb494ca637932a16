//! Effects of a changed spec on the report of a host: the report that its agent and its Node would have after the change.
//! The configuration of the kubelet is assumed to stay, except for the reserved CPUs.

use berth_api::infra_node::{CpuSpec, KsmMode, KsmSpec, KubeletMode, NetworkSpec};
use berth_api::{InfraNode, InfraNodeSpec, InfraNodeStatus};
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

use super::allocatable::add_cpus;
use super::change_effect::{ChangeEffect, Effect, FieldChange};
use super::pool_effects::change_pools;
use super::reserved_cores::reserved_cpus;

/// Changes the spec of a host, and its report and its Node as far as the effects are known. Returns the changed fields.
pub(super) fn apply_spec(
    infra: &mut InfraNode,
    node: &mut Node,
    desired: &InfraNodeSpec,
) -> Vec<FieldChange> {
    let live = std::mem::replace(&mut infra.spec, desired.clone());
    let mut changes = Vec::new();
    let Some(status) = infra.status.as_mut() else { return changes };
    if live.profile != desired.profile {
        let effect = (ChangeEffect::Immediate, String::new());
        changes.push(change("profile", &live.profile, &desired.profile, effect));
    }
    if live.cpu != desired.cpu {
        let effect = change_cpus(status, node, live.cpu.as_ref(), desired.cpu.as_ref());
        changes.push(change("cpu", &live.cpu, &desired.cpu, effect));
    }
    if live.hugepages != desired.hugepages {
        let effect = change_pools(status, node, &live.hugepages, &desired.hugepages);
        changes.push(change("hugepages", &live.hugepages, &desired.hugepages, effect));
    }
    if live.ksm != desired.ksm {
        let effect = change_ksm(status, desired.ksm.as_ref());
        changes.push(change("ksm", &live.ksm, &desired.ksm, effect));
    }
    if live.transparent_hugepages != desired.transparent_hugepages {
        let (before, after) = (&live.transparent_hugepages, &desired.transparent_hugepages);
        let effect = (ChangeEffect::Immediate, String::new());
        changes.push(change("transparentHugepages", before, after, effect));
    }
    if live.devices != desired.devices {
        let note = "the agent binds only functions that are not in use; the devices of VMs are not simulated";
        let effect = (ChangeEffect::Unknown, note.to_owned());
        changes.push(change("devices", &live.devices, &desired.devices, effect));
    }
    if live.networks != desired.networks {
        let effect = change_networks(&live.networks, &desired.networks);
        changes.push(change("networks", &live.networks, &desired.networks, effect));
    }
    changes
}

/// Returns a change with both values as JSON.
fn change<T: Serialize>(
    field: &'static str,
    before: &T,
    after: &T,
    (effect, note): Effect,
) -> FieldChange {
    let text = |value: &T| match serde_json::to_string(value).unwrap_or_default() {
        text if text == "null" || text == "[]" => String::new(),
        text => text,
    };
    FieldChange { field, before: text(before), after: text(after), effect, note }
}

fn change_cpus(
    status: &mut InfraNodeStatus,
    node: &mut Node,
    live: Option<&CpuSpec>,
    desired: Option<&CpuSpec>,
) -> Effect {
    let reservation = |cpu: Option<&CpuSpec>| cpu.and_then(|cpu| cpu.reserved.clone());
    if reservation(live) == reservation(desired) {
        return (ChangeEffect::Immediate, "the reserved CPUs stay".to_owned());
    }
    let Some(desired) = desired.filter(|cpu| cpu.reserved.is_some()) else {
        return (ChangeEffect::Unknown, "the agent restores the original values".to_owned());
    };
    if desired.kubelet == Some(KubeletMode::Ignore) {
        let note = "the kubelet keeps its reserved CPUs (kubelet: Ignore)";
        return (ChangeEffect::Immediate, note.to_owned());
    }
    let reserved = desired.reserved.as_ref().map(|reserved| reserved_cpus(status, reserved));
    let cpus = match reserved {
        Some(Ok(cpus)) => cpus,
        Some(Err(error)) => return (ChangeEffect::Unknown, error.to_string()),
        None => return (ChangeEffect::Immediate, String::new()),
    };
    let kubelet = status.capabilities.kubelet.get_or_insert_default();
    let before = kubelet.reserved_system_cpus.replace(cpus.clone()).unwrap_or_default();
    if before == cpus {
        let note = format!("the kubelet already reserves the CPUs {cpus}");
        return (ChangeEffect::Immediate, note);
    }
    for zone in &mut status.zones {
        let Some(all) = &zone.cpus else { continue };
        zone.reserved_cpus = Some(all.intersection(&cpus));
        zone.pinnable_cpus = zone.pinnable_cpus.is_some().then(|| all.difference(&cpus));
    }
    let count = |cpus: &berth_api::CpuSet| i128::try_from(cpus.len()).unwrap_or_default();
    add_cpus(node, count(&before) - count(&cpus));
    (ChangeEffect::AfterDrain, format!("the kubelet reserves the CPUs {cpus}; before: {before}"))
}

/// KSM with the mode Auto counts as running, because it runs when memory is short.
fn change_ksm(status: &mut InfraNodeStatus, desired: Option<&KsmSpec>) -> Effect {
    let is_running = match desired.map(|ksm| ksm.mode) {
        None => {
            return (ChangeEffect::Unknown, "the agent restores the original value".to_owned());
        }
        Some(KsmMode::Observe) => return (ChangeEffect::Immediate, String::new()),
        Some(KsmMode::Off) => false,
        Some(KsmMode::On | KsmMode::Auto) => true,
    };
    status.capabilities.memory.ksm.get_or_insert_default().running = Some(is_running);
    let note = match is_running {
        true => "the kernel merges equal pages of VMs, also of VMs that run on the host",
        false => "the kernel stops merging pages",
    };
    (ChangeEffect::Immediate, note.to_owned())
}

fn change_networks(live: &[NetworkSpec], desired: &[NetworkSpec]) -> Effect {
    let changed = live.iter().filter_map(|old| {
        let new = desired.iter().find(|new| new.name == old.name);
        new.is_none_or(|new| has_other_links(old, new)).then_some((old, new))
    });
    let changed: Vec<_> = changed.collect();
    let names: Vec<&str> = changed.iter().map(|(old, _)| old.name.as_str()).collect();
    let names = names.join(", ");
    let may_interrupt =
        |new: Option<&NetworkSpec>| new.is_some_and(|new| new.allow_disruption == Some(true));
    if names.is_empty() {
        (ChangeEffect::Immediate, "the links of VMs stay".to_owned())
    } else if changed.iter().any(|(_, new)| may_interrupt(*new)) {
        let note =
            format!("links of the networks {names} are created again (allowDisruption: true)");
        (ChangeEffect::InterruptsNetwork, note)
    } else {
        (
            ChangeEffect::AfterLastVm,
            format!("links of the networks {names} are removed or created again"),
        )
    }
}

/// Returns true if the agent removes the links of a network, or creates them again.
fn has_other_links(old: &NetworkSpec, new: &NetworkSpec) -> bool {
    let tunnel = |network: &NetworkSpec| {
        network.vxlan.as_ref().map(|vxlan| (vxlan.port, vxlan.local_address))
    };
    old.uplink != new.uplink
        || old.scenario != new.scenario
        || old.bridge != new.bridge
        || tunnel(old) != tunnel(new)
}

#[cfg(test)]
#[path = "profile_effects_tests.rs"]
mod tests;
