//! Decides how many machines of a MachineDeployment to create and which machines to delete. The rules are those of
//! Kubernetes' Deployments (`pkg/controller/deployment/rolling.go`), with machines instead of pods.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::deployment::{DeploymentSpec, RollingUpdate};

/// An existing machine of the MachineDeployment.
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
    pub removal: RemovalMark,
    /// True if a user has requested that this machine is removed before other machines.
    pub is_removed_first: bool,
    /// True if it is unknown whether the machine is ready.
    pub is_readiness_unknown: bool,
}

/// Removal mark of a machine. A marked machine counts neither as available nor as one of the desired machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovalMark {
    /// The machine has no removal mark.
    #[default]
    None,
    /// The machine is being drained. It counts for `maxSurge`, because it still uses a host.
    Draining,
    /// The machine has stopped, or its host is lost: it is replaced regardless of `maxSurge`.
    Lost,
}

/// Machines that are removed first. The policy applies among machines that are equally ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletePolicy {
    /// The youngest machines are removed first, as in a ReplicaSet.
    #[default]
    Newest,
    /// The oldest machines are removed first.
    Oldest,
}

/// The decision about a MachineDeployment: actions, and numbers for its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutDecision {
    /// Number of machines to create.
    pub create_count: u32,
    /// Names of the machines to delete.
    pub machines_to_delete: Vec<String>,
    /// Seconds until the next reconcile if no event triggers one before; `None` if only an event triggers the next
    /// reconcile.
    pub requeue_after: Option<u32>,
    /// Numbers for the `status` of the MachineDeployment.
    pub counts: ReplicaCounts,
    /// True if the desired number of machines of the current template is available, and all other machines are being
    /// removed.
    pub is_complete: bool,
    /// True if it is unknown whether machines are ready. In this case no machine is replaced, and the numbers of ready
    /// and available machines are not valid.
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
    /// Number of available machines that are missing from the desired number.
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
    /// Maximum number by which the available machines may fall below the desired number.
    pub max_unavailable: u32,
}

/// Bounds of a rolling update, as numbers of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RollingUpdateBounds {
    max_surge: u32,
    max_unavailable: u32,
}

/// Decides which machines to create and delete at the time `now`, in seconds since the epoch. `delete_policy` selects
/// the machines to delete. `backoff` is the time in seconds for which no machine may be created, because previous
/// machines have failed.
///
/// # Errors
///
/// Returns an error if the strategy is invalid.
pub fn decide_rollout<'m>(
    spec: &DeploymentSpec,
    machines: &'m [ExistingMachine],
    delete_policy: DeletePolicy,
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
        machines_to_delete(machines, count, delete_policy, is_available)
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
        // Only surplus machines are deleted. Machines are created only if all existing machines have the current
        // template: otherwise the missing machines would belong to the previous template, of which none can be created
        // any more, and a paused rollout must not create the first machines of the new template.
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
        // A machine with a removal mark, for example because its host is being drained, is also replaced within
        // `maxSurge`.
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
        // Until it is known whether the new machines are ready, no machine is replaced. A reduction of `replicas` still
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

/// Selects `count` machines to delete: first the machines that a user has selected, then unavailable machines (as in a
/// ReplicaSet), then the youngest or the oldest machines.
fn machines_to_delete<'a>(
    machines: &[&'a ExistingMachine],
    count: u32,
    delete_policy: DeletePolicy,
    is_available: impl Fn(&ExistingMachine) -> bool,
) -> Vec<&'a ExistingMachine> {
    let mut sorted = machines.to_vec();
    sorted.sort_by_key(|machine| {
        let age = match delete_policy {
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

/// Converts a number of machines, or a percentage of `desired`, to a number of machines. Percentages are rounded up for
/// maxSurge, and down for maxUnavailable.
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
#[path = "rollout_tests.rs"]
mod tests;
