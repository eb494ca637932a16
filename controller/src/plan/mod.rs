//! Placement plan of `berth-controller plan`: computes from objects where each VM would be placed. Input and output
//! are plain data.

mod add;
mod addition;
mod allocatable;
mod build;
mod change_effect;
mod claims;
mod drain;
mod drain_decisions;
mod place;
mod placed_vm;
mod pool_effects;
mod profile_change;
mod profile_effects;
mod profile_hosts;
mod request;
mod reserved_cores;
mod result;
mod schedulable;
mod spread;
mod table;
#[cfg(test)]
pub(crate) mod test_fleet;
mod topology_scope;
mod unplaced;
mod usage;
mod why;
mod why_table;

pub use add::{AddRequest, ParseAddError};
pub use addition::AdditionResult;
pub use change_effect::{ChangeEffect, FieldChange};
pub use drain::{BlockedVm, DrainResult, MovedVm, ReplacedVm};
pub use drain_decisions::DrainDecision;
pub use place::{Outcome, place, place_with_copies};
pub use placed_vm::PlacedVm;
pub use profile_change::{Departure, ProfileResult, VmOfChangedHost, VmResult, simulate_profile};
pub use profile_hosts::ProfileChange;
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
    let mut plan = place::place_pending(fleet, &mut simulation);
    if let Some(add) = &options.add {
        plan.added =
            Some(addition::simulate_addition(fleet, add, plan.placed.len() + plan.unplaced.len()));
    }
    if let Some(host) = &options.drain {
        plan.drain = Some(drain::simulate_drain(fleet, &mut simulation, host, options.now));
    }
    place::complete(&mut plan, &mut simulation);
    plan
}
