//! Whether a host can be emptied: every VM on it moved to another one, one after the other, as live migration does.

use serde::Serialize;

use super::build::{Wish, World};
use super::unplaced::{Unplaced, explain};
use crate::fleet::Fleet;

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// The host.
    pub host: String,
    /// Whether there is such a host.
    pub is_known: bool,
    /// VMs and where they would go.
    pub moved: Vec<Moved>,
    /// VMs that cannot leave, and why.
    pub stuck: Vec<Unplaced>,
    /// Pods that the host reports and that nobody has given: nothing can be said of them.
    pub unknown: Vec<String>,
}

/// A VM that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Namespace and name.
    pub vm: String,
    /// Where it goes.
    pub host: String,
}

impl Drain {
    /// Whether the host can be emptied.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.is_known && self.stuck.is_empty() && self.unknown.is_empty()
    }
}

/// Tries it. What is moved stays moved.
pub(super) fn answer(fleet: &Fleet, world: &mut World, name: &str) -> Drain {
    let mut drain = Drain { host: name.to_owned(), ..Drain::default() };
    let Some(from) = world.engine.host(name) else { return drain };
    drain.is_known = true;
    let reported =
        world.engine.facts(from).map(|facts| facts.allocations.clone()).unwrap_or_default();
    for allocation in reported {
        if world.engine.where_is(&allocation.uid).is_none() {
            drain.unknown.push(allocation.name.unwrap_or(allocation.uid));
        }
    }
    let mut leaving: Vec<_> =
        world.engine.on(from).filter(|request| request.needs().is_vm).cloned().collect();
    // The largest first: they have the fewest places to go to.
    leaving.sort_by_key(|request| {
        (std::cmp::Reverse(request.pod().requests().cpu_millis), request.uid().to_owned())
    });
    for request in leaving {
        let uid = request.uid().to_owned();
        let vm = world.names.get(&uid).cloned().unwrap_or_else(|| uid.clone());
        // While it migrates, the VM is on both hosts: its old pod still counts for all rules by pods.
        let target = request.renamed(&format!("{uid}/target"));
        let others: Vec<_> =
            world.engine.hosts().map(|(id, _)| id).filter(|id| *id != from).collect();
        match world.engine.place(&target, Some(&others)) {
            Some(host) => {
                world.engine.remove(&uid);
                let host = world.engine.facts(host).map(|facts| facts.name.clone());
                drain.moved.push(Moved { vm, host: host.unwrap_or_default() });
            }
            None => {
                let mut why = explain(fleet, &world.engine, &Wish { name: vm, request: target });
                why.refused.retain(|refused| refused.example != name || refused.hosts > 1);
                drain.stuck.push(why);
            }
        }
    }
    drain
}
