//! Checks whether a host can be drained: each VM on the host is moved to another host, one VM at a time, as in a live
//! migration or by a replacement that is created first.

use std::collections::{BTreeMap, BTreeSet};

use berth_extender::MigrationTarget;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::build::{PendingVm, Simulation};
use super::drain_decisions::{DrainDecision, forecast};
use super::unplaced::{UnplacedVm, explain};
use crate::evacuation::reason::ReplacementCause;
use crate::fleet::{Fleet, FleetMachine};

/// Result of the drain check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainResult {
    /// Name of the host.
    pub host: String,
    /// True if the input contains the host.
    pub is_known: bool,
    /// VMs that can be migrated, with their target hosts.
    #[serde(rename = "moved")]
    pub moved_vms: Vec<MovedVm>,
    /// VMs that cannot be migrated, with the hosts on which replacements fit.
    #[serde(rename = "replaced")]
    pub replaced_vms: Vec<ReplacedVm>,
    /// VMs that Berth does not move, because they belong to no MachineDeployment that it reconciles, with hosts on
    /// which they fit. The controller reports the reason `NotManaged` for them.
    #[serde(rename = "notManaged")]
    pub unmanaged_vms: Vec<MovedVm>,
    /// First reason that the controller would report for each VM that it replaces or cannot move.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DrainDecision>,
    /// VMs that fit on no other host, and the reasons.
    #[serde(rename = "stuck")]
    pub blocked_vms: Vec<BlockedVm>,
    /// Pods in the host's report that the input does not contain: the name or, if the report has no name, the UID.
    #[serde(rename = "unknown")]
    pub unknown_pods: Vec<String>,
}

/// A VM that can be moved to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedVm {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Target host of the VM.
    pub host: String,
}

/// A VM that cannot be migrated. Another host has enough resources for its replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplacedVm {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Host of the replacement.
    pub host: String,
    /// The reason that the controller reports while the host is drained.
    pub reason: ReplacementCause,
}

/// A VM that fits on no other host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockedVm {
    /// The reason that the controller reports while the host is drained.
    pub reason: ReplacementCause,
    /// The VM, and the reasons of all other hosts.
    #[serde(flatten)]
    pub unplaced: UnplacedVm,
}

impl DrainResult {
    /// Returns true if the host can be drained. For VMs that Berth does not move, it suffices that they fit.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.is_known
            && self.blocked_vms.is_empty()
            && self.unknown_pods.is_empty()
            && !self.decisions.iter().any(|decision| decision.is_blocked)
    }
}

/// Moves the VMs of a host to other hosts in the simulation, and returns the result of the drain check.
pub(super) fn simulate_drain(
    fleet: &Fleet,
    simulation: &mut Simulation,
    name: &str,
    now: Timestamp,
) -> DrainResult {
    let mut drain = DrainResult { host: name.to_owned(), ..DrainResult::default() };
    let Some(from) = simulation.engine.host(name) else { return drain };
    drain.is_known = true;
    let reported = simulation
        .engine
        .reported_host(from)
        .map(|facts| facts.allocations.clone())
        .unwrap_or_default();
    for allocation in reported {
        if simulation.engine.host_of_pod(&allocation.uid).is_none() {
            drain.unknown_pods.push(allocation.name.unwrap_or(allocation.uid));
        }
    }
    let mut vms_to_move: Vec<_> = simulation
        .engine
        .pods_on_host(from)
        .filter(|request| request.vm_requirements().is_vm)
        .cloned()
        .collect();
    // The largest VMs are moved first, because the fewest hosts have enough resources for them.
    vms_to_move.sort_by_key(|request| {
        (std::cmp::Reverse(request.pod().requests().cpu_millis), request.uid().to_owned())
    });
    let obstacles: BTreeMap<String, &str> =
        fleet.machines.iter().filter_map(|one| named_obstacle(one)).collect();
    let unmanaged: BTreeSet<String> = fleet
        .machines
        .iter()
        .filter(|one| is_unmanaged(one))
        .map(|one| one.qualified_name())
        .collect();
    let mut targets = BTreeMap::new();
    for request in vms_to_move {
        let uid = request.uid().to_owned();
        let vm = simulation.pod_names.get(&uid).cloned().unwrap_or_else(|| uid.clone());
        // During the migration the VM is on both hosts: its source pod still counts for all rules about other pods.
        let target = request.with_uid(&format!("{uid}/target"));
        let others: Vec<_> =
            simulation.engine.hosts().map(|(id, _)| id).filter(|id| *id != from).collect();
        let obstacle = obstacles.get(&vm);
        let obstacle = obstacle.map(|&message| ReplacementCause::NotMigratable(message.to_owned()));
        match simulation.engine.place_pod(&target, Some(&others)) {
            Some(host) => {
                simulation.engine.remove_pod(&uid);
                let host = simulation.engine.reported_host(host).map(|facts| facts.name.clone());
                let host = host.unwrap_or_default();
                targets.insert(vm.clone(), MigrationTarget::Host(host.clone()));
                match obstacle {
                    _ if unmanaged.contains(&vm) => drain.unmanaged_vms.push(MovedVm { vm, host }),
                    None => drain.moved_vms.push(MovedVm { vm, host }),
                    Some(reason) => drain.replaced_vms.push(ReplacedVm { vm, host, reason }),
                }
            }
            None => {
                let pending = PendingVm { name: vm.clone(), request: target };
                let unplaced = explain(fleet, &simulation.engine, &pending, Some(from));
                let refusals = unplaced.refusals.iter();
                let refusals: Vec<(String, usize)> =
                    refusals.map(|one| (one.reason.clone(), one.hosts)).collect();
                targets.insert(vm, MigrationTarget::NoHost(refusals.clone()));
                let reason = obstacle.unwrap_or(ReplacementCause::NoHostFits(refusals));
                drain.blocked_vms.push(BlockedVm { reason, unplaced });
            }
        }
    }
    drain.decisions = forecast(fleet, name, targets, now);
    drain
}

/// Returns the name of a machine, and the reason why Berth cannot migrate it; `None` if there is no such reason.
fn named_obstacle(machine: &FleetMachine) -> Option<(String, &str)> {
    let message = machine.migration_obstacle.as_deref()?;
    Some((machine.qualified_name(), message))
}

const fn is_unmanaged(machine: &FleetMachine) -> bool {
    machine.is_external && !machine.has_deployment
}
