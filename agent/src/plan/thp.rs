//! Plans the settings of transparent huge pages.

use super::change::Change;
use super::input::Input;
use super::single_value::plan_single_value;
use super::target::Targets;
use berth_host_facts::setting::{Setting, SettingValue};

/// Adds the desired value from the spec.
pub(super) fn add_target(input: Input, targets: &mut Targets) {
    if let Some(mode) = input.spec.transparent_hugepages {
        targets.set_target(
            Setting::TransparentHugepages,
            SettingValue::Keyword(mode.kernel_name().to_owned()),
        );
    }
}

pub(super) fn plan_change(input: Input, targets: &Targets) -> Option<Change> {
    let absent = "this kernel has no transparent huge pages";
    let effect = "applies only to memory that programs allocate after the change";
    plan_single_value(input, targets, Setting::TransparentHugepages, absent, effect)
}
