//! Record of the machines of one MachineDeployment and their Nodes, and the rule that a removal leaves enough available
//! machines. Machines and Nodes are in different API servers, so their events are ordered by the time of reception.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::names::{NODE_DELETION_ANNOTATION, REMOVAL_ANNOTATION};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

/// Largest difference between the times at which the controller and the observer receive an event.
const TOLERANCE: Duration = Duration::from_secs(3);

/// Times of a Node, since the start of the observation.
#[derive(Debug, Default)]
struct NodeTimes {
    ready_at: Option<Duration>,
    deleted_at: Option<Duration>,
}

/// A removal that has begun.
#[derive(Debug)]
struct BegunRemoval {
    machine: String,
    reason: String,
    at: Duration,
    /// Number of machines that must be available after the removal.
    minimum: usize,
    /// Machines that are not being removed.
    remaining: BTreeSet<String>,
}

/// All events since the start.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    /// Number of machines that must be available; `None` if it is not verified.
    pub(crate) minimum: Option<usize>,
    /// Names of the machines, and whether each one is being removed.
    machines: BTreeMap<String, bool>,
    nodes: BTreeMap<String, NodeTimes>,
    removals: Vec<BegunRemoval>,
}

impl Availability {
    pub(crate) fn handle_node(&mut self, at: Duration, is_deleted: bool, name: &str, ready: bool) {
        let node = self.nodes.entry(name.to_owned()).or_default();
        if ready {
            node.ready_at.get_or_insert(at);
        }
        if is_deleted {
            node.deleted_at.get_or_insert(at);
        }
    }

    pub(crate) fn handle_machine(
        &mut self,
        at: Duration,
        is_deleted: bool,
        machine: &DynamicObject,
    ) {
        let name = machine.name_any();
        if is_deleted {
            self.machines.remove(&name);
            return;
        }
        let annotations = machine.annotations();
        let mark = annotations.get(REMOVAL_ANNOTATION).cloned();
        let is_leaving = mark.is_some() || machine.metadata.deletion_timestamp.is_some();
        let was_leaving = self.machines.insert(name.clone(), is_leaving).unwrap_or_default();
        // If the mark is removed after the deletion of the Node has begun, the controller writes the mark again.
        let is_repeated = annotations.contains_key(NODE_DELETION_ANNOTATION);
        let Some(minimum) = self.minimum.filter(|_| is_leaving && !was_leaving && !is_repeated)
        else {
            return;
        };
        let remaining = self.machines.iter().filter(|(_, is_leaving)| !**is_leaving);
        self.removals.push(BegunRemoval {
            machine: name,
            reason: mark.unwrap_or_default(),
            at,
            minimum,
            remaining: remaining.map(|(name, _)| name.clone()).collect(),
        });
    }

    /// Returns the violations. A machine that was not available may always be removed.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        for BegunRemoval { machine, reason, at, minimum, remaining } in &self.removals {
            let available = remaining.iter().filter(|name| self.is_available(name, *at)).count();
            if self.is_available(machine, *at) && available < *minimum {
                found.push(format!(
                    "machine {machine} is removed ({reason}): {available} machines are available, not {minimum}"
                ));
            }
        }
        found
    }

    /// Returns true if the Node of a machine was ready at this time, as far as the observer knows it.
    fn is_available(&self, machine: &str, at: Duration) -> bool {
        let Some(node) = self.nodes.get(machine) else { return false };
        let latest = at.saturating_add(TOLERANCE);
        node.ready_at.is_some_and(|ready| ready <= latest)
            && node.deleted_at.is_none_or(|deleted| deleted.saturating_add(TOLERANCE) > at)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(name: &str, annotations: &[&str]) -> DynamicObject {
        let annotations: BTreeMap<&str, &str> =
            annotations.iter().map(|key| (*key, "HostDrain")).collect();
        let metadata = json!({"name": name, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// Returns two machines with ready Nodes, of which one must be available, and a third machine without a Node.
    fn three_machines() -> Availability {
        let mut all = Availability { minimum: Some(1), ..Availability::default() };
        for name in ["a", "b", "c"] {
            all.handle_machine(Duration::ZERO, false, &machine(name, &[]));
        }
        all.handle_node(Duration::ZERO, false, "a", true);
        all.handle_node(Duration::ZERO, false, "b", true);
        all
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_second_removal_is_a_violation() {
        let mut all = three_machines();
        let mark = [REMOVAL_ANNOTATION];
        all.handle_machine(seconds(10), false, &machine("c", &mark));
        all.handle_machine(seconds(10), false, &machine("a", &mark));
        all.handle_machine(seconds(11), false, &machine("a", &mark));
        assert_eq!(all.violations(), [""; 0]);
        all.handle_machine(seconds(20), false, &machine("b", &mark));
        let expected = "machine b is removed (HostDrain): 0 machines are available, not 1";
        assert_eq!(all.violations(), [expected]);
    }

    #[test]
    fn replacements_count_when_their_nodes_are_ready() {
        for (ready_at, violations) in [(22, 0), (24, 1)] {
            let mut all = three_machines();
            let mark = [REMOVAL_ANNOTATION];
            all.handle_machine(seconds(10), false, &machine("a", &mark));
            all.handle_machine(seconds(20), false, &machine("b", &mark));
            all.handle_node(seconds(ready_at), false, "c", true);
            assert_eq!(
                all.violations().len(),
                violations,
                "the replacement is ready at {ready_at} s"
            );
        }
    }

    #[test]
    fn a_repeated_mark_is_no_violation() {
        let mut all = three_machines();
        let mark = [REMOVAL_ANNOTATION, NODE_DELETION_ANNOTATION];
        all.handle_machine(seconds(10), false, &machine("a", &mark[..1]));
        all.handle_machine(seconds(11), false, &machine("a", &mark[1..]));
        all.handle_machine(seconds(12), false, &machine("b", &mark[..1]));
        all.handle_machine(seconds(13), false, &machine("a", &mark));
        assert_eq!(all.violations(), [""; 0]);
        assert_eq!(all.removals.len(), 2);
    }
}
