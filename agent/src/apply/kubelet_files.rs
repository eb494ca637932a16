//! Applies changes of the kubelet's drop-in and checkpoints.

use super::context::ApplyContext;
use super::outcome::{ApplyResult, Result};
use crate::host_write::HostWrite as _;
use crate::plan::kubelet::KubeletAction;
use berth_host_facts::kubelet::drop_in::{ACTIVE_FILE_NAME, STAGED_FILE_NAME};
use berth_host_facts::ledger::Ledger;

/// Returns the files that the action may create. The files survive a reboot, and `revert` removes them.
pub(super) fn files_created_by(action: &KubeletAction) -> Vec<String> {
    match action {
        KubeletAction::Stage { staged, .. } => vec![staged.clone()],
        KubeletAction::Activate { staged, active, .. }
        | KubeletAction::Deactivate { staged, active } => {
            vec![staged.clone(), active.clone()]
        }
        KubeletAction::Remove(_) => Vec::new(),
    }
}

/// Applies the action, and records in the ledger the files of Berth that exist afterwards.
pub(super) fn apply_and_record_files(
    context: &ApplyContext,
    action: &KubeletAction,
    ledger: &mut Ledger,
) -> ApplyResult {
    let result = apply_kubelet_action(context, action).unwrap_or_else(|ended| ended);
    ledger.files.extend(files_created_by(action));
    for file in action.files().into_iter().filter(|file| !context.root.exists(file)) {
        ledger.files.remove(file);
    }
    result
}

fn apply_kubelet_action(context: &ApplyContext, action: &KubeletAction) -> Result {
    let root = context.root;
    match action {
        KubeletAction::Stage { staged, text } => {
            root.replace(staged, text.as_bytes())?;
            Ok(ApplyResult::Done(None))
        }
        KubeletAction::Activate { staged, active: _, checkpoints } => {
            // Checkpoints are removed first: a kubelet without checkpoints starts with any policy, but a kubelet with
            // old checkpoints starts only with the old policy.
            for file in checkpoints {
                root.remove(file)?;
            }
            root.rename(staged, ACTIVE_FILE_NAME)?;
            Ok(ApplyResult::Done(Some("kubelet restart needed".to_owned())))
        }
        KubeletAction::Deactivate { active, .. } => {
            root.rename(active, STAGED_FILE_NAME)?;
            let message = "the kubelet was not restarted and pods were scheduled again; drain the node to retry";
            Ok(ApplyResult::Done(Some(message.to_owned())))
        }
        KubeletAction::Remove(files) => {
            for file in files {
                root.remove(file)?;
            }
            Ok(ApplyResult::Done(None))
        }
    }
}
