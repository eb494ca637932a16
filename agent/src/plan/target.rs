//! Values that settings are to have, gathered from the spec and the rollback ledger.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::manifest::{Fault, Part};
use berth_host_facts::setting::{Setting, Value};

/// Who wants a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Why {
    /// The spec.
    Asked,
    /// Nobody any more: it goes back to what was found.
    PutBack,
}

/// What a setting shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) value: Value,
    pub(super) why: Why,
}

/// Targets by setting, and what came up while they were gathered.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub(super) wanted: BTreeMap<Setting, Target>,
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<String>,
    /// Settings that stay as they are, and why.
    pub(super) blocked: BTreeMap<Setting, String>,
}

impl Targets {
    pub(super) fn want(&mut self, setting: Setting, value: Value) {
        self.wanted.insert(setting, Target { value, why: Why::Asked });
    }

    pub(super) fn of(&self, setting: Setting) -> Option<&Target> {
        self.wanted.get(&setting)
    }
}

/// A part in which a fault comes up is left as it is.
pub(super) fn freeze(
    frozen: &mut BTreeSet<Part>,
    part: Part,
    targets: &mut Targets,
    gather: impl FnOnce(&mut Targets),
) {
    let before = targets.faults.len();
    gather(targets);
    if targets.faults.len() > before {
        frozen.insert(part);
    }
}

/// The part of the spec that asks for a setting.
pub(super) const fn part(setting: Setting) -> Part {
    match setting {
        Setting::Hugepages { .. } => Part::Hugepages,
        Setting::TransparentHugepages => Part::TransparentHugepages,
        Setting::Ksm(_) => Part::Ksm,
        Setting::WorkqueueCpus
        | Setting::DefaultIrqAffinity
        | Setting::IrqAffinity(_)
        | Setting::AllowedCpus(_) => Part::Cpu,
    }
}
