//! Berth's drop-in for the kubelet: staged under a name that the kubelet does not read, and active under a name
//! that it reads.
//!
//! A running kubelet keeps its managers' state in memory and writes its checkpoints again. So the drop-in becomes
//! active, and old checkpoints are removed, only while no kubelet runs. A kubelet that starts at any moment then
//! never finds the new drop-in with the old checkpoints.

use super::action::KubeletAction;
use super::checkpoint::refused_checkpoints;
use super::paths::{checkpoint_path, checkpoint_paths};
use crate::plan::change::{Action, Change, ChangeReason, Disruption};
use crate::plan::id::{ChangeId, DropInState};
use crate::plan::input::Input;
use berth_host_facts::kubelet::KubeletFacts;
use berth_host_facts::kubelet::config_diff::FieldDifference;
use berth_host_facts::kubelet::drop_in::{ACTIVE_FILE_NAME, STAGED_FILE_NAME};

/// First lines of the drop-in. A file that begins differently does not belong to Berth.
pub const DROP_IN_HEADER: &str = "# Made by berth-agent; changes are overwritten. ";

/// Effect of a change that makes the drop-in active, or removes an active drop-in.
const CHECKPOINTS_REMOVED_EFFECT: &str =
    "the kubelet's checkpoints are removed too; takes effect when you start the kubelet";

pub(super) fn plan_drop_in(
    input: Input,
    differences: &[FieldDifference],
    configuration: &str,
) -> Vec<Change> {
    let kubelet = &input.facts.kubelet;
    let Some(folder) = &kubelet.config_dir else {
        if differences.is_empty() {
            return Vec::new();
        }
        let reason = "the kubelet runs without --config-dir (Kubernetes 1.28 and later), so it reads no \
                   drop-in; add the flag, or use mode Advise";
        let change = drop_in_change(
            DropInState::Staged,
            DropInState::Absent,
            ChangeReason::Spec,
            KubeletAction::Remove(Vec::new()),
        );
        return vec![change.blocked_by(Some(reason.to_owned()))];
    };
    let (active, staged) =
        (format!("{folder}/{ACTIVE_FILE_NAME}"), format!("{folder}/{STAGED_FILE_NAME}"));
    let text = format!("{DROP_IN_HEADER}Takes effect when the kubelet starts.\n{configuration}");
    let is_active = kubelet.active_drop_in.as_ref().is_some_and(|found| *found == text);
    let blocked = blocking_reason(kubelet, differences, &active, &staged);
    if is_active {
        return plan_refused_checkpoints(input, active, staged).into_iter().collect();
    }
    if differences.is_empty()
        && kubelet.active_drop_in.is_none()
        && kubelet.staged_drop_in.is_none()
    {
        return Vec::new();
    }
    let mut changes = Vec::new();
    let is_staged = kubelet.staged_drop_in.as_ref().is_some_and(|found| *found == text);
    if !is_staged {
        let was = if kubelet.staged_drop_in.is_some() {
            DropInState::Outdated
        } else {
            DropInState::Absent
        };
        let action = KubeletAction::Stage { staged: staged.clone(), text };
        changes.push(
            drop_in_change(was, DropInState::Staged, ChangeReason::Spec, action)
                .blocked_by(blocked.clone()),
        );
    }
    let action = KubeletAction::Activate { staged, active, checkpoints: checkpoint_paths(kubelet) };
    let blocked = blocked.or_else(|| input.stop_precondition());
    let mut activate =
        drop_in_change(DropInState::Staged, DropInState::Active, ChangeReason::Spec, action)
            .blocked_by(blocked);
    activate.effect = CHECKPOINTS_REMOVED_EFFECT.to_owned();
    activate.disruption = Disruption::High;
    changes.push(activate);
    changes
}

/// Returns the reason why Berth must not write or activate its drop-in.
fn blocking_reason(
    kubelet: &KubeletFacts,
    differences: &[FieldDifference],
    active: &str,
    staged: &str,
) -> Option<String> {
    let not_ours = [&kubelet.active_drop_in, &kubelet.staged_drop_in]
        .into_iter()
        .flatten()
        .any(|found| !found.starts_with(DROP_IN_HEADER));
    if not_ours {
        return Some(format!(
            "{active} or {staged} exists and was not created by Berth; remove it"
        ));
    }
    let fixed: Vec<&str> = differences
        .iter()
        .map(|difference| difference.field)
        .filter(|field| kubelet.fields_set_by_flags.contains(field))
        .collect();
    (!fixed.is_empty()).then(|| {
        format!(
            "the kubelet's command line sets {}, which overrides configuration files; remove this flag",
            fixed.join(", ")
        )
    })
}

/// Returns a change if the kubelet would refuse its checkpoints only because the drop-in is active: the change removes
/// these checkpoints if that is safe now, and otherwise deactivates the drop-in.
///
/// Such checkpoints were written by a kubelet that had not read the drop-in: the kubelet was still running, a kubelet
/// was started before the drop-in was active, or an operator renamed the file. Other faults of the checkpoints (a CPU
/// that is offline, memory that differs after a reboot) would remain if the drop-in were deactivated.
fn plan_refused_checkpoints(input: Input, active: String, staged: String) -> Option<Change> {
    let kubelet = &input.facts.kubelet;
    let config_without_drop_in = kubelet.config_without_drop_in.as_ref()?;
    let refused_without_drop_in = refused_checkpoints(input.facts, config_without_drop_in);
    let refused = refused_checkpoints(input.facts, kubelet.config.as_ref()?);
    let refused: Vec<String> = refused
        .into_iter()
        .filter(|(name, _)| refused_without_drop_in.iter().all(|(other, _)| other != name))
        .map(|(name, _)| checkpoint_path(kubelet, name))
        .collect();
    if refused.is_empty() {
        return None;
    }
    Some(if input.stop_precondition().is_none() {
        let action = KubeletAction::Remove(refused);
        drop_in_change(
            DropInState::Active,
            DropInState::ActiveWithoutCheckpoints,
            ChangeReason::Spec,
            action,
        )
    } else {
        drop_in_change(
            DropInState::Active,
            DropInState::Staged,
            ChangeReason::Spec,
            KubeletAction::Deactivate { active, staged },
        )
    })
}

/// Returns the removal of the drop-ins that Berth created, if the spec no longer requests them. An active drop-in is
/// removed only from a drained node with a stopped kubelet, because its removal changes the policies of the kubelet.
pub(super) fn plan_drop_in_removal(input: Input) -> Vec<Change> {
    let kubelet = &input.facts.kubelet;
    let mut changes = Vec::new();
    let files = &input.facts.ledger.files;
    for file in files.iter().filter(|file| file.ends_with(STAGED_FILE_NAME)) {
        if kubelet.staged_drop_in.as_ref().is_some_and(|text| text.starts_with(DROP_IN_HEADER)) {
            changes.push(drop_in_change(
                DropInState::Staged,
                DropInState::Absent,
                ChangeReason::Restore,
                KubeletAction::Remove(vec![file.clone()]),
            ));
        }
    }
    for file in files.iter().filter(|file| file.ends_with(ACTIVE_FILE_NAME)) {
        if kubelet.active_drop_in.as_ref().is_some_and(|text| text.starts_with(DROP_IN_HEADER)) {
            let mut remove = checkpoint_paths(kubelet);
            remove.push(file.clone());
            let mut change = drop_in_change(
                DropInState::Active,
                DropInState::Absent,
                ChangeReason::Restore,
                KubeletAction::Remove(remove),
            );
            change.effect = CHECKPOINTS_REMOVED_EFFECT.to_owned();
            changes.push(change.blocked_by(input.stop_precondition()));
        }
    }
    changes
}

fn drop_in_change(
    from: DropInState,
    to: DropInState,
    reason: ChangeReason,
    action: KubeletAction,
) -> Change {
    Change {
        id: ChangeId::KubeletDropIn { from, to },
        was: from.to_string(),
        will_be: to.to_string(),
        why: reason,
        drift: false,
        disruption: Disruption::None,
        effect: "no effect until the drop-in is active".to_owned(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Kubelet(action),
    }
}
