//! Simulations of the web console, with the engine of `plan` on the state that a user may list.

use std::collections::BTreeSet;

use berth_console::{
    BlockedVm, DrainReport, DrainStep, MoveKind, PlacementReport, Ranking, Refusal, SimulatedMove,
    SimulationError, Simulator,
};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::runtime::Handle;

use super::live::{ListError, Listing, ListingError, list_items_with_client};
use crate::evacuation::reason::EvacuationReason;
use crate::fleet::Fleet;
use crate::plan::{
    self, Chosen, DrainResult, HostRefusal, MovedVm, Placement, PlanOptions, ReplacedVm,
    explain_placement,
};

/// Maximum number of objects of a simulation. Each may need 10 KB, and the console has a memory limit.
const MAX_OBJECTS: usize = 50_000;

/// Simulator of a live cluster.
#[derive(Debug)]
pub(super) struct ClusterSimulator;

impl Simulator for ClusterSimulator {
    fn drain(&self, client: &Client, host: &str) -> Result<DrainReport, SimulationError> {
        let fleet = read_fleet(client, true, || format!("kubectl berth drain-check {host}"))?;
        let (drain, now) = (Some(host.to_owned()), Timestamp::now());
        let plan = plan::plan(&fleet, &PlanOptions { drain, now, ..PlanOptions::default() });
        let drain = plan.drain.unwrap_or_default();
        if !drain.is_known {
            return Err(SimulationError::Unknown("the agent of the host does not report"));
        }
        let problems = plan.problems.iter().map(ToString::to_string).collect();
        Ok(DrainReport { problems, ..drain_report(drain) })
    }

    fn explain(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<PlacementReport, SimulationError> {
        let vm = format!("{namespace}/{name}");
        let fleet = read_fleet(client, false, || format!("kubectl berth why {vm}"))?;
        let placement = explain_placement(&fleet, &vm);
        let placement = placement.ok_or(SimulationError::Unknown("the machine is switched off"))?;
        Ok(match placement {
            Placement::Placed(chosen) => PlacementReport::Placed(ranking(chosen)),
            Placement::Pending(chosen) => PlacementReport::Pending(ranking(chosen)),
            Placement::Unplaced(unplaced) => PlacementReport::Unplaced {
                refusals: unplaced.refusals.into_iter().map(refusal).collect(),
                remedy: unplaced.remedy,
            },
        })
    }
}

/// Reads the state of the cluster with the permissions of the user. `command` is the command that has no limit.
fn read_fleet(
    client: &Client,
    is_drain: bool,
    command: impl FnOnce() -> String,
) -> Result<Fleet, SimulationError> {
    let (mut problems, replaced) = (Vec::new(), BTreeSet::new());
    let listing =
        Listing { is_drain, has_tenants: false, replaced: &replaced, max_objects: MAX_OBJECTS };
    let listed =
        Handle::current().block_on(list_items_with_client(client, &listing, &mut problems));
    match listed {
        Ok(items) => Ok(Fleet::from_items(items, problems)),
        Err(ListingError { cause: ListError::TooManyObjects(_), .. }) => {
            Err(SimulationError::TooLarge { command: command() })
        }
        Err(ListingError { cause: ListError::Call(error), objects }) => {
            Err(match error.status_code() {
                Some(401) => SimulationError::SignedOut,
                Some(403) => SimulationError::Forbidden { objects },
                _ => SimulationError::Unavailable(error),
            })
        }
    }
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

fn refusal(refusal: HostRefusal) -> Refusal {
    let HostRefusal { reason, hosts, example, detail } = refusal;
    Refusal { hosts, reason, example, detail }
}
