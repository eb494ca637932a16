//! Decides how many machines of a MachineDeployment to create and which machines to delete. The rules are those of
//! Kubernetes' Deployments (`pkg/controller/deployment/rolling.go`), with machines instead of pods.

use std::cmp::Reverse;

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
    /// True if the desired number of machines of the current template is available, and no other machines exist.
    pub is_complete: bool,
}

/// Numbers for the `status` of a MachineDeployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Number of existing machines, without machines that are being deleted.
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

/// Decides which machines to create and delete at the time `now`. `backoff` is the number of seconds for which no
/// machine may be created, because previous machines have failed.
///
/// # Errors
/// Returns an error if the strategy is invalid.
pub fn decide_rollout(
    spec: &DeploymentSpec,
    machines: &[ExistingMachine],
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
    let (failed, alive): (Vec<&ExistingMachine>, Vec<&ExistingMachine>) = machines
        .iter()
        .filter(|machine| !machine.is_deleting)
        .partition(|machine| machine.has_failed);
    let (new, old): (Vec<&ExistingMachine>, Vec<&ExistingMachine>) =
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
    let mut delete: Vec<&ExistingMachine> = Vec::new();
    let mut create = 0;
    if spec.paused {
        // Only surplus machines are deleted, and machines are created only if all existing machines have the current
        // template: machines of the previous template cannot be created any more, and a paused rollout must not create
        // the first machines of the new template.
        delete.extend(machines_to_delete(
            &alive,
            count(&alive).saturating_sub(desired),
            is_available,
        ));
        if old.is_empty() {
            create = desired.saturating_sub(count(&alive));
        }
    } else if is_rolling {
        let min_available = desired.saturating_sub(bounds.max_unavailable);
        let create_limit = desired.saturating_add(bounds.max_surge).saturating_sub(count(&alive));
        create = desired.saturating_sub(count(&new)).min(create_limit);
        delete.extend(machines_to_delete(&new, count(&new).saturating_sub(desired), is_available));
        let new_unavailable = count(&new).min(desired).saturating_sub(available(&new));
        let spare = count(&alive).saturating_sub(min_available).saturating_sub(new_unavailable);
        let (running, idle): (Vec<&ExistingMachine>, Vec<&ExistingMachine>) =
            old.iter().partition(|machine| is_available(machine));
        let first: Vec<&ExistingMachine> = machines_to_delete(&idle, spare, is_available);
        let remaining =
            spare.saturating_sub(count(&first)).min(all_available.saturating_sub(min_available));
        delete.extend(first);
        delete.extend(machines_to_delete(&running, remaining, is_available));
    } else {
        create = desired.saturating_sub(count(&alive));
        let surplus = count(&alive).saturating_sub(desired);
        let first = machines_to_delete(&old, surplus, is_available);
        let remaining = surplus.saturating_sub(count(&first));
        delete.extend(first);
        delete.extend(machines_to_delete(&new, remaining, is_available));
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
        counts,
    })
}

/// Selects `count` machines to delete. As in a ReplicaSet, unavailable machines are selected first, then the youngest
/// machines.
fn machines_to_delete<'a>(
    machines: &[&'a ExistingMachine],
    count: u32,
    is_available: impl Fn(&ExistingMachine) -> bool,
) -> Vec<&'a ExistingMachine> {
    let mut sorted = machines.to_vec();
    sorted.sort_by_key(|machine| {
        (
            is_available(machine),
            machine.ready_since.is_some(),
            Reverse(machine.creation_time),
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

    fn machine(name: &str, is_current: bool, ready_since: Option<i64>) -> ExistingMachine {
        ExistingMachine {
            name: name.to_owned(),
            is_current,
            creation_time: 0,
            ready_since,
            is_deleting: false,
            has_failed: false,
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
        let decision = decide_rollout(&spec, &[], 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (2, 0));
        let mut machines = vec![machine("a", false, Some(1)), machine("b", false, Some(1))];
        let decision = decide_rollout(&spec, &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (1, 0));
        machines.push(machine("c", true, None));
        let decision = decide_rollout(&spec, &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 0));
        machines[2].ready_since = Some(90);
        let decision = decide_rollout(&spec, &machines, 100, None).unwrap();
        assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 1));
        assert!(!decision.is_complete);
    }

    #[test]
    fn unavailable_machines_are_deleted_first_and_failed_machines_at_once() {
        let spec = deployment_spec(2, "0", "1");
        let mut machines = vec![machine("a", false, Some(1)), machine("b", false, None)];
        let decision = decide_rollout(&spec, &machines, 100, None).unwrap();
        assert_eq!(decision.machines_to_delete, ["b"]);
        machines[1].has_failed = true;
        let decision = decide_rollout(&spec, &machines, 100, Some(20)).unwrap();
        assert_eq!(
            (decision.machines_to_delete, decision.create_count, decision.requeue_after),
            (vec!["b".to_owned()], 0, Some(20))
        );
        assert_eq!(decide_rollout(&spec, &machines, 100, None).unwrap().create_count, 1);
    }

    #[test]
    fn a_paused_deployment_scales_but_replaces_no_machine() {
        let mut spec = deployment_spec(2, "1", "0");
        spec.paused = true;
        let old = [machine("a", false, Some(1))];
        assert_eq!(decide_rollout(&spec, &old, 100, None).unwrap().create_count, 0);
        let new = [machine("a", true, Some(1))];
        assert_eq!(decide_rollout(&spec, &new, 100, None).unwrap().create_count, 1);
        spec.replicas = Some(0);
        assert_eq!(decide_rollout(&spec, &old, 100, None).unwrap().machines_to_delete, ["a"]);
    }

    #[test]
    fn a_machine_is_available_after_min_ready_seconds() {
        let mut spec = deployment_spec(1, "1", "0");
        spec.min_ready_seconds = Some(30);
        let decision = decide_rollout(&spec, &[machine("a", true, Some(90))], 100, None).unwrap();
        assert_eq!(
            (decision.counts.ready, decision.counts.available, decision.requeue_after),
            (1, 0, Some(20))
        );
        assert!(
            decide_rollout(&spec, &[machine("a", true, Some(60))], 100, None).unwrap().is_complete
        );
    }

    #[test]
    fn invalid_fields_are_reported() {
        for (spec, words) in [
            (deployment_spec(-1, "1", "0"), "spec.replicas: `-1`: must not be negative"),
            (deployment_spec(1, "-1", "0"), "maxSurge: `-1`"),
            (deployment_spec(1, "x%", "0"), "maxSurge: `x%`"),
            (deployment_spec(1, "1", "99999999999%"), "maxUnavailable: `99999999999%`"),
        ] {
            assert!(decide_rollout(&spec, &[], 0, None).unwrap_err().to_string().contains(words));
        }
        let mut other = deployment_spec(1, "1", "0");
        other.strategy.as_mut().unwrap().strategy_type = "Recreate".to_owned();
        assert!(
            decide_rollout(&other, &[], 0, None).unwrap_err().to_string().contains("`Recreate`")
        );
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
                let before = machines.iter().filter(|m| m.ready_since.is_some()).count();
                let decision = decide_rollout(&spec, &machines, now, None).unwrap();
                if decision.is_complete && decision.create_count == 0 && decision.machines_to_delete.is_empty() {
                    prop_assert_eq!(machines.len(), desired);
                    return Ok(());
                }
                machines.retain(|machine| !decision.machines_to_delete.contains(&machine.name));
                let runs = machines.iter().filter(|m| m.ready_since.is_some()).count();
                prop_assert!(runs >= desired.saturating_sub(missing).min(before), "too few machines are ready: {decision:?}");
                for at in 0..decision.create_count {
                    machines.push(machine(&format!("n{step}-{at}"), true, None));
                }
                if decision.create_count > 0 {
                    prop_assert!(machines.len() <= desired + surge.max(usize::from(surge == 0 && missing == 0)), "too many machines exist: {decision:?}");
                }
                // Some machines become ready in this step; all become ready eventually.
                for machine in machines.iter_mut().filter(|m| m.ready_since.is_none() && !m.has_failed) {
                    if luck.get(step).copied().unwrap_or(true) {
                        machine.ready_since = Some(now);
                    }
                }
            }
            prop_assert!(false, "the rollout does not complete: {machines:?}");
        }
    }
}
