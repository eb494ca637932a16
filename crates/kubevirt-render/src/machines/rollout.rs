//! Decides how many machines of a MachineDeployment to create and which machines to delete. The rules are those of
//! Kubernetes' Deployments (`pkg/controller/deployment/rolling.go`), with machines instead of pods.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::deployment::{DeploymentSpec, RollingUpdate};

/// A machine of the MachineDeployment that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingMachine {
    /// Field `metadata.name`.
    pub name: String,
    /// True if the machine was created from the current template.
    pub is_current: bool,
    /// Creation time, in seconds since the epoch.
    pub creation_time: i64,
    /// Time at which the machine became ready, in seconds since the epoch; `None` if the machine is not ready.
    pub ready_since: Option<i64>,
    /// True if the machine is being deleted.
    pub is_deleting: bool,
    /// True if the machine has ended and will not be started again (run strategy Once).
    pub has_failed: bool,
    /// Mark of a machine that is being removed.
    pub removal: RemovalMark,
    /// True if a user wants this machine to be removed before others.
    pub is_removed_first: bool,
    /// True if it is not known whether the machine is ready.
    pub is_readiness_unknown: bool,
}

/// Mark of a machine that is being removed. A marked machine is not available, and is not one of the desired machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovalMark {
    /// The machine has no mark.
    #[default]
    None,
    /// The machine is drained. It counts for `maxSurge`, because it still uses a host.
    Draining,
    /// The machine does not run any more, or its host is lost: it is replaced without regard to `maxSurge`.
    Lost,
}

/// Machines that are removed first, among those that are equally ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletePolicy {
    /// The youngest machines, as in a ReplicaSet.
    #[default]
    Newest,
    /// The oldest machines.
    Oldest,
}

/// The decision about a MachineDeployment: actions, and numbers for its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutDecision {
    /// Number of machines to create.
    pub create_count: u32,
    /// Names of the machines to delete.
    pub machines_to_delete: Vec<String>,
    /// Seconds until the next reconcile, if no event triggers a reconcile before.
    pub requeue_after: Option<u32>,
    /// Numbers for the `status` of the MachineDeployment.
    pub counts: ReplicaCounts,
    /// True if the desired number of machines of the current template is available, and no other machines exist but
    /// those that are being removed.
    pub is_complete: bool,
    /// True if it is not known whether machines are ready. Then no machine is replaced, and the numbers of ready and
    /// available machines are not valid.
    pub is_readiness_unknown: bool,
}

/// Numbers for the `status` of a MachineDeployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Number of existing machines, without machines that are being removed.
    pub replicas: u32,
    /// Number of machines that were created from the current template and have not failed.
    pub updated: u32,
    /// Number of ready machines.
    pub ready: u32,
    /// Number of machines that have been ready for `minReadySeconds`.
    pub available: u32,
    /// Number of machines that are missing from the desired number of available machines.
    pub unavailable: u32,
}

/// Error about an invalid field of `spec.strategy` or `spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: `{value}`: {message}")]
pub struct StrategyError {
    /// Path of the field.
    pub field: &'static str,
    /// Value of the field.
    pub value: String,
    /// Description of the problem.
    pub message: &'static str,
}

/// Limits for the replacement of machines that must leave their host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacementLimits {
    /// Desired number of machines.
    pub desired: u32,
    /// Maximum number of machines in addition to the desired number.
    pub max_surge: u32,
    /// Maximum number of machines that are missing from the desired number of available machines.
    pub max_unavailable: u32,
}

/// Bounds of a rolling update, as numbers of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RollingUpdateBounds {
    max_surge: u32,
    max_unavailable: u32,
}

/// Decides which machines to create and delete at the time `now`. `policy` selects the machines to delete. `backoff` is
/// the number of seconds for which no machine may be created, because previous machines have failed.
///
/// # Errors
/// Returns an error if the strategy is invalid.
pub fn decide_rollout<'m>(
    spec: &DeploymentSpec,
    machines: &'m [ExistingMachine],
    policy: DeletePolicy,
    now: i64,
    backoff: Option<u32>,
) -> Result<RolloutDecision, StrategyError> {
    let desired = desired_replicas(spec)?;
    let bounds = rolling_update_bounds(spec, desired)?;
    let is_rolling = is_rolling_update(spec)?;
    let min_ready = i64::from(spec.min_ready_seconds.unwrap_or(0).max(0));
    let is_available = |machine: &ExistingMachine| {
        machine.ready_since.is_some_and(|since| now - since >= min_ready)
    };
    let (failed, alive): (Vec<&'m ExistingMachine>, Vec<&'m ExistingMachine>) = machines
        .iter()
        .filter(|machine| !machine.is_deleting && machine.removal == RemovalMark::None)
        .partition(|machine| machine.has_failed);
    let is_draining = |machine: &&ExistingMachine| {
        !machine.is_deleting && machine.removal == RemovalMark::Draining
    };
    let draining = u32::try_from(machines.iter().filter(is_draining).count()).unwrap_or(u32::MAX);
    let is_readiness_unknown = alive.iter().any(|machine| machine.is_readiness_unknown);
    let select = |machines: &[&'m ExistingMachine], count: u32| {
        machines_to_delete(machines, count, policy, is_available)
    };
    let (new, old): (Vec<&'m ExistingMachine>, Vec<&'m ExistingMachine>) =
        alive.iter().partition(|machine| machine.is_current);
    let count = |list: &[&ExistingMachine]| u32::try_from(list.len()).unwrap_or(u32::MAX);
    let available = |list: &[&ExistingMachine]| {
        u32::try_from(list.iter().filter(|machine| is_available(machine)).count())
            .unwrap_or(u32::MAX)
    };
    let all_available = available(&alive);
    let counts = ReplicaCounts {
        replicas: count(&alive).saturating_add(count(&failed)),
        updated: count(&new),
        ready: u32::try_from(alive.iter().filter(|machine| machine.ready_since.is_some()).count())
            .unwrap_or(u32::MAX),
        available: all_available,
        unavailable: desired.saturating_sub(all_available),
    };
    let mut delete: Vec<&'m ExistingMachine> = Vec::new();
    let mut create = 0;
    if spec.paused {
        // Only surplus machines are deleted, and machines are created only if all existing machines have the current
        // template: machines of the previous template cannot be created any more, and a paused rollout must not create
        // the first machines of the new template.
        delete.extend(select(&alive, count(&alive).saturating_sub(desired)));
        if old.is_empty() {
            create = desired.saturating_sub(count(&alive));
        }
    } else if is_rolling {
        let min_available = desired.saturating_sub(bounds.max_unavailable);
        let create_limit = desired.saturating_add(bounds.max_surge);
        let create_limit = create_limit.saturating_sub(count(&alive)).saturating_sub(draining);
        create = desired.saturating_sub(count(&new)).min(create_limit);
        delete.extend(select(&new, count(&new).saturating_sub(desired)));
        let new_unavailable = count(&new).min(desired).saturating_sub(available(&new));
        let spare = count(&alive).saturating_sub(min_available).saturating_sub(new_unavailable);
        let (running, idle): (Vec<&'m ExistingMachine>, Vec<&'m ExistingMachine>) =
            old.iter().partition(|machine| is_available(machine));
        let first = select(&idle, spare);
        let remaining =
            spare.saturating_sub(count(&first)).min(all_available.saturating_sub(min_available));
        delete.extend(first);
        delete.extend(select(&running, remaining));
    } else {
        // A machine that another part of Berth has marked, for example because its host is drained, is replaced within
        // `maxSurge` too.
        let create_limit = desired.saturating_add(bounds.max_surge);
        let create_limit = create_limit.saturating_sub(count(&alive)).saturating_sub(draining);
        create = desired.saturating_sub(count(&alive)).min(create_limit);
        let surplus = count(&alive).saturating_sub(desired);
        let first = select(&old, surplus);
        let remaining = surplus.saturating_sub(count(&first));
        delete.extend(first);
        delete.extend(select(&new, remaining));
    }
    if is_readiness_unknown {
        // No machine is replaced until it is known whether the new machines are ready. A lower number of replicas still
        // takes effect.
        let is_mixed = !old.is_empty() && !new.is_empty() && desired > 0;
        let kept = if is_mixed { desired.saturating_add(bounds.max_surge) } else { desired };
        let surplus = count(&alive).saturating_sub(kept);
        let first = select(&old, surplus);
        let remaining = surplus.saturating_sub(count(&first));
        delete = first;
        delete.extend(select(&new, remaining));
    }
    // Failed machines are always deleted, even if the MachineDeployment is paused.
    delete.extend(failed.iter().copied());
    let becomes_available = alive
        .iter()
        .filter(|machine| !is_available(machine))
        .filter_map(|machine| machine.ready_since);
    let becomes_available = becomes_available.map(|since| (since + min_ready - now).max(1)).min();
    let becomes_available = becomes_available.and_then(|seconds| u32::try_from(seconds).ok());
    let deferred = backoff.filter(|_| create > 0);
    if deferred.is_some() {
        create = 0;
    }
    Ok(RolloutDecision {
        create_count: create,
        machines_to_delete: delete.into_iter().map(|machine| machine.name.clone()).collect(),
        requeue_after: becomes_available.into_iter().chain(deferred).min(),
        is_complete: counts.updated == desired
            && counts.replicas == desired
            && counts.available == desired,
        is_readiness_unknown,
        counts,
    })
}

/// Selects `count` machines to delete: first those that a user has selected, then unavailable machines, as in a ReplicaSet,
/// then the youngest or the oldest machines.
fn machines_to_delete<'a>(
    machines: &[&'a ExistingMachine],
    count: u32,
    policy: DeletePolicy,
    is_available: impl Fn(&ExistingMachine) -> bool,
) -> Vec<&'a ExistingMachine> {
    let mut sorted = machines.to_vec();
    sorted.sort_by_key(|machine| {
        let age = match policy {
            DeletePolicy::Newest => machine.creation_time.saturating_neg(),
            DeletePolicy::Oldest => machine.creation_time,
        };
        (
            !machine.is_removed_first,
            is_available(machine),
            machine.ready_since.is_some(),
            age,
            machine.name.clone(),
        )
    });
    sorted.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    sorted
}

/// Returns the limits for the replacement of machines that must leave their host. A MachineDeployment that is paused or
/// has the strategy OnDelete creates no machines in advance, so at least one of its machines may be unavailable.
///
/// # Errors
/// Returns an error if the strategy is invalid.
pub fn replacement_limits(spec: &DeploymentSpec) -> Result<ReplacementLimits, StrategyError> {
    let desired = desired_replicas(spec)?;
    let RollingUpdateBounds { max_surge, max_unavailable } = rolling_update_bounds(spec, desired)?;
    let creates_in_advance = is_rolling_update(spec)? && !spec.paused;
    Ok(if creates_in_advance {
        ReplacementLimits { desired, max_surge, max_unavailable }
    } else {
        ReplacementLimits { desired, max_surge: 0, max_unavailable: max_unavailable.max(1) }
    })
}

fn desired_replicas(spec: &DeploymentSpec) -> Result<u32, StrategyError> {
    let replicas = spec.replicas.unwrap_or(1);
    u32::try_from(replicas).map_err(|_| StrategyError {
        field: "spec.replicas",
        value: replicas.to_string(),
        message: "must not be negative",
    })
}

fn is_rolling_update(spec: &DeploymentSpec) -> Result<bool, StrategyError> {
    let kind =
        spec.strategy.as_ref().map(|strategy| strategy.strategy_type.as_str()).unwrap_or_default();
    match kind {
        "" | "RollingUpdate" => Ok(true),
        "OnDelete" => Ok(false),
        other => Err(StrategyError {
            field: "spec.strategy.type",
            value: other.to_owned(),
            message: "must be RollingUpdate or OnDelete",
        }),
    }
}

fn rolling_update_bounds(
    spec: &DeploymentSpec,
    desired: u32,
) -> Result<RollingUpdateBounds, StrategyError> {
    let default = RollingUpdate::default();
    let update = spec
        .strategy
        .as_ref()
        .and_then(|strategy| strategy.rolling_update.as_ref())
        .unwrap_or(&default);
    let number = |field, value: Option<&IntOrString>, default_amount: u32, rounds_up: bool| {
        resolve_amount(value, default_amount, desired, rounds_up)
            .map_err(|(value, message)| StrategyError { field, value, message })
    };
    let surge = number("spec.strategy.rollingUpdate.maxSurge", update.max_surge.as_ref(), 1, true)?;
    let field = "spec.strategy.rollingUpdate.maxUnavailable";
    let unavailable = number(field, update.max_unavailable.as_ref(), 0, false)?;
    // If maxSurge and maxUnavailable were both 0, no machine could be replaced (ResolveFenceposts).
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    Ok(RollingUpdateBounds { max_surge: surge, max_unavailable: unavailable })
}

/// Converts a number or a percentage of `desired` to a number of machines. Percentages are rounded up for maxSurge
/// and down for maxUnavailable.
fn resolve_amount(
    value: Option<&IntOrString>,
    default_amount: u32,
    desired: u32,
    rounds_up: bool,
) -> Result<u32, (String, &'static str)> {
    let message = "must be a non-negative number or a percentage such as 25%";
    match value {
        None => Ok(default_amount),
        Some(IntOrString::Int(number)) => {
            u32::try_from(*number).map_err(|_| (number.to_string(), message))
        }
        Some(IntOrString::String(text)) => {
            let percent =
                text.strip_suffix('%').and_then(|number| number.trim().parse::<u32>().ok());
            let percent = percent
                .filter(|percent| *percent <= 1000)
                .ok_or_else(|| (text.clone(), message))?;
            let exact = u64::from(desired) * u64::from(percent);
            let rounded = if rounds_up { exact.div_ceil(100) } else { exact / 100 };
            Ok(u32::try_from(rounded).unwrap_or(u32::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::deployment::UpdateStrategy as DeploymentStrategy;
    use super::*;

    fn deployment_spec(replicas: i32, surge: &str, unavailable: &str) -> DeploymentSpec {
        let value = |text: &str| match text.parse() {
            Ok(number) => IntOrString::Int(number),
            Err(_) => IntOrString::String(text.to_owned()),
        };
        DeploymentSpec {
            replicas: Some(replicas),
            strategy: Some(DeploymentStrategy {
                strategy_type: "RollingUpdate".to_owned(),
                rolling_update: Some(RollingUpdate {
                    max_surge: Some(value(surge)),
                    max_unavailable: Some(value(unavailable)),
                }),
            }),
            ..DeploymentSpec::default()
        }
    }

    fn decide(
        spec: &DeploymentSpec,
        machines: &[ExistingMachine],
        now: i64,
        backoff: Option<u32>,
    ) -> Result<RolloutDecision, StrategyError> {
        decide_rollout(spec, machines, DeletePolicy::default(), now, backoff)
    }

    fn machine(name: &str, is_current: bool, ready_since: Option<i64>) -> ExistingMachine {
        ExistingMachine {
            name: name.to_owned(),
            is_current,
            creation_time: 0,
            ready_since,
            is_deleting: false,
            has_failed: false,
            removal: RemovalMark::None,
            is_removed_first: false,
            is_readiness_unknown: false,
        }
    }

    #[test]
    fn a_paused_deployment_replaces_without_surge() {
        let mut spec = deployment_spec(4, "25%", "0");
        let limits = |max_surge, max_unavailable| ReplacementLimits {
            desired: 4,
            max_surge,
            max_unavailable,
        };
        assert_eq!(replacement_limits(&spec).unwrap(), limits(1, 0));
        spec.paused = true;
        assert_eq!(replacement_limits(&spec).unwrap(), limits(0, 1));
    }

    #[test]
    fn surge_creates_a_machine_before_one_is_deleted() {
        let spec = deployment_spec(2, "1", "0");
        let decision = decide(&spec, &[], 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (2, 0));
        let mut machines = vec![machine("a", false, Some(1)), machine("b", false, Some(1))];
        let decision = decide(&spec, &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (1, 0));
        machines.push(machine("c", true, None));
        let decision = decide(&spec, &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 0));
        machines[2].ready_since = Some(90);
        let decision = decide(&spec, &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 1));
        assert!(!decision.is_complete);
    }

    #[test]
    fn unavailable_machines_are_deleted_first_and_failed_machines_at_once() {
        let spec = deployment_spec(2, "0", "1");
        let mut machines = vec![machine("a", false, Some(1)), machine("b", false, None)];
        let decision = decide(&spec, &machines, 100, None).unwrap();
        assert_eq!(decision.machines_to_delete, ["b"]);
        machines[1].has_failed = true;
        let decision = decide(&spec, &machines, 100, Some(20)).unwrap();
        assert_eq!(
            (decision.machines_to_delete, decision.create_count, decision.requeue_after),
            (vec!["b".to_owned()], 0, Some(20))
        );
        assert_eq!(decide(&spec, &machines, 100, None).unwrap().create_count, 1);
    }

    #[test]
    fn a_paused_deployment_scales_but_replaces_no_machine() {
        let mut spec = deployment_spec(2, "1", "0");
        spec.paused = true;
        let old = [machine("a", false, Some(1))];
        assert_eq!(decide(&spec, &old, 100, None).unwrap().create_count, 0);
        let new = [machine("a", true, Some(1))];
        assert_eq!(decide(&spec, &new, 100, None).unwrap().create_count, 1);
        spec.replicas = Some(0);
        assert_eq!(decide(&spec, &old, 100, None).unwrap().machines_to_delete, ["a"]);
    }

    #[test]
    fn a_machine_is_available_after_min_ready_seconds() {
        let mut spec = deployment_spec(1, "1", "0");
        spec.min_ready_seconds = Some(30);
        let decision = decide(&spec, &[machine("a", true, Some(90))], 100, None).unwrap();
        assert_eq!(
            (decision.counts.ready, decision.counts.available, decision.requeue_after),
            (1, 0, Some(20))
        );
        assert!(decide(&spec, &[machine("a", true, Some(60))], 100, None).unwrap().is_complete);
    }

    #[test]
    fn marked_machines_are_replaced_within_the_strategy() {
        let marked = |mark| ExistingMachine { removal: mark, ..machine("b", true, Some(1)) };
        let create_count = |surge: &str, mark| {
            let machines = [machine("a", true, Some(1)), marked(mark)];
            let decision = decide(&deployment_spec(2, surge, "1"), &machines, 100, None).unwrap();
            assert_eq!((decision.counts.replicas, decision.counts.available), (1, 1));
            assert!(decision.machines_to_delete.is_empty(), "{decision:?}");
            decision.create_count
        };
        assert_eq!(create_count("1", RemovalMark::Draining), 1);
        assert_eq!(create_count("0", RemovalMark::Draining), 0);
        assert_eq!(create_count("0", RemovalMark::Lost), 1);
        // While a machine is drained, no other machine is removed that must stay available.
        let machines = [
            machine("a", false, Some(1)),
            ExistingMachine { removal: RemovalMark::Draining, ..machine("b", false, Some(1)) },
            machine("c", true, Some(1)),
        ];
        let decision = decide(&deployment_spec(2, "1", "0"), &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 0));
        // A mark of another part of Berth, which a store lacks, leaves no deletion that was computed before.
        let spec = deployment_spec(2, "0", "1");
        let mut machines = [machine("a", false, Some(1)), machine("b", false, Some(1))];
        assert_eq!(decide(&spec, &machines, 100, None).unwrap().machines_to_delete, ["a"]);
        machines[1].removal = RemovalMark::Draining;
        assert!(decide(&spec, &machines, 100, None).unwrap().machines_to_delete.is_empty());
    }

    #[test]
    fn users_choose_the_machines_to_delete() {
        let at = |name: &str, creation_time| ExistingMachine {
            creation_time,
            ..machine(name, true, Some(creation_time))
        };
        let mut machines = vec![at("old", 1), at("middle", 2), at("young", 3)];
        let spec = deployment_spec(2, "1", "0");
        let delete = |machines: &[ExistingMachine], policy| {
            decide_rollout(&spec, machines, policy, 100, None).unwrap().machines_to_delete
        };
        assert_eq!(delete(&machines, DeletePolicy::Newest), ["young"]);
        assert_eq!(delete(&machines, DeletePolicy::Oldest), ["old"]);
        machines[0].ready_since = None;
        assert_eq!(delete(&machines, DeletePolicy::Newest), ["old"], "not available");
        machines[1].is_removed_first = true;
        assert_eq!(delete(&machines, DeletePolicy::Newest), ["middle"]);
    }

    #[test]
    fn unknown_readiness_replaces_no_machine() {
        let unknown = |name: &str, is_current| ExistingMachine {
            is_readiness_unknown: true,
            ..machine(name, is_current, None)
        };
        let machines =
            [unknown("a", false), unknown("b", false), unknown("c", false), unknown("d", true)];
        let decide = |replicas: i32, machines: &[ExistingMachine]| {
            let decision =
                decide(&deployment_spec(replicas, "1", "1"), machines, 100, None).unwrap();
            assert!(decision.is_readiness_unknown);
            decision.machines_to_delete
        };
        assert!(decide(3, &machines).is_empty());
        assert_eq!(decide(2, &machines), ["a"]);
        assert_eq!(decide(0, &machines).len(), 4);
        assert_eq!(decide(1, &machines[..2]), ["a"], "no rollout is in progress");
    }

    #[test]
    fn invalid_fields_are_reported() {
        for (spec, words) in [
            (deployment_spec(-1, "1", "0"), "spec.replicas: `-1`: must not be negative"),
            (deployment_spec(1, "-1", "0"), "maxSurge: `-1`"),
            (deployment_spec(1, "x%", "0"), "maxSurge: `x%`"),
            (deployment_spec(1, "1", "99999999999%"), "maxUnavailable: `99999999999%`"),
        ] {
            assert!(decide(&spec, &[], 0, None).unwrap_err().to_string().contains(words));
        }
        let mut other = deployment_spec(1, "1", "0");
        other.strategy.as_mut().unwrap().strategy_type = "Recreate".to_owned();
        assert!(decide(&other, &[], 0, None).unwrap_err().to_string().contains("`Recreate`"));
        assert_eq!(resolve_amount(Some(&IntOrString::String("25%".into())), 0, 5, true), Ok(2));
        assert_eq!(resolve_amount(Some(&IntOrString::String("25%".into())), 0, 5, false), Ok(1));
    }

    proptest! {
        /// From any initial state, the rollout ends with the desired number of current machines. Meanwhile the number
        /// of machines never exceeds the limit, and the number of ready machines, once sufficient, never falls below
        /// the minimum.
        #[test]
        fn every_rollout_completes(
            replicas in 0_i32..6, surge in 0_u32..4, unavailable in 0_u32..4,
            start in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..8),
            luck in prop::collection::vec(any::<bool>(), 40)
        ) {
            let spec = deployment_spec(replicas, &surge.to_string(), &unavailable.to_string());
            let mut machines: Vec<ExistingMachine> = start.iter().enumerate().map(|(at, &(is_current, runs, failed))| ExistingMachine {
                has_failed: failed && !runs,
                ..machine(&format!("s{at}"), is_current, runs.then_some(0))
            }).collect();
            let (desired, surge) = (replicas.unsigned_abs() as usize, surge as usize);
            let missing = if surge == 0 && unavailable == 0 { 1 } else { unavailable as usize };
            let mut now = 0;
            for step in 0..200 {
                now += 1;
                let before = machines.iter().filter(|m| m.removal == RemovalMark::None && m.ready_since.is_some()).count();
                let decision = decide(&spec, &machines, now, None).unwrap();
                let is_marked = |m: &ExistingMachine| m.removal != RemovalMark::None;
                if decision.is_complete && decision.create_count == 0 && decision.machines_to_delete.is_empty() && !machines.iter().any(is_marked) {
                    prop_assert_eq!(machines.len(), desired);
                    return Ok(());
                }
                for machine in machines.iter_mut().filter(|m| decision.machines_to_delete.contains(&m.name)) {
                    prop_assert_eq!(machine.removal, RemovalMark::None, "a marked machine is deleted again");
                    machine.removal = if machine.has_failed { RemovalMark::Lost } else { RemovalMark::Draining };
                }
                let is_counted = |m: &&ExistingMachine| m.removal == RemovalMark::None && m.ready_since.is_some();
                let runs = machines.iter().filter(is_counted).count();
                prop_assert!(runs >= desired.saturating_sub(missing).min(before), "too few machines are ready: {decision:?}");
                for at in 0..decision.create_count {
                    machines.push(machine(&format!("n{step}-{at}"), true, None));
                }
                if decision.create_count > 0 {
                    let count = machines.iter().filter(|m| m.removal != RemovalMark::Lost).count();
                    prop_assert!(count <= desired + surge.max(usize::from(surge == 0 && missing == 0)), "too many machines exist: {decision:?}");
                }
                // Some machines become ready in this step, and some are drained; all eventually.
                if luck.get(step).copied().unwrap_or(true) {
                    for machine in machines.iter_mut().filter(|m| m.ready_since.is_none() && !m.has_failed) {
                        machine.ready_since = Some(now);
                    }
                }
                if luck.get(step * 7 % 40).copied().unwrap_or(true) || step > 40 {
                    let drained = machines.iter().position(is_marked);
                    if let Some(at) = drained {
                        machines.remove(at);
                    }
                }
            }
            prop_assert!(false, "the rollout does not complete: {machines:?}");
        }
    }
}
