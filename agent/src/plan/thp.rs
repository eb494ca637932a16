//! Transparent huge pages.

use super::change::Change;
use super::input::Input;
use super::single_value::plan_single_value;
use super::target::Targets;
use berth_host_facts::setting::{Setting, Value};

/// Adds the target of the spec.
pub(super) fn targets(input: Input, targets: &mut Targets) {
    if let Some(mode) = input.spec.transparent_hugepages {
        targets
            .set_target(Setting::TransparentHugepages, Value::Word(mode.kernel_name().to_owned()));
    }
}

pub(super) fn change(input: Input, targets: &Targets) -> Option<Change> {
    let absent = "this kernel has no transparent huge pages";
    let effect = "applies to memory that programs allocate from now on";
    plan_single_value(input, targets, Setting::TransparentHugepages, absent, effect)
}
