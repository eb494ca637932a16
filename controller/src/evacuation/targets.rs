//! Targets of live migrations that the engine finds.

use std::collections::BTreeSet;
use std::fmt::Debug;

use berth_extender::{MigrationQuery, MigrationTarget};

/// Finds the targets of live migrations.
pub trait TargetFinder: Debug + Send + Sync {
    /// Returns the target of each VM; `None` while the engine does not know all objects. `excluded` are hosts that
    /// accept no pods.
    fn find(
        &self,
        queries: &[MigrationQuery],
        excluded: &BTreeSet<String>,
    ) -> Option<Vec<MigrationTarget>>;
}
