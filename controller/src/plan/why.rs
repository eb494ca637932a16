//! Explains the placement of one VM: the host on which it runs or would be placed, the points of that host and of others,
//! and the reasons for which all other hosts refuse it.

use std::sync::Arc;

use serde::Serialize;

use super::build::{PendingVm, Simulation};
use super::placed_vm::PlacedVm;
use super::unplaced::{HostRefusal, UnplacedVm, explain};
use crate::fleet::Fleet;
use berth_api::Problem;

/// Maximum number of hosts that are listed with their points.
const MAX_RANKED_HOSTS: usize = 5;

/// Placement of one VM, and the problems of all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// `None` if the fleet has no such VM that runs or should run, or if the VM is left out because of a problem.
    pub placement: Option<Placement>,
    /// Problems of the objects, also of those that are left out.
    pub problems: Vec<Problem>,
}

/// Placement of one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Placement {
    /// The VM is on a host.
    Placed(Chosen),
    /// The VM has no host yet, and a host accepts it.
    Pending(Chosen),
    /// No host accepts the VM.
    Unplaced(UnplacedVm),
}

/// A VM with its host, and the hosts that were compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    #[serde(flatten)]
    pub placed: PlacedVm,
    /// Hosts that accept the VM now, the best first. If the VM is on a host, as if it were not there.
    pub ranked: Vec<RankedHost>,
    /// Number of hosts that accept the VM.
    pub accepting: usize,
    /// Reasons for which the other hosts refuse the VM.
    #[serde(rename = "refused")]
    pub refusals: Vec<HostRefusal>,
}

/// A host with its points for a VM. Of several hosts, the engine chooses the one with the fewest points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankedHost {
    pub host: String,
    pub points: i64,
}

/// Explains the placement of the VM or the pod with this namespace and name. Other pending VMs are not placed before it.
#[must_use]
pub fn explain_placement(fleet: &Fleet, name: &str) -> Explanation {
    let mut simulation = Simulation::build(fleet, None);
    let problems = std::mem::take(&mut simulation.problems);
    let pending = std::mem::take(&mut simulation.pending);
    let placement = match pending.into_iter().find(|vm| vm.name == name) {
        Some(vm) => Some(simulation.explain_pending(fleet, &vm)),
        None => simulation.explain_placed(fleet, name),
    };
    Explanation { placement, problems }
}

impl Simulation {
    fn explain_pending(&mut self, fleet: &Fleet, vm: &PendingVm) -> Placement {
        let (ranked, accepting) = self.ranked_hosts(vm);
        let unplaced = explain(fleet, &self.engine, vm, None);
        let minimum = self.engine.control_plane_spread().minimum();
        match self.engine.place_pod(&vm.request, None) {
            Some(host) => Placement::Pending(Chosen {
                placed: self.placed_vm(vm, host, minimum),
                ranked,
                accepting,
                refusals: unplaced.refusals,
            }),
            None => Placement::Unplaced(unplaced),
        }
    }

    fn explain_placed(&mut self, fleet: &Fleet, name: &str) -> Option<Placement> {
        let (uid, _) = self.pod_names.iter().find(|(_, vm)| *vm == name)?;
        let uid: Arc<str> = Arc::from(uid.as_str());
        let host = self.engine.host_of_pod(&uid)?;
        let request =
            self.engine.pods_on_host(host).find(|request| request.uid() == &*uid)?.clone();
        let vm = PendingVm { name: name.to_owned(), request };
        let minimum = self.engine.control_plane_spread().minimum();
        let placed = self.placed_vm(&vm, host, minimum);
        // The hosts are compared as if the VM were not on its host.
        self.engine.remove_pod(&uid);
        self.engine.remove_allocations(host, &[uid]);
        let (ranked, accepting) = self.ranked_hosts(&vm);
        let refusals = explain(fleet, &self.engine, &vm, None).refusals;
        Some(Placement::Placed(Chosen { placed, ranked, accepting, refusals }))
    }

    /// Returns the best hosts with their points, and the number of all hosts that accept the VM.
    fn ranked_hosts(&mut self, vm: &PendingVm) -> (Vec<RankedHost>, usize) {
        let ranked = self.engine.ranked_hosts(&vm.request);
        let name = |host| self.engine.reported_host(host).map(|facts| facts.name.clone());
        let best = ranked.iter().take(MAX_RANKED_HOSTS);
        let best = best
            .filter_map(|(host, points)| Some(RankedHost { host: name(*host)?, points: *points }));
        (best.collect(), ranked.len())
    }
}
