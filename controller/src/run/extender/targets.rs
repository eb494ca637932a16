//! Determines from the extender's state which VMs can be migrated.
//!
//! Each replica of the controller watches all objects on which the extender's decisions depend, also while another
//! replica's extender makes the decisions. So the leader of the reconcilers can query its own extender. The leader's
//! extender does not know another extender's reservations until their pods are bound.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use berth_extender::{MigrationQuery, MigrationTarget};

use super::service::ExtenderService;
use crate::evacuation::targets::TargetFinder;

/// Finds the targets of live migrations in the extender's state.
pub(in crate::run) struct ExtenderTargets(Arc<ExtenderService>);

impl ExtenderTargets {
    pub(super) fn new(service: &Arc<ExtenderService>) -> Self {
        Self(Arc::clone(service))
    }
}

impl fmt::Debug for ExtenderTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtenderTargets").finish_non_exhaustive()
    }
}

impl TargetFinder for ExtenderTargets {
    fn find(
        &self,
        queries: &[MigrationQuery],
        excluded: &BTreeSet<String>,
    ) -> Option<Vec<MigrationTarget>> {
        if !self.0.readiness_gate.are_all_listed() {
            return None;
        }
        let mut extender = self.0.extender();
        let is_excluded = |host: &str| excluded.contains(host);
        Some(extender.find_migration_targets(Instant::now(), queries, is_excluded))
    }
}
