//! Placement plan of `berth-controller plan`: computes from objects where each VM would be placed. Input and output
//! are plain data.

mod add;
mod addition;
mod build;
mod claims;
mod drain;
mod drain_decisions;
mod placed_vm;
mod request;
mod result;
mod spread;
mod table;
mod topology_scope;
mod unplaced;
mod usage;
mod why;
mod why_table;

pub use add::{AddRequest, ParseAddError};
pub use addition::AdditionResult;
pub use drain::{BlockedVm, DrainResult, MovedVm, ReplacedVm};
pub use drain_decisions::DrainDecision;
pub use placed_vm::PlacedVm;
pub use request::VmRequest;
pub use result::{Plan, PlanOptions};
pub use spread::{ControlPlaneDomain, ControlPlanes};
pub use table::render;
pub use unplaced::{HostRefusal, UnplacedVm};
pub use usage::{HostUsage, ResourceUsage, ZoneUsage};
pub use why::{Chosen, Explanation, Placement, RankedHost, explain_placement};
pub use why_table::{render_drain, render_placement};

use build::Simulation;

use crate::fleet::Fleet;

/// Computes the placement of all pending VMs.
#[must_use]
pub fn plan(fleet: &Fleet, options: &PlanOptions) -> Plan {
    let mut simulation =
        Simulation::build(fleet, options.add.as_ref().and_then(AddRequest::host_addition));
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
    if let Some(add) = &options.add {
        plan.added =
            Some(addition::simulate_addition(fleet, add, plan.placed.len() + plan.unplaced.len()));
    }
    if let Some(host) = &options.drain {
        plan.drain = Some(drain::simulate_drain(fleet, &mut simulation, host, options.now));
    }
    plan.hosts = usage::host_usages(&simulation.engine);
    plan.control_planes = spread::control_planes(&simulation.engine);
    plan.problems = std::mem::take(&mut simulation.problems);
    plan
}
