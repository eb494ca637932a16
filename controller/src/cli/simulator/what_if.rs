//! Simulated changes of the web console: the engine of `kubectl berth what-if`, before and after a change.

use std::collections::BTreeSet;

use berth_api::HostProfile;
use berth_console::{
    HostAfterChange, Interruption, InterruptionKind, MachineNumbers, SimulationError, WhatIfReport,
};

use super::comparison::{compare, host_change, profile_interruption};
use crate::fleet::{Fleet, FleetItem, InputObject};
use crate::plan::{ProfileChange, place, place_with_copies, simulate_profile};

/// Adds copies of a host, without VMs.
pub(super) fn add_hosts(
    fleet: &Fleet,
    host: &str,
    count: u32,
) -> Result<WhatIfReport, SimulationError> {
    if !fleet.infra_nodes.contains_key(host) {
        return Err(SimulationError::Unknown("the agent of the host does not report"));
    }
    let before = place(fleet);
    Ok(compare(&before, place_with_copies(fleet, host, count)))
}

/// Adds the machines of a MachineDeployment.
pub(super) fn add_machines(
    mut fleet: Fleet,
    found: InputObject,
) -> Result<WhatIfReport, SimulationError> {
    let before = place(&fleet);
    let known_problems = fleet.problems.len();
    fleet.add_deployment(FleetItem::from_input(found));
    let Some(numbers) = fleet.machine_counts.last() else {
        return Err(SimulationError::Invalid(fleet.problems.split_off(known_problems)));
    };
    let numbers = MachineNumbers {
        deployment: numbers.machine_deployment.clone(),
        desired: numbers.desired,
        existing: numbers.existing,
    };
    let mut report = compare(&before, place(&fleet));
    add_existing_machines(&fleet, &numbers, &mut report);
    report.machines = Some(numbers);
    Ok(report)
}

/// Adds the existing machines of the MachineDeployment that the controller would remove or replace.
fn add_existing_machines(fleet: &Fleet, numbers: &MachineNumbers, report: &mut WhatIfReport) {
    let Some(deployment) = fleet.deployments.last() else { return };
    let (name, namespace) = (&deployment.metadata.name, &deployment.metadata.namespace);
    if numbers.desired < numbers.existing {
        report.notes.push(format!(
            "{} of {} machines would be removed: their programs end",
            numbers.existing - numbers.desired,
            numbers.existing
        ));
    }
    // Names are NAME-REVISION-SUFFIX. Machines with other names were adopted, and are not replaced.
    let is_outdated = |machine: &str| {
        let rest = machine.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('-'));
        let revision = rest.and_then(|rest| rest.split_once('-')).map(|(revision, _)| revision);
        let revision = revision.filter(|one| one.len() == deployment.revision().len());
        revision.is_some_and(|revision| !deployment.has_revision(revision))
    };
    let outdated: Vec<Interruption> = fleet
        .machines
        .iter()
        .filter(|one| one.machine.namespace == *namespace)
        .filter(|one| one.drain.deployment.as_ref() == Some(name))
        .filter(|one| is_outdated(&one.machine.name))
        .map(|one| Interruption {
            vm: one.qualified_name(),
            host: one.host.clone().unwrap_or_default(),
            kind: InterruptionKind::Replaced,
            reason: "the template of the MachineDeployment differs from that of the machine"
                .to_owned(),
            after: HostAfterChange::NotSimulated,
        })
        .collect();
    let strategy = deployment.spec.strategy.as_ref();
    let is_on_delete = strategy.is_some_and(|strategy| strategy.strategy_type == "OnDelete");
    if deployment.spec.paused || is_on_delete {
        if !outdated.is_empty() {
            report.notes.push(format!(
                "{} machines keep their template until they are deleted: the MachineDeployment is paused, or has the strategy OnDelete",
                outdated.len()
            ));
        }
    } else {
        report.interruptions.extend(outdated);
    }
}

/// Applies a HostProfile.
pub(super) fn change_profile(
    mut fleet: Fleet,
    profile: HostProfile,
    hosts: BTreeSet<String>,
) -> WhatIfReport {
    let result = simulate_profile(&mut fleet, &ProfileChange { profile, hosts });
    let mut report = compare(&result.before, result.after);
    report.interruptions = result.vms.into_iter().map(profile_interruption).collect();
    if result.hosts.is_empty() {
        report.notes.push("The profile is applied to no host.".to_owned());
    }
    for (host, changes) in result.hosts {
        report.changes.extend(changes.into_iter().map(|change| host_change(&host, change)));
    }
    let problems = result.problems.iter().map(ToString::to_string);
    report.problems = problems.chain(report.problems).collect();
    report
}

#[cfg(test)]
#[path = "what_if_tests.rs"]
mod tests;
