//! Desired values of settings, from the spec and the rollback ledger.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::manifest::{Fault, SpecPart};
use berth_host_facts::setting::{Setting, SettingValue};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ChangeReason {
    /// The spec has a value that differs from the observed one.
    #[serde(rename = "Asked")]
    Spec,
    /// The spec no longer has the field, so the original value is restored.
    #[serde(rename = "PutBack")]
    Restore,
}

/// Desired value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) value: SettingValue,
    pub(super) reason: ChangeReason,
}

/// Desired values by setting, and the faults and notes of the spec.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub(super) values: BTreeMap<Setting, Target>,
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<String>,
    /// Settings that are not changed, with the reason.
    pub(super) blocked: BTreeMap<Setting, String>,
}

impl Targets {
    pub(super) fn set_target(&mut self, setting: Setting, value: SettingValue) {
        self.values.insert(setting, Target { value, reason: ChangeReason::Spec });
    }

    pub(super) fn get(&self, setting: Setting) -> Option<&Target> {
        self.values.get(&setting)
    }
}

/// Adds the desired values of a part of the spec. If the part has a fault, adds it to `frozen` instead, so that its
/// settings are not changed.
pub(super) fn collect_or_freeze(
    frozen: &mut BTreeSet<SpecPart>,
    part: SpecPart,
    targets: &mut Targets,
    add_targets: impl FnOnce(&mut Targets),
) {
    let before = targets.faults.len();
    add_targets(targets);
    if targets.faults.len() > before {
        frozen.insert(part);
    }
}

/// Returns the part of the spec that a setting belongs to.
pub(super) const fn part_of_setting(setting: Setting) -> SpecPart {
    match setting {
        Setting::Hugepages { .. } => SpecPart::Hugepages,
        Setting::TransparentHugepages => SpecPart::TransparentHugepages,
        Setting::Ksm(_) => SpecPart::Ksm,
        Setting::WorkqueueCpus
        | Setting::DefaultIrqAffinity
        | Setting::IrqAffinity(_)
        | Setting::AllowedCpus(_) => SpecPart::Cpu,
        Setting::PciDriver(_) => SpecPart::Devices,
    }
}
