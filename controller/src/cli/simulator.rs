//! Simulations of the web console, with the engine of `plan` on the state that a user may list.

mod comparison;
mod input;
mod what_if;

use berth_api::Problem;
use berth_console::{
    BlockedVm, Change, DrainReport, DrainStep, MoveKind, PlacementReport, ProfileSource, Ranking,
    SimulatedMove, SimulatedPlacement, SimulationError, Simulator, WhatIfReport,
};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::runtime::Handle;

use self::comparison::{refusal, texts};
use super::input::ReplacedObjects;
use super::live::{ListError, Listing, ListingError, list_items_with_client};
use crate::evacuation::reason::EvacuationReason;
use crate::fleet::Fleet;
use crate::plan::{
    self, Chosen, DrainResult, Explanation, MovedVm, Placement, PlanOptions, ReplacedVm,
    explain_placement,
};

/// Maximum number of objects of a simulation. Each may need 10 KB, and the console has a memory limit.
const MAX_OBJECTS: usize = 50_000;
/// Maximum number of problems that are reported for a VM that the engine left out.
const MAX_PROBLEMS: usize = 10;

/// Simulator of a live cluster.
#[derive(Debug)]
pub(super) struct ClusterSimulator {
    max_objects: usize,
}

impl Default for ClusterSimulator {
    fn default() -> Self {
        Self { max_objects: MAX_OBJECTS }
    }
}

impl Simulator for ClusterSimulator {
    fn drain(&self, client: &Client, host: &str) -> Result<DrainReport, SimulationError> {
        let command = || format!("kubectl berth drain-check {host}");
        let fleet = self.read_fleet(client, Purpose::Drain, command)?;
        let (drain, now) = (Some(host.to_owned()), Timestamp::now());
        let plan = plan::plan(&fleet, &PlanOptions { drain, now, ..PlanOptions::default() });
        let drain = plan.drain.unwrap_or_default();
        if !drain.is_known {
            return Err(SimulationError::Unknown("the agent of the host does not report"));
        }
        Ok(DrainReport { problems: texts(&plan.problems), ..drain_report(drain) })
    }

    fn explain(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<PlacementReport, SimulationError> {
        let vm = format!("{namespace}/{name}");
        let fleet =
            self.read_fleet(client, Purpose::Placement, || format!("kubectl berth why {vm}"))?;
        let Explanation { placement, mut problems } = explain_placement(&fleet, &vm);
        problems.sort_by_key(|problem| !is_problem_of_vm(problem, namespace, name));
        let mut problems = texts(&problems);
        let Some(placement) = placement else {
            problems.truncate(MAX_PROBLEMS);
            return Err(SimulationError::NotPlaced { problems });
        };
        let placement = match placement {
            Placement::Placed(chosen) => SimulatedPlacement::Placed(ranking(chosen)),
            Placement::Pending(chosen) => SimulatedPlacement::Pending(ranking(chosen)),
            Placement::Unplaced(unplaced) => SimulatedPlacement::Unplaced {
                refusals: unplaced.refusals.into_iter().map(refusal).collect(),
                remedy: unplaced.remedy,
            },
        };
        Ok(PlacementReport { placement, problems })
    }

    fn what_if(&self, client: &Client, change: &Change) -> Result<WhatIfReport, SimulationError> {
        match change {
            Change::AddHosts { host, count } => {
                let command = || format!("kubectl berth what-if --add {count}x{host}");
                let fleet = self.read_fleet(client, Purpose::Placement, command)?;
                what_if::add_hosts(&fleet, host, *count)
            }
            Change::Machines { namespace, yaml } => {
                let found = input::read_deployment(namespace, yaml)?;
                let fleet = self.read_fleet(client, Purpose::Machines, what_if_command)?;
                what_if::add_machines(fleet, found)
            }
            Change::Profile { profile, hosts } => {
                let given = match profile {
                    ProfileSource::Existing(_) => None,
                    ProfileSource::Yaml(text) => Some(input::read_profile(text)?),
                };
                let fleet = self.read_fleet(client, Purpose::Placement, what_if_command)?;
                let existing = match profile {
                    ProfileSource::Existing(name) => fleet.profiles.get(name).cloned(),
                    ProfileSource::Yaml(_) => None,
                };
                let unknown = SimulationError::Unknown("there is no such HostProfile");
                let profile = given.or(existing).ok_or(unknown)?;
                Ok(what_if::change_profile(fleet, profile, hosts.iter().cloned().collect()))
            }
        }
    }
}

/// Command without a limit for changes with files.
fn what_if_command() -> String {
    "kubectl berth what-if -f FILE".to_owned()
}

/// Purpose of a simulation, which decides what is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Placement,
    /// The drain of a host depends on MachineDeployments.
    Drain,
    /// The rendering of machines depends on their tenants.
    Machines,
}

impl ClusterSimulator {
    /// Reads the state of the cluster with the permissions of the user. `command` is the command that has no limit.
    fn read_fleet(
        &self,
        client: &Client,
        purpose: Purpose,
        command: impl FnOnce() -> String,
    ) -> Result<Fleet, SimulationError> {
        let (mut problems, replaced) = (Vec::new(), ReplacedObjects::default());
        let max_objects = self.max_objects;
        let listing = Listing {
            is_drain: purpose == Purpose::Drain,
            has_tenants: purpose == Purpose::Machines,
            replaced: &replaced,
            max_objects,
        };
        let listed = list_items_with_client(client, &listing, &mut problems);
        let ListingError { objects, cause } = match Handle::current().block_on(listed) {
            Ok(items) => return Ok(Fleet::from_items(items, problems)),
            Err(error) => error,
        };
        Err(match cause {
            ListError::TooManyObjects(_) => SimulationError::TooLarge { command: command() },
            ListError::Call(error) => match error.status_code() {
                Some(401) => SimulationError::SignedOut,
                Some(403) => SimulationError::Forbidden { objects },
                _ => SimulationError::Unavailable(error),
            },
        })
    }
}

/// Returns true if a problem is about the objects of a VM: its VirtualMachine, its VirtualMachineInstance or its launcher pod.
fn is_problem_of_vm(problem: &Problem, namespace: &str, name: &str) -> bool {
    problem.object.ends_with(&format!(" {namespace}/{name}"))
        || problem.object.starts_with(&format!("Pod {namespace}/virt-launcher-{name}-"))
}

fn drain_report(drain: DrainResult) -> DrainReport {
    let is_possible = drain.is_possible();
    let moved = |kind: MoveKind, reason: &'static str| {
        move |MovedVm { vm, host }: MovedVm| SimulatedMove {
            vm,
            kind,
            host,
            reason: reason.to_owned(),
        }
    };
    let replaced = |ReplacedVm { vm, host, reason }: ReplacedVm| SimulatedMove {
        vm,
        kind: MoveKind::Replaced,
        host,
        reason: format!("{}: {reason}", reason.as_str()),
    };
    let not_managed = EvacuationReason::NotManaged.as_str();
    let moves = drain.moved_vms.into_iter().map(moved(MoveKind::Migrated, ""));
    let moves = moves.chain(drain.replaced_vms.into_iter().map(replaced));
    let unmanaged = drain.unmanaged_vms.into_iter();
    let moves = moves.chain(unmanaged.map(moved(MoveKind::NotManaged, not_managed)));
    DrainReport {
        is_possible,
        moves: moves.collect(),
        blocked: drain.blocked_vms.into_iter().map(blocked_vm).collect(),
        decisions: drain
            .decisions
            .into_iter()
            .map(|one| DrainStep {
                vm: one.vm,
                reason: one.reason.to_owned(),
                message: one.message,
                is_blocked: one.is_blocked,
            })
            .collect(),
        unknown_pods: drain.unknown_pods,
        problems: Vec::new(),
    }
}

fn blocked_vm(blocked: plan::BlockedVm) -> BlockedVm {
    let plan::BlockedVm { reason, unplaced } = blocked;
    BlockedVm {
        vm: unplaced.vm,
        reason: format!("{}: {reason}", reason.as_str()),
        refusals: unplaced.refusals.into_iter().map(refusal).collect(),
        remedy: unplaced.remedy,
    }
}

fn ranking(chosen: Chosen) -> Ranking {
    Ranking {
        host: chosen.placed.host,
        cpus: chosen.placed.cpus,
        zones: chosen.placed.zones,
        best: chosen.ranked.into_iter().map(|one| (one.host, one.points)).collect(),
        accepting: chosen.accepting,
        refusals: chosen.refusals.into_iter().map(refusal).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::evacuation::reason::ReplacementCause;

    /// Runs a simulation with a simulated API server. `answer` returns the status code and the body for the path of a
    /// request.
    async fn simulate<T: Send + 'static>(
        answer: impl Fn(&str) -> (u16, Value) + Send + 'static,
        run: impl FnOnce(&ClusterSimulator, &Client) -> T + Send + 'static,
    ) -> T {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, body) = answer(request.uri().path());
            let body = Body::from(body.to_string().into_bytes());
            let response = Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        let client = Client::new(service, "default");
        let simulator = ClusterSimulator { max_objects: 2000 };
        tokio::task::spawn_blocking(move || run(&simulator, &client)).await.unwrap()
    }

    /// Simulates a drain. The API server gives the same answer to all requests.
    async fn drain(code: u16, answer: &Value) -> Result<DrainReport, SimulationError> {
        let answer = answer.clone();
        let answer = move |_: &str| (code, answer.clone());
        simulate(answer, |simulator, client| simulator.drain(client, "rack1-a")).await
    }

    /// Explains the placement of the VM `a/vm`, with this VirtualMachine and no host.
    async fn explain(machine: Value, code: u16) -> Result<PlacementReport, SimulationError> {
        let answer = move |path: &str| match path.rsplit('/').next() {
            Some("virtualmachines") if code == 200 => {
                (200, json!({"metadata": {}, "items": [machine.clone()]}))
            }
            Some("virtualmachines") => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "no", "reason": "No", "code": code});
                (code, status)
            }
            _ => (200, json!({"metadata": {}, "items": []})),
        };
        simulate(answer, |simulator, client| simulator.explain(client, "a", "vm")).await
    }

    fn machine(domain: Value) -> Value {
        json!({"metadata": {"namespace": "a", "name": "vm"},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": domain}}}})
    }

    #[tokio::test]
    async fn refusals_of_the_api_server_are_distinguished() {
        let status = |code: u16| {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no",
                "reason": "No", "code": code})
        };
        let refused = drain(403, &status(403)).await.unwrap_err();
        assert!(
            matches!(&refused, SimulationError::Forbidden { objects } if objects == "infranodes"),
            "{refused}"
        );
        assert!(matches!(drain(401, &status(401)).await, Err(SimulationError::SignedOut)));
        assert!(matches!(drain(500, &status(500)).await, Err(SimulationError::Unavailable(_))));
        let empty = json!({"metadata": {}, "items": []});
        assert!(matches!(drain(200, &empty).await, Err(SimulationError::Unknown(_))));
    }

    #[tokio::test]
    async fn reasons_for_a_missing_placement_are_reported() {
        let memory = json!({"guest": "1Gi"});
        let complete = machine(json!({"cpu": {"cores": 1}, "memory": memory, "devices": {}}));
        let report = explain(complete.clone(), 200).await.unwrap();
        assert!(matches!(report.placement, SimulatedPlacement::Unplaced { .. }), "{report:?}");
        // A VM whose launcher pod cannot be predicted.
        let cpu = json!({"isolateEmulatorThread": true});
        let invalid = machine(json!({"cpu": cpu, "memory": memory, "devices": {}}));
        for (machine, code, part) in
            [(invalid, 200, " a/vm: "), (complete, 403, "virtualmachines: cannot be listed")]
        {
            match explain(machine, code).await {
                Err(SimulationError::NotPlaced { problems }) => {
                    assert!(problems[0].contains(part), "{part}: {problems:?}");
                }
                other => panic!("{part}: {other:?}"),
            }
        }
    }

    #[test]
    fn problems_of_the_vm_are_recognized() {
        for (object, expected) in [
            ("VirtualMachine a/vm", true),
            ("Pod a/virt-launcher-vm-x7k2p", true),
            ("VirtualMachine b/a/vm", false),
            ("VirtualMachine a/vm-2", false),
            ("Pod a/virt-launcher-v-x7k2p", false),
        ] {
            let problem = Problem::new(object, "", "", "is invalid");
            assert_eq!(is_problem_of_vm(&problem, "a", "vm"), expected, "{object}");
        }
    }

    #[tokio::test]
    async fn lists_that_do_not_end_are_refused() {
        let items = vec![json!({"metadata": {"name": "a"}}); 500];
        let page = json!({"metadata": {"continue": "next"}, "items": items});
        let refused = drain(200, &page).await.unwrap_err().to_string();
        assert!(refused.contains("kubectl berth drain-check rack1-a"), "{refused}");
    }

    #[test]
    fn results_of_a_drain_are_complete() {
        let moved = |vm: &str| MovedVm { vm: vm.to_owned(), host: "b".to_owned() };
        let reason = ReplacementCause::NotMigratable("PCI devices".to_owned());
        let drain = DrainResult {
            is_known: true,
            moved_vms: vec![moved("x/a")],
            unmanaged_vms: vec![moved("x/b")],
            replaced_vms: vec![ReplacedVm { vm: "x/c".to_owned(), host: "b".to_owned(), reason }],
            ..DrainResult::default()
        };
        let report = drain_report(drain);
        let kinds: Vec<_> = report.moves.iter().map(|one| (one.vm.as_str(), one.kind)).collect();
        assert_eq!(
            kinds,
            [
                ("x/a", MoveKind::Migrated),
                ("x/c", MoveKind::Replaced),
                ("x/b", MoveKind::NotManaged)
            ]
        );
        assert_eq!(report.moves[1].reason, "NotMigratable: the VM cannot be migrated: PCI devices");
        assert!(report.is_possible);
        let unknown = DrainResult {
            is_known: true,
            unknown_pods: vec!["pod".to_owned()],
            ..DrainResult::default()
        };
        assert!(!drain_report(unknown).is_possible);
    }
}
