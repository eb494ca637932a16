//! Decides for each machine on a host that it must leave: migrate it, replace it, or wait.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::Problem;
use berth_extender::{MigrationQuery, MigrationTarget};
use k8s_openapi::jiff::Timestamp;

use super::deployment::DeploymentState;
use super::machine::{EvacuatingMachine, Machine};
use super::migration::{NextAttempt, name_prefix, next_attempt};
use super::reason::{EvacuationReason, ReplacementCause};
use crate::removal::mark::RemovalReason;

/// Maximum number of live migrations from one host at the same time, the default of KubeVirt
/// (`parallelOutboundMigrationsPerNode`).
pub const MAX_MIGRATIONS_PER_HOST: usize = 2;
/// Time for which a machine waits for its replacement. Afterwards it is removed without a replacement, if at most
/// `maxUnavailable` machines of the MachineDeployment are then unavailable.
pub const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(600);

/// Namespace and name of a MachineDeployment, from the label of its machines.
pub type DeploymentKey = (String, String);

/// State of each MachineDeployment, or the problem if it is invalid.
pub type Deployments = BTreeMap<DeploymentKey, Result<DeploymentState, Problem>>;

/// Migration targets that the assignment engine has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// This controller has no engine. Only the scheduling of the migration's target pod shows whether a host fits.
    NoEngine,
    /// The engine does not know all objects yet.
    NotReady,
    /// Target of each VM, by the UID of its instance.
    Known(BTreeMap<String, MigrationTarget>),
}

/// Next action of the controller for a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// No action: the machine waits.
    Wait,
    /// Creates a live migration with this name.
    Migrate(String),
    /// Requests a replacement from the MachineDeployment.
    RequestReplacement,
    /// Marks the machine for removal.
    Remove,
}

/// Decision about one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Action that the controller takes now.
    pub action: Action,
    /// Reason why the machine waits after the action.
    pub reason: EvacuationReason,
    /// Time at which the next step happens at the latest, if it is known.
    pub until: Option<Timestamp>,
}

impl Decision {
    const fn wait(reason: EvacuationReason) -> Self {
        Self { action: Action::Wait, reason, until: None }
    }
}

/// Returns the queries to the engine: first the VMs whose migration is in progress, so that no other VM gets their
/// targets.
#[must_use]
pub fn migration_queries(
    host: &str,
    machines: &[EvacuatingMachine],
    now: Timestamp,
) -> Vec<MigrationQuery> {
    let (mut active, mut next) = (Vec::new(), Vec::new());
    for one in machines {
        let query =
            MigrationQuery { instance_uid: one.instance_uid.clone(), source_host: host.to_owned() };
        match next_attempt(&one.migrations, &name_prefix(&one.instance_uid, host), now) {
            NextAttempt::Active(_) => active.push(query),
            NextAttempt::Next(_) if may_migrate(one) => next.push(query),
            NextAttempt::Next(_) | NextAttempt::Backoff(_) | NextAttempt::Exhausted => {}
        }
    }
    if next.is_empty() {
        return next;
    }
    active.extend(next);
    active
}

fn may_migrate(one: &EvacuatingMachine) -> bool {
    one.deployment.is_some()
        && one.migration_obstacle.is_none()
        && one.machine.replacement_since.is_none()
        && !one.machine.is_leaving()
}

/// Decides about each machine, in the order of `machines`. Each removal and each replacement request reduces the budget
/// (`maxUnavailable`, `maxSurge`) for the machines that follow.
#[must_use]
pub fn decide(
    host: &str,
    machines: &[EvacuatingMachine],
    deployments: &mut Deployments,
    targets: &Targets,
    now: Timestamp,
) -> Vec<Decision> {
    let is_active = |one: &&EvacuatingMachine| {
        one.migrations.iter().any(|migration| !migration.phase.is_final())
    };
    let mut slots =
        MAX_MIGRATIONS_PER_HOST.saturating_sub(machines.iter().filter(is_active).count());
    let decide_one = |one: &EvacuatingMachine| {
        let Some(name) = &one.deployment else {
            return Decision::wait(EvacuationReason::NotManaged);
        };
        if one.machine.is_leaving() {
            let reason = one.machine.removal.map_or("deleted", RemovalReason::as_str);
            let report = one.machine.removal_report.clone();
            let until = report.as_ref().map(|report| report.deadline);
            let reason = EvacuationReason::BeingRemoved(reason.to_owned(), report);
            return Decision { action: Action::Wait, reason, until };
        }
        let cause = match decide_migration(host, one, targets, &mut slots, now) {
            Ok(decision) => return decision,
            Err(cause) => cause,
        };
        match deployments.get_mut(&(one.namespace.clone(), name.clone())) {
            Some(Ok(state)) => decide_replacement(&one.machine, state, cause, now),
            Some(Err(problem)) => {
                Decision::wait(EvacuationReason::InvalidDeployment(problem.to_string()))
            }
            None => Decision::wait(EvacuationReason::NotManaged),
        }
    };
    machines.iter().map(decide_one).collect()
}

/// Decides about a live migration.
///
/// # Errors
/// Returns the cause if the machine must be replaced.
fn decide_migration(
    host: &str,
    one: &EvacuatingMachine,
    targets: &Targets,
    slots: &mut usize,
    now: Timestamp,
) -> Result<Decision, ReplacementCause> {
    let obstacle = one.migration_obstacle.clone().map(ReplacementCause::NotMigratable);
    let requested = one.machine.replacement_since.map(|_| ReplacementCause::AlreadyRequested);
    let prefix = name_prefix(&one.instance_uid, host);
    let name = match (next_attempt(&one.migrations, &prefix, now), obstacle.or(requested)) {
        (NextAttempt::Active(active), _) => {
            return Ok(Decision::wait(EvacuationReason::Migrating(active.name.clone())));
        }
        (_, Some(cause)) => return Err(cause),
        (NextAttempt::Exhausted, None) => return Err(ReplacementCause::MigrationsFailed),
        (NextAttempt::Backoff(until), None) => {
            let decision = Decision::wait(EvacuationReason::MigrationBackoff);
            return Ok(Decision { until: Some(until), ..decision });
        }
        (NextAttempt::Next(name), None) => name,
    };
    match targets {
        Targets::NoEngine => {}
        Targets::NotReady => return Ok(Decision::wait(EvacuationReason::EngineNotReady)),
        Targets::Known(targets) => match targets.get(&one.instance_uid) {
            Some(MigrationTarget::Host(_)) => {}
            Some(MigrationTarget::NoHost(refusals)) => {
                return Err(ReplacementCause::NoHostFits(refusals.clone()));
            }
            Some(MigrationTarget::UnknownVm) | None => {
                return Ok(Decision::wait(EvacuationReason::EngineNotReady));
            }
        },
    }
    let Some(rest) = slots.checked_sub(1) else {
        return Ok(Decision::wait(EvacuationReason::MigrationLimit));
    };
    *slots = rest;
    let reason = EvacuationReason::Migrating(name.clone());
    Ok(Decision { action: Action::Migrate(name), reason, until: None })
}

/// Decides about the replacement of a machine: the replacement is created first where `maxSurge` permits it.
fn decide_replacement(
    machine: &Machine,
    state: &mut DeploymentState,
    cause: ReplacementCause,
    now: Timestamp,
) -> Decision {
    let requested = machine.replacement_since.filter(|_| state.has_surge());
    let deadline = requested.unwrap_or(now).checked_add(REPLACEMENT_TIMEOUT).unwrap_or(now);
    let until = state.has_budget().then_some(deadline);
    let is_due = !state.has_surge() || (requested.is_some() && now >= deadline);
    if state.is_replaced(machine) || (is_due && state.permits_removal(machine)) {
        state.record_removal(machine);
        let reason = RemovalReason::HostDrain.as_str().to_owned();
        let reason = EvacuationReason::BeingRemoved(reason, None);
        return Decision { action: Action::Remove, reason, until: None };
    }
    if requested.is_some() {
        let reason = EvacuationReason::WaitingForReplacement(cause);
        return Decision { action: Action::Wait, reason, until };
    }
    if state.permits_request() {
        state.record_request(machine);
        let reason = EvacuationReason::WaitingForReplacement(cause);
        return Decision { action: Action::RequestReplacement, reason, until };
    }
    Decision::wait(EvacuationReason::BudgetExhausted(cause))
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::machines::rollout::ReplacementLimits;

    use super::super::migration::{Migration, MigrationPhase};
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).unwrap()
    }

    fn machine(name: &str) -> EvacuatingMachine {
        EvacuatingMachine {
            namespace: "cluster-a".to_owned(),
            machine: Machine { name: name.to_owned(), is_ready: true, ..Machine::default() },
            instance_uid: format!("uid-{name}"),
            migration_obstacle: None,
            deployment: Some("web".to_owned()),
            migrations: Vec::new(),
        }
    }

    fn deployments(max_surge: u32, max_unavailable: u32, all: &[EvacuatingMachine]) -> Deployments {
        let machines: Vec<Machine> = all.iter().map(|one| one.machine.clone()).collect();
        let desired = u32::try_from(all.len()).unwrap();
        let limits = ReplacementLimits { desired, max_surge, max_unavailable };
        let state = DeploymentState::new(limits, &machines);
        Deployments::from([(("cluster-a".to_owned(), "web".to_owned()), Ok(state))])
    }

    fn names(decisions: &[Decision]) -> Vec<String> {
        let name = |one: &Decision| {
            let action = match one.action {
                Action::Wait => "wait",
                Action::Migrate(_) => "migrate",
                Action::RequestReplacement => "request",
                Action::Remove => "remove",
            };
            format!("{action} {}", one.reason.as_str())
        };
        decisions.iter().map(name).collect()
    }

    #[test]
    fn migratable_vms_are_migrated_within_the_limit() {
        let all = [machine("web-1"), machine("web-2"), machine("web-3")];
        let fits = |one: &EvacuatingMachine| {
            (one.instance_uid.clone(), MigrationTarget::Host("b".to_owned()))
        };
        let targets = Targets::Known(all.iter().map(fits).collect());
        let decided = decide("a", &all, &mut deployments(1, 0, &all), &targets, now());
        assert_eq!(
            names(&decided),
            ["migrate Migrating", "migrate Migrating", "wait MigrationLimit"]
        );
        assert_eq!(migration_queries("a", &all, now()).len(), 3);
        let decided =
            decide("a", &all[..1], &mut deployments(1, 0, &all), &Targets::NotReady, now());
        assert_eq!(names(&decided), ["wait EngineNotReady"]);
    }

    #[test]
    fn vms_without_a_host_are_replaced() {
        let all = [machine("web-1"), machine("web-2")];
        let refusals = vec![("node(s) were full".to_owned(), 3)];
        let none = |one: &EvacuatingMachine| {
            (one.instance_uid.clone(), MigrationTarget::NoHost(refusals.clone()))
        };
        let targets = Targets::Known(all.iter().map(none).collect());
        let decided = decide("a", &all, &mut deployments(1, 0, &all), &targets, now());
        assert_eq!(names(&decided), ["request WaitingForReplacement", "wait BudgetExhausted"]);
        assert!(decided[1].reason.to_string().ends_with("no other host: 3 node(s) were full"));
        let decided = decide("a", &all, &mut deployments(0, 1, &all), &targets, now());
        assert_eq!(names(&decided), ["remove BeingRemoved", "wait BudgetExhausted"]);
    }

    #[test]
    fn replacement_that_takes_too_long_uses_the_budget() {
        let mut all = [machine("web-1"), machine("web-2")];
        all[0].migration_obstacle = Some("disk is not shared".to_owned());
        all[0].machine.replacement_since = Some(now());
        let decided = |all: &[EvacuatingMachine], max_unavailable, after: i64| {
            let now = Timestamp::from_second(now().as_second() + after).unwrap();
            let mut deployments = deployments(1, max_unavailable, all);
            decide("a", &all[..1], &mut deployments, &Targets::NoEngine, now)
        };
        let early = decided(&all, 1, 599);
        assert_eq!(names(&early), ["wait WaitingForReplacement"]);
        assert_eq!(early[0].until.unwrap().as_second(), 1_000_600);
        assert_eq!(names(&decided(&all, 1, 600)), ["remove BeingRemoved"]);
        let late = decided(&all, 0, 600);
        assert_eq!(
            (names(&late), late[0].until),
            (vec!["wait WaitingForReplacement".to_owned()], None)
        );
    }

    #[test]
    fn machines_that_are_already_leaving_need_no_action() {
        let mut all = [machine("web-1"), machine("web-2"), machine("web-3")];
        all[0].machine.removal = Some(RemovalReason::Rollout);
        all[1].migrations = vec![Migration {
            name: "by-user".to_owned(),
            instance: "web-2".to_owned(),
            phase: MigrationPhase::Running,
            changed_at: now(),
            is_deleting: false,
        }];
        all[2].deployment = None;
        let decided = decide("a", &all, &mut deployments(0, 1, &all), &Targets::NoEngine, now());
        assert_eq!(names(&decided), ["wait BeingRemoved", "wait Migrating", "wait NotManaged"]);
    }
}
