//! Placement of the pending VMs, and the state of all hosts after it.

use std::collections::BTreeMap;

use berth_api::infra_node::Zone;
use berth_api::{CpuSet, InfraNode};
use berth_kubelet_admission::{CpuPolicy, HostState};
use berth_placement::inventory::ReportedHost;

use super::add::HostAddition;
use super::build::Simulation;
use super::result::Plan;
use super::{spread, unplaced, usage};
use crate::fleet::Fleet;

/// State of a fleet after the placement of its pending VMs, to compare the states before and after a change.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub plan: Plan,
    /// Zones of each host, by name. `pinned_cpus` are those after the placement.
    pub zones: BTreeMap<String, Vec<Zone>>,
}

/// Places the pending VMs.
#[must_use]
pub fn place(fleet: &Fleet) -> Outcome {
    Outcome::of(fleet, Simulation::build(fleet, None), None)
}

/// Places the pending VMs with additional copies of a host. `name` is the name of its InfraNode.
#[must_use]
pub fn place_with_copies(fleet: &Fleet, name: &str, count: u32) -> Outcome {
    let simulation = Simulation::build(fleet, Some(HostAddition { count, name }));
    Outcome::of(fleet, simulation, fleet.infra_nodes.get(name))
}

impl Outcome {
    /// Places the pending VMs. `copied` is the host whose copies the fleet does not contain.
    pub(super) fn of(
        fleet: &Fleet,
        mut simulation: Simulation,
        copied: Option<&InfraNode>,
    ) -> Self {
        let mut plan = place_pending(fleet, &mut simulation);
        complete(&mut plan, &mut simulation);
        let engine = &simulation.engine;
        let zones = engine.hosts().map(|(id, facts)| {
            let infra = fleet.infra_nodes.get(&facts.name).or(copied);
            let status = infra.and_then(|infra| infra.status.as_ref());
            let reported = status.map(|status| status.zones.as_slice()).unwrap_or_default();
            (facts.name.clone(), zones_with_use(reported, facts, engine.kubelet_state(id)))
        });
        Self { zones: zones.collect(), plan }
    }
}

/// Places the pending VMs, and explains those that fit on no host.
pub(super) fn place_pending(fleet: &Fleet, simulation: &mut Simulation) -> Plan {
    let mut plan = Plan {
        running_count: simulation.running_count,
        stopped_count: simulation.stopped_count,
        ignored: fleet.ignored_counts.clone(),
        tenants: fleet.tenants.clone(),
        machine_deployments: fleet.machine_counts.clone(),
        ..Plan::default()
    };
    let pending = std::mem::take(&mut simulation.pending);
    plan.placed.reserve(pending.len());
    let mut unplaced_vms = Vec::new();
    for vm in &pending {
        let minimum = simulation.engine.control_plane_spread().minimum();
        match simulation.engine.place_pod(&vm.request, None) {
            Some(host) => plan.placed.push(simulation.placed_vm(vm, host, minimum)),
            None => unplaced_vms.push(vm),
        }
    }
    plan.unplaced = unplaced::explain_all(fleet, &simulation.engine, &unplaced_vms);
    plan
}

/// Adds the state of the hosts, and the problems, to a plan.
pub(super) fn complete(plan: &mut Plan, simulation: &mut Simulation) {
    plan.hosts = usage::host_usages(&simulation.engine);
    plan.control_planes = spread::control_planes(&simulation.engine);
    plan.problems = std::mem::take(&mut simulation.problems);
}

/// Returns the zones with the CPUs that the kubelet can allocate exclusively, and those that it would have allocated.
fn zones_with_use(reported: &[Zone], facts: &ReportedHost, state: Option<&HostState>) -> Vec<Zone> {
    let free = state.map(HostState::free_cpus).unwrap_or_default();
    let kubelet = facts.admission.kubelet();
    let with_use = |zone: &Zone| {
        let mut zone = zone.clone();
        let is_static = kubelet.cpu_policy == CpuPolicy::Static;
        let cpus = zone.cpus.clone().unwrap_or_default();
        let pinnable =
            if is_static { cpus.difference(&kubelet.reserved_cpus) } else { CpuSet::new() };
        zone.pinned_cpus = Some(pinnable.difference(&free));
        zone.pinnable_cpus = Some(pinnable);
        zone
    };
    reported.iter().map(with_use).collect()
}
