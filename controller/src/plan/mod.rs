//! Where VMs would land: the answer of `berth-controller plan`, from plain objects to plain data.

mod add;
mod build;
mod drain;
mod scope;
mod table;
mod unplaced;
mod usage;

use std::collections::BTreeMap;

use serde::Serialize;

pub use add::{Add, Added, ParseAddError};
pub use drain::{Drain, Moved};
pub use table::render;
pub use unplaced::{Refused, Unplaced};
pub use usage::{HostUsage, Part, ZoneUsage};

use crate::fleet::{Created, Fleet, Tenant};
use berth_api::Problem;
use berth_placement::engine::Request;
use build::{Wish, World};

/// What is asked besides.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether this host can be emptied.
    pub drain: Option<String>,
    /// What it would be like with more hosts.
    pub add: Option<Add>,
}

/// The answer.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Hosts by name, with what would be taken of them.
    pub hosts: Vec<HostUsage>,
    /// VMs that are on a host already.
    pub running: usize,
    /// VMs that are switched off, and take nothing.
    pub off: usize,
    /// What tenants would have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
    /// MachineDeployments, and how many of their machines there are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_deployments: Vec<Created>,
    /// VMs that would be created, in the order in which they would be placed.
    pub placed: Vec<Placed>,
    /// VMs that would not fit.
    pub unplaced: Vec<Unplaced>,
    /// Whether the host can be emptied, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What more hosts would do, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<Added>,
    /// Objects that cannot be made sense of, and odd ones.
    pub problems: Vec<Problem>,
    /// Objects that placement does not look at, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ignored: BTreeMap<String, usize>,
}

/// A VM and the host that it would be on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// Namespace and name.
    pub vm: String,
    /// What it asks for.
    pub wants: Wants,
    /// The host.
    pub host: String,
    /// Zones of its CPUs; none if it shares CPUs.
    pub zones: Vec<u32>,
    /// Its CPUs, as the kubelet would choose them now.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
}

/// What a VM asks for, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wants {
    /// CPUs of its own.
    pub pinned_cpus: u32,
    /// What it requests of CPUs, its own among them, in thousandths.
    pub cpu_millis: u64,
    /// Bytes of memory, huge pages apart.
    pub memory: u64,
    /// Bytes of huge pages.
    pub hugepages: u64,
    /// Their size, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<String>,
}

impl Plan {
    /// Whether everything fits, and nothing had to be left out.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        let drains = self.drain.as_ref().is_none_or(Drain::is_possible);
        self.unplaced.is_empty() && drains && !self.problems.iter().any(|problem| problem.is_fatal)
    }
}

/// Says where everything would land.
#[must_use]
pub fn plan(fleet: &Fleet, options: &Options) -> Plan {
    let mut world = World::build(fleet, options.add.as_ref().and_then(Add::fixed));
    let mut plan = Plan {
        running: world.running,
        off: world.off,
        ignored: fleet.ignored.clone(),
        tenants: fleet.tenants.clone(),
        machine_deployments: fleet.created.clone(),
        ..Plan::default()
    };
    let wishes = std::mem::take(&mut world.wishes);
    let mut left = Vec::new();
    for wish in &wishes {
        match world.engine.place(&wish.request, None) {
            Some(host) => plan.placed.push(world.placed(wish, host)),
            None => left.push(wish),
        }
    }
    plan.unplaced = unplaced::explain_all(fleet, &world.engine, &left);
    if let Some(add) = &options.add {
        plan.added = Some(add::answer(fleet, add, &plan));
    }
    if let Some(host) = &options.drain {
        plan.drain = Some(drain::answer(fleet, &mut world, host));
    }
    plan.hosts = usage::all(&world.engine);
    plan.problems = std::mem::take(&mut world.problems);
    plan
}

impl Wants {
    fn of(request: &Request) -> Self {
        let all = request.pod().requests();
        let pages = all.hugepages.iter().find(|(_, bytes)| **bytes > 0);
        let huge = all.hugepages.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        Self {
            pinned_cpus: request.pinned_cpus(),
            cpu_millis: all.cpu_millis,
            memory: all.memory,
            hugepages: huge,
            page_size: pages.map(|(size, _)| size.to_string()),
        }
    }
}

impl World {
    fn placed(&self, wish: &Wish, host: berth_placement::rules::HostId) -> Placed {
        let facts = self.engine.facts(host);
        let state = self.engine.state(host);
        let admission = state.and_then(|state| state.admission(wish.request.uid()));
        let cpus = facts.zip(admission).map(|(facts, admission)| admission.cpus(&facts.admission));
        let cpus = cpus.unwrap_or_default();
        let zones = facts.into_iter().flat_map(|facts| &facts.zones);
        Placed {
            vm: wish.name.clone(),
            wants: Wants::of(&wish.request),
            host: facts.map(|facts| facts.name.clone()).unwrap_or_default(),
            zones: zones.filter(|zone| zone.cpus.intersects(&cpus)).map(|zone| zone.id).collect(),
            cpus: cpus.to_string(),
        }
    }
}
