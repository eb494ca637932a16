//! State of a MachineDeployment whose machines must leave a host.

use std::collections::BTreeSet;

use berth_api::Problem;
use berth_kubevirt_render::machines::MachineDeployment;
use berth_kubevirt_render::machines::rollout::{ReplacementLimits, replacement_limits};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::machine::Machine;

/// State of a MachineDeployment, which decisions update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentState {
    limits: ReplacementLimits,
    /// Names of the machines that are observed to be available and are not being removed.
    observed: BTreeSet<String>,
    /// Number of available machines according to the status, without those that have been marked since.
    reported: u32,
    /// Names of the machines whose replacement was requested and whose removal has not begun.
    requested: BTreeSet<String>,
}

impl DeploymentState {
    /// Reads a MachineDeployment. `machines` are all its machines at the time `now`. The machines determine how many are
    /// available; the status may be missing or stale, and can only reduce this number.
    ///
    /// # Errors
    /// Returns the problem if the MachineDeployment is invalid.
    pub fn read(object: Value, machines: &[Machine], now: Timestamp) -> Result<Self, Problem> {
        let status = |pointer: &str| {
            let count = object.pointer(pointer).and_then(Value::as_u64);
            count.map(|count| u32::try_from(count).unwrap_or(u32::MAX))
        };
        let counted = status("/status/availableReplicas").unwrap_or(u32::MAX);
        let replicas = status("/status/replicas").unwrap_or_default();
        let deployment = MachineDeployment::read("the cluster", object)?;
        let limits = replacement_limits(&deployment.spec).map_err(|error| {
            Problem::new(deployment.qualified_name(), error.field, &error.value, error.message)
        })?;
        // The status may be stale, and still count machines as available that have just been marked for removal.
        let remaining = number_of(machines.iter().filter(|one| !one.is_leaving()));
        let marked_since = replicas.saturating_sub(remaining);
        let min_ready = i64::from(deployment.spec.min_ready_seconds.unwrap_or(0).max(0));
        // If the controller was killed after it had created a machine, the status may still have the number from before
        // another machine was deleted, so it does not limit the number of available machines to those that are ready.
        let observed = machines.iter().filter(|one| one.is_counted(min_ready, now.as_second()));
        Ok(Self {
            limits,
            observed: observed.map(|one| one.name.clone()).collect(),
            reported: counted.saturating_sub(marked_since),
            requested: requested_machines(machines),
        })
    }

    /// Returns the state of a MachineDeployment whose machines are available, unless they are known not to be.
    #[must_use]
    pub fn new(limits: ReplacementLimits, machines: &[Machine]) -> Self {
        let available = machines.iter().filter(|one| one.is_available());
        let observed: BTreeSet<String> = available.map(|one| one.name.clone()).collect();
        let reported = number_of(observed.iter());
        Self { limits, observed, reported, requested: requested_machines(machines) }
    }

    /// Returns true if at least `minimum` machines are available after the removal of the machine. A machine that is
    /// not observed to be available, because its Node is not known or it has just become ready, need not be replaced by
    /// another one: otherwise it would stay on its host for ever if it never becomes ready. The status may count it.
    fn leaves(&self, machine: &Machine, minimum: u32) -> bool {
        let others = number_of(self.observed.iter().filter(|name| **name != machine.name));
        !machine.is_available() || (others >= minimum && self.reported > minimum)
    }

    /// Returns true if the removal of the machine leaves as many available machines as desired.
    #[must_use]
    pub fn is_replaced(&self, machine: &Machine) -> bool {
        self.leaves(machine, self.limits.desired)
    }

    /// Returns true if the removal of the machine leaves at most `maxUnavailable` machines unavailable.
    #[must_use]
    pub fn permits_removal(&self, machine: &Machine) -> bool {
        self.leaves(machine, self.limits.desired.saturating_sub(self.limits.max_unavailable))
    }

    /// Returns true if another machine may be created before one is removed.
    #[must_use]
    pub fn permits_request(&self) -> bool {
        number_of(self.requested.iter()) < self.limits.max_surge
    }

    /// Returns true if replacements are created before the machines are removed (`maxSurge` is above 0).
    #[must_use]
    pub const fn has_surge(&self) -> bool {
        self.limits.max_surge > 0
    }

    /// Returns true if machines may be unavailable during a replacement (`maxUnavailable` is above 0).
    #[must_use]
    pub const fn has_budget(&self) -> bool {
        self.limits.max_unavailable > 0
    }

    /// Records that a replacement of the machine is requested.
    pub fn record_request(&mut self, machine: &Machine) {
        self.requested.insert(machine.name.clone());
    }

    /// Records that the removal of the machine begins.
    pub fn record_removal(&mut self, machine: &Machine) {
        self.requested.remove(&machine.name);
        self.observed.remove(&machine.name);
        if machine.is_available() {
            self.reported = self.reported.saturating_sub(1);
        }
    }
}

/// Returns the names of the machines whose replacement was requested and whose removal has not begun.
fn requested_machines(machines: &[Machine]) -> BTreeSet<String> {
    let requested = machines.iter().filter(|one| one.awaits_replacement());
    requested.map(|one| one.name.clone()).collect()
}

fn number_of(items: impl Iterator) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::removal::mark::RemovalReason;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// The controller was killed after it had deleted one of three machines and created its replacement `web-4`, and
    /// before it updated the status.
    #[test]
    fn machine_that_the_status_does_not_know_counts_only_when_it_is_ready() {
        let machine = |name: &str, ready_since| Machine {
            name: name.to_owned(),
            is_ready: true,
            ready_since,
            ..Machine::default()
        };
        let is_replaced = |since, status: Value| {
            let machines =
                [machine("web-2", Some(0)), machine("web-3", Some(0)), machine("web-4", since)];
            let object = json!({"metadata": {"name": "web"}, "status": status,
                "spec": {"replicas": 2, "minReadySeconds": 30}});
            DeploymentState::read(object, &machines, at(1_000)).unwrap().is_replaced(&machines[0])
        };
        for status in [json!({"replicas": 3, "availableReplicas": 3}), Value::Null] {
            assert!(!is_replaced(None, status.clone()), "it is not ready");
            assert!(!is_replaced(Some(980), status.clone()), "it is ready for 20 seconds");
            assert!(is_replaced(Some(970), status));
        }
    }

    /// The tenant's API server has never answered since the start of the controller, and the guest of `web-3` hangs.
    #[test]
    fn machine_that_is_not_observed_is_removed_within_the_budget() {
        let machine = |name: &str, ready_since| Machine {
            name: name.to_owned(),
            is_ready: true,
            ready_since,
            ..Machine::default()
        };
        let all = [machine("web-1", Some(0)), machine("web-2", Some(0)), machine("web-3", None)];
        let read = |max_unavailable: u32, available: u32| {
            let update = json!({"maxSurge": 0, "maxUnavailable": max_unavailable});
            let object = json!({"metadata": {"name": "web"},
                "spec": {"replicas": 3, "strategy": {"rollingUpdate": update}},
                "status": {"replicas": 3, "availableReplicas": available}});
            DeploymentState::read(object, &all, at(1_000)).unwrap()
        };
        let mut state = read(1, 3);
        assert!(!state.permits_removal(&all[0]), "two other machines must be available");
        assert!(state.permits_removal(&all[2]));
        state.record_removal(&all[2]);
        assert!(!state.permits_removal(&all[0]) && !state.permits_removal(&all[1]));
        assert!(!read(1, 2).permits_removal(&all[2]), "the status may count this machine");
        let mut state = read(2, 3);
        state.record_removal(&all[2]);
        assert!(state.permits_removal(&all[0]));
        state.record_removal(&all[0]);
        assert!(!state.permits_removal(&all[1]));
    }

    #[test]
    fn status_may_still_count_marked_machines() {
        let machine = |number: u32| Machine {
            name: format!("web-{number}"),
            is_ready: true,
            ready_since: Some(0),
            ..Machine::default()
        };
        let mut machines: Vec<Machine> = (1..=5).map(machine).collect();
        // The Node of one machine has not joined.
        let object = json!({
            "metadata": {"name": "web"},
            "spec": {"replicas": 5, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}},
            "status": {"replicas": 5, "availableReplicas": 4},
        });
        let permits = |machines: &[Machine]| {
            let state = DeploymentState::read(object.clone(), machines, at(1_000)).unwrap();
            machines.last().is_some_and(|last| state.permits_removal(last))
        };
        assert!(permits(&machines));
        machines[0].removal = Some(RemovalReason::HostDrain);
        assert!(!permits(&machines), "three machines are available, although the status has four");
    }

    #[test]
    fn status_limits_the_number_of_available_machines() {
        let machines: Vec<Machine> = (1..=3)
            .map(|number| Machine {
                name: format!("web-{number}"),
                is_ready: true,
                ready_since: Some(0),
                ..Machine::default()
            })
            .collect();
        let object = |available| json!({"metadata": {"name": "web"}, "spec": {"replicas": 2}, "status": {"availableReplicas": available}});
        let read = |object| DeploymentState::read(object, &machines, at(1_000));
        let state = |available| read(object(available)).unwrap();
        assert!(state(3).is_replaced(&machines[0]));
        assert!(!state(2).is_replaced(&machines[0]), "one machine is ready for a short time only");
        let invalid = json!({"metadata": {"name": "web"}, "spec": {"replicas": -1}});
        assert!(read(invalid).is_err());
    }
}
