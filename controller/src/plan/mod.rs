//! Placement plan of `berth-controller plan`: computes from objects where each VM would be placed. Input and output
//! are plain data.

mod add;
mod build;
mod drain;
mod enough;
mod placed;
mod request;
mod result;
mod scope;
mod table;
mod unplaced;
mod usage;

pub use add::{Add, ParseAddError};
pub use drain::{Drain, Moved};
pub use enough::Added;
pub use placed::Placed;
pub use request::VmRequest;
pub use result::{Options, Plan};
pub use table::render;
pub use unplaced::{Refused, Unplaced};
pub use usage::{HostUsage, Part, ZoneUsage};

use build::Simulation;

use crate::fleet::Fleet;

/// Computes the placement of all pending VMs.
#[must_use]
pub fn plan(fleet: &Fleet, options: &Options) -> Plan {
    let mut simulation = Simulation::build(fleet, options.add.as_ref().and_then(Add::with_count));
    let mut plan = Plan {
        running: simulation.running,
        off: simulation.off,
        ignored: fleet.ignored.clone(),
        tenants: fleet.tenants.clone(),
        machine_deployments: fleet.created.clone(),
        ..Plan::default()
    };
    let pending = std::mem::take(&mut simulation.pending);
    let mut left = Vec::new();
    for vm in &pending {
        match simulation.engine.place(&vm.request, None) {
            Some(host) => plan.placed.push(simulation.placed(vm, host)),
            None => left.push(vm),
        }
    }
    plan.unplaced = unplaced::explain_all(fleet, &simulation.engine, &left);
    if let Some(add) = &options.add {
        plan.added =
            Some(enough::simulate_addition(fleet, add, plan.placed.len() + plan.unplaced.len()));
    }
    if let Some(host) = &options.drain {
        plan.drain = Some(drain::simulate_drain(fleet, &mut simulation, host));
    }
    plan.hosts = usage::all(&simulation.engine);
    plan.problems = std::mem::take(&mut simulation.problems);
    plan
}
