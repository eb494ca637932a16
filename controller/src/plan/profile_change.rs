//! Simulation of a HostProfile: the VMs that must leave their hosts for the change, and the hosts on which they fit
//! afterwards.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Problem;
use berth_placement::engine::{Engine, Reason, Request};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::{self, HostId};

use super::build::{PendingVm, Simulation};
use super::change_effect::FieldChange;
use super::drain::{is_unmanaged, named_obstacle};
use super::place::{Outcome, place};
use super::profile_hosts::{ChangedHost, ProfileChange, changed_hosts};
use super::unplaced::{UnplacedVm, explain};
use crate::evacuation::reason::ReplacementCause;
use crate::fleet::Fleet;

/// Result of the simulation.
#[derive(Clone, Debug, Default)]
pub struct ProfileResult {
    pub before: Outcome,
    pub after: Outcome,
    /// Hosts to which the profile is applied, with their changed fields.
    pub hosts: Vec<(String, Vec<FieldChange>)>,
    /// VMs that the change concerns.
    pub vms: Vec<VmOfChangedHost>,
    /// Reasons why parts of the profile are not applied.
    pub problems: Vec<Problem>,
}

/// A VM on a host that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmOfChangedHost {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Its host.
    pub host: String,
    pub departure: Departure,
    pub result: VmResult,
}

/// Way in which a VM leaves its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The VM continues to run on its host.
    Stays,
    /// Live migration.
    Migrated,
    /// The machine is replaced: its programs end.
    Replaced(ReplacementCause),
    /// Berth does not move the VM.
    NotManaged,
}

/// Host of a VM after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmResult {
    /// The VM fits on its host.
    SameHost,
    /// The VM does not fit on its host any more, but on this one.
    OtherHost(String),
    /// The VM fits on no host.
    NoHost,
    /// The VM continues to run on its host, which would not accept it again for this reason.
    NotAccepted(String),
    /// The VM continues to run on its host, and may lose its network for a time.
    NetworkInterrupted,
}

/// Simulates the change. The fleet has the hosts and profiles after the change then.
#[must_use]
pub fn simulate_profile(fleet: &mut Fleet, change: &ProfileChange) -> ProfileResult {
    let before = place(fleet);
    let (changed, problems) = changed_hosts(fleet, change);
    let mut simulation = Simulation::build(fleet, None);
    let mut moving = Vec::new();
    let mut accepted = BTreeSet::new();
    for host in &changed {
        let Some(id) = simulation.engine.host(&host.name) else { continue };
        let vms = vms_on_host(&simulation.engine, id);
        if host.needs_drain() {
            for request in vms {
                simulation.engine.remove_pod(request.uid());
                moving.push((id, request));
            }
        } else {
            let is_accepted =
                |request: &&Request| refusal(&simulation.engine, request, id).is_none();
            accepted.extend(vms.iter().filter(is_accepted).map(|request| request.uid().to_owned()));
        }
    }
    apply(fleet, &mut simulation, &changed, change);
    let mut placement = Replacement::new(fleet, &simulation);
    let mut vms = placement.staying_vms(&simulation, &changed, &accepted);
    // The largest VMs are placed first, as in a drain.
    moving.sort_by_key(|(_, request)| {
        (std::cmp::Reverse(request.pod().requests().cpu_millis), request.uid().to_owned())
    });
    for (host, request) in moving {
        vms.push(placement.place_again(fleet, &mut simulation, host, &request));
    }
    let unplaced = placement.unplaced;
    let mut after = Outcome::of(fleet, simulation, None);
    after.plan.unplaced.extend(unplaced);
    vms.sort_by(|a, b| (&a.host, &a.vm).cmp(&(&b.host, &b.vm)));
    let hosts = changed.into_iter().map(|host| (host.name, host.changes)).collect();
    ProfileResult { before, after, hosts, vms, problems }
}

/// Replaces the hosts in the fleet and in the engine by those after the change.
fn apply(
    fleet: &mut Fleet,
    simulation: &mut Simulation,
    changed: &[ChangedHost],
    change: &ProfileChange,
) {
    let name = change.profile.metadata.name.clone().unwrap_or_default();
    fleet.profiles.insert(name, change.profile.clone());
    for host in changed {
        fleet.infra_nodes.insert(host.name.clone(), host.infra.clone());
        fleet.nodes.insert(host.name.clone(), host.node.clone());
        // The problems of the report are known: the first build has reported them.
        let facts = ReportedHost::read(&host.infra, Some(&host.node), &mut Vec::new());
        if let Ok(facts) = facts {
            simulation.add_host(fleet, Ok(facts), true);
        }
    }
}

fn vms_on_host(engine: &Engine, host: HostId) -> Vec<Request> {
    let pods = engine.pods_on_host(host).filter(|request| request.vm_requirements().is_vm);
    pods.cloned().collect()
}

/// Returns the reason why a host would not accept a VM again that runs on it, without reasons that the VM itself causes.
fn refusal(engine: &Engine, request: &Request, host: HostId) -> Option<Reason> {
    engine.rejection_reasons(request, host).into_iter().find(|reason| {
        matches!(
            reason,
            Reason::MergesPages
                | Reason::NoStaticCpuPolicy
                | Reason::Rule(
                    rules::Reason::NodeSelector { .. } | rules::Reason::NodeAffinity { .. }
                )
        )
    })
}

/// Placement of the VMs of changed hosts.
struct Replacement {
    /// Reasons why VMs cannot be migrated, by namespace and name.
    obstacles: BTreeMap<String, String>,
    /// Namespaces and names of the VMs that Berth does not move.
    unmanaged: BTreeSet<String>,
    /// Namespaces and names of the VMs by UID of the pod.
    names: BTreeMap<String, String>,
    unplaced: Vec<UnplacedVm>,
}

impl Replacement {
    fn new(fleet: &Fleet, simulation: &Simulation) -> Self {
        let obstacles = fleet.machines.iter().filter_map(|one| named_obstacle(one));
        let unmanaged = fleet.machines.iter().filter(|one| is_unmanaged(one));
        Self {
            obstacles: obstacles.map(|(vm, message)| (vm, message.to_owned())).collect(),
            unmanaged: unmanaged.map(|one| one.qualified_name()).collect(),
            names: simulation.pod_names.clone(),
            unplaced: Vec::new(),
        }
    }

    fn name(&self, request: &Request) -> String {
        self.names.get(request.uid()).cloned().unwrap_or_else(|| request.uid().to_owned())
    }

    /// Returns the VMs that stay on a changed host that would not accept them again, or interrupts their network. `accepted`
    /// has the UIDs of those that the host would have accepted before the change.
    fn staying_vms(
        &self,
        simulation: &Simulation,
        changed: &[ChangedHost],
        accepted: &BTreeSet<String>,
    ) -> Vec<VmOfChangedHost> {
        let engine = &simulation.engine;
        let mut vms = Vec::new();
        for host in changed.iter().filter(|host| !host.needs_drain()) {
            let Some(id) = engine.host(&host.name) else { continue };
            for request in vms_on_host(engine, id) {
                let is_known = accepted.contains(request.uid());
                let reason = refusal(engine, &request, id).filter(|_| is_known);
                let result = match reason {
                    Some(reason) => VmResult::NotAccepted(reason.to_string()),
                    None if host.interrupts_network() => VmResult::NetworkInterrupted,
                    None => continue,
                };
                vms.push(VmOfChangedHost {
                    vm: self.name(&request),
                    host: host.name.clone(),
                    departure: Departure::Stays,
                    result,
                });
            }
        }
        vms
    }

    /// Places a VM that has left its host for the change: on its host if it fits there, otherwise on another one.
    fn place_again(
        &mut self,
        fleet: &Fleet,
        simulation: &mut Simulation,
        host: HostId,
        request: &Request,
    ) -> VmOfChangedHost {
        let vm = self.name(request);
        let engine = &mut simulation.engine;
        let result = if engine.place_pod(request, Some(&[host])).is_some() {
            VmResult::SameHost
        } else if let Some(other) = engine.place_pod(request, None) {
            let other = engine.reported_host(other).map(|facts| facts.name.clone());
            VmResult::OtherHost(other.unwrap_or_default())
        } else {
            let pending = PendingVm { name: vm.clone(), request: request.clone() };
            self.unplaced.push(explain(fleet, engine, &pending, None));
            VmResult::NoHost
        };
        let departure = match self.obstacles.get(&vm) {
            _ if self.unmanaged.contains(&vm) => Departure::NotManaged,
            Some(obstacle) => {
                Departure::Replaced(ReplacementCause::NotMigratable(obstacle.clone()))
            }
            None => Departure::Migrated,
        };
        let host = engine.reported_host(host).map(|facts| facts.name.clone()).unwrap_or_default();
        VmOfChangedHost { vm, host, departure, result }
    }
}

#[cfg(test)]
#[path = "profile_change_tests.rs"]
mod tests;
