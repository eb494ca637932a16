//! Drift: settings that another program changed after Berth had set them.

use super::change::{Change, ChangeReason, Step};
use super::input::Input;

/// Marks changes of settings that another program changed after Berth had set them. With `enforce: false` such changes
/// are blocked, and the settings of a group that have not drifted become a separate change.
pub(super) fn separate_drift(input: Input, changes: Vec<Change>) -> Vec<Change> {
    let drifted = |step: &Step| {
        let entry = input.facts.ledger.entries.get(&step.setting);
        entry.is_some_and(|entry| entry.applied.as_ref() == Some(&step.desired_value))
    };
    let enforcement_off = input.spec.enforce == Some(false);
    let mut separated = Vec::new();
    for mut change in changes {
        let steps = change.steps();
        let some_drifted = change.why == ChangeReason::Spec && steps.iter().any(drifted);
        let all_drifted = some_drifted && steps.iter().all(drifted);
        if enforcement_off && some_drifted && !all_drifted {
            let (drift, rest) = steps.iter().cloned().partition(drifted);
            change.set_steps(rest);
            let mut drifted_change = change.clone();
            drifted_change.set_steps(drift);
            separated.push(change);
            change = drifted_change;
        }
        change.drift = if enforcement_off { some_drifted } else { all_drifted };
        if change.drift && enforcement_off {
            change.blocked.get_or_insert_with(|| {
                "another program changed this setting after Berth had set it, and spec.enforce is false"
                    .to_owned()
            });
        }
        separated.push(change);
    }
    separated
}
