//! Typed identities of changes. Retries, drift and outcomes are matched by identity, never by text.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::network::id::LinkChangeId;
use berth_host_facts::setting::{Setting, SettingValue};

/// Identity of a change. Its `Display` is the text in plans, logs and `status.changes[].what`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeId {
    Setting(Setting),
    /// A change of the affinity of these interrupts, which are set together.
    Interrupts(BTreeSet<u32>),
    /// A change of the drop-in for the kubelet's configuration.
    KubeletDropIn {
        /// State of the drop-in before the change.
        from: DropInState,
        /// State of the drop-in after the change.
        to: DropInState,
    },
    /// Removal of the checkpoint of the kubelet's Memory Manager.
    KubeletCheckpoint,
    /// A change of links of tenant networks, or of the rules that drop guests' control frames.
    Links(LinkChangeId),
    /// The save of the rollback ledger, which is in no plan but has an outcome.
    RollbackLedger,
}

/// State of the kubelet's drop-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropInState {
    /// The drop-in does not exist.
    Absent,
    /// An outdated drop-in exists, under a name that the kubelet does not read.
    Outdated,
    /// The drop-in exists under a name that the kubelet does not read.
    Staged,
    /// The drop-in exists under the name that the kubelet reads when it starts.
    Active,
    /// The drop-in is active, and the checkpoints that the kubelet would refuse are removed.
    ActiveWithoutCheckpoints,
}

/// Identity of one attempt at a change: the change and the values that the attempt sets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptId {
    pub change: ChangeId,
    /// The value of each setting of the change.
    pub values: Vec<SettingValue>,
}

impl ChangeId {
    /// Returns true if an outcome of this change replaces an older outcome of `other`: both are about the same
    /// object.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Interrupts(new), Self::Interrupts(old)) => !new.is_disjoint(old),
            (Self::KubeletDropIn { .. }, Self::KubeletDropIn { .. }) => true,
            (Self::Links(new), Self::Links(old)) => new.supersedes(old),
            _ => self == other,
        }
    }

    /// Returns true if the start, the stop or the migration of a VM can cause this change.
    #[must_use]
    pub fn follows_from_vms(&self) -> bool {
        *self == Self::Links(LinkChangeId::UpdateLeases)
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(setting) => setting.fmt(f),
            Self::Interrupts(numbers) => write!(f, "{} interrupts", numbers.len()),
            Self::KubeletDropIn { .. } => f.write_str("kubelet drop-in"),
            Self::KubeletCheckpoint => f.write_str("kubelet checkpoint"),
            Self::Links(id) => id.fmt(f),
            Self::RollbackLedger => f.write_str("rollback ledger"),
        }
    }
}

impl Serialize for ChangeId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for DropInState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "none",
            Self::Outdated => "outdated",
            Self::Staged => "staged",
            Self::Active => "active",
            Self::ActiveWithoutCheckpoints => "active, without old checkpoints",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str) -> berth_api::LinkName {
        name.parse().unwrap()
    }

    #[test]
    fn outcomes_are_replaced_by_those_of_the_same_object() {
        let irqs = |numbers: &[u32]| ChangeId::Interrupts(numbers.iter().copied().collect());
        assert!(irqs(&[1, 2, 3]).supersedes(&irqs(&[3, 4])));
        assert!(!irqs(&[1, 2]).supersedes(&irqs(&[3, 4])));
        let set = |name| {
            let differences = Vec::new();
            ChangeId::Links(LinkChangeId::SetLink { link: link(name), differences })
        };
        assert!(set("br0").supersedes(&set("br0")));
        assert!(!set("br0").supersedes(&set("br1")));
        assert!(!set("br0").supersedes(&ChangeId::Links(LinkChangeId::SetUp(link("br0")))));
        let staged = ChangeId::KubeletDropIn { from: DropInState::Absent, to: DropInState::Staged };
        let active = ChangeId::KubeletDropIn { from: DropInState::Staged, to: DropInState::Active };
        assert!(active.supersedes(&staged) && active != staged);
        let links = ChangeId::Links;
        assert!(links(LinkChangeId::DeleteFilter).supersedes(&links(LinkChangeId::UpdateLeases)));
        assert!(!links(LinkChangeId::UpdateLeases).supersedes(&links(LinkChangeId::DeleteFilter)));
    }
}
