//! Kinds of objects that must be listed before the extender can answer calls.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kind of object on which all decisions of the extender depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ListedKind {
    Hosts,
    Namespaces,
    Claims,
    StorageClasses,
    CsiDrivers,
    StorageCapacities,
    Networks,
    Instances,
    Pods,
}

impl ListedKind {
    pub(super) const ALL: [Self; 9] = [
        Self::Hosts,
        Self::Namespaces,
        Self::Claims,
        Self::StorageClasses,
        Self::CsiDrivers,
        Self::StorageCapacities,
        Self::Networks,
        Self::Instances,
        Self::Pods,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Namespaces => "namespaces",
            Self::Claims => "persistentvolumeclaims",
            Self::StorageClasses => "storageclasses",
            Self::CsiDrivers => "csidrivers",
            Self::StorageCapacities => "csistoragecapacities",
            Self::Networks => "network-attachment-definitions",
            Self::Instances => "virtualmachineinstances",
            Self::Pods => "pods",
        }
    }
}

/// Set of the kinds that are not listed yet.
#[derive(Debug)]
pub(in crate::run) struct UnlistedKinds {
    unlisted: Mutex<BTreeSet<ListedKind>>,
}

impl UnlistedKinds {
    /// Creates the set with all kinds; an empty set if the extender is disabled.
    pub(in crate::run) fn new(has_extender: bool) -> Self {
        let kinds = if has_extender { ListedKind::ALL.into() } else { BTreeSet::new() };
        Self { unlisted: Mutex::new(kinds) }
    }

    /// Returns the kinds that are not listed yet.
    pub(super) fn lock_kinds(&self) -> MutexGuard<'_, BTreeSet<ListedKind>> {
        self.unlisted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why the extender cannot answer calls yet; `None` if all kinds are listed.
    pub(in crate::run) fn not_ready_reason(&self) -> Option<String> {
        let kinds: Vec<&str> = self.lock_kinds().iter().map(|kind| kind.name()).collect();
        (!kinds.is_empty()).then(|| format!("{} are not listed yet", kinds.join(", ")))
    }
}
