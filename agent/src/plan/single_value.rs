//! Plans settings that consist of one value and have no special rules.

use super::change::{Change, Disruption};
use super::current::current_setting_value;
use super::input::Input;
use super::target::Targets;
use berth_host_facts::setting::Setting;

/// Returns the change that sets a single-value setting to its desired value; `None` if the observed value equals
/// the desired one. `absent` is the message for a host that does not have the setting.
pub(super) fn plan_single_value(
    input: Input,
    targets: &Targets,
    setting: Setting,
    absent: &str,
    effect: &str,
) -> Option<Change> {
    let target = targets.get(setting)?;
    let Some(was) = current_setting_value(input, setting) else {
        return Some(Change::unsupported_setting(setting, target, absent.to_owned()));
    };
    (was != target.value).then(|| {
        let change = Change::for_setting(setting, was, target, Disruption::Low, effect.to_owned());
        change.blocked_by(targets.blocked.get(&setting).cloned())
    })
}
