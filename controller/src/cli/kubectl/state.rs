//! Reads the whole state of a cluster, for commands that run the placement engine on it.

use std::path::PathBuf;

use berth_runtime::cli::Failure;

use super::arguments::ClusterArguments;
use super::read::{Session, read_objects};
use crate::cli::input::{ReplacedObjects, for_each_input_object};
use crate::cli::live::{self, Listing};
use crate::fleet::{Fleet, FleetItem};

/// Sources of the state.
pub(super) struct StateSources<'a> {
    pub(super) cluster: &'a ClusterArguments,
    /// Files and folders to read instead of a cluster.
    pub(super) from: &'a [PathBuf],
    /// Files and folders with objects that are added to the state.
    pub(super) added: &'a [PathBuf],
    /// True if MachineDeployments of the cluster are needed.
    pub(super) is_drain: bool,
}

impl StateSources<'_> {
    /// Reads the objects. An object that is added replaces the object of the cluster with its name.
    pub(super) fn read(&self) -> Result<Fleet, Failure> {
        let (added, mut problems) = read_objects(self.added)?;
        let replaced = ReplacedObjects::by(&added);
        let mut items: Vec<FleetItem> = Vec::new();
        for path in self.from {
            let found = for_each_input_object(path, &mut problems, |found| {
                (!replaced.contains(&found.object)).then(|| FleetItem::from_input(found))
            })?;
            items.extend(found.into_iter().flatten());
        }
        if self.from.is_empty() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let listed = runtime.block_on(async {
                let session = Session::open(self.cluster, None).await?;
                let listing = Listing {
                    is_drain: self.is_drain,
                    // Without changes, no machine is rendered.
                    has_tenants: !added.is_empty(),
                    replaced: &replaced,
                    max_objects: usize::MAX,
                };
                let listed =
                    live::list_items_with_client(&session.client, &listing, &mut problems).await;
                listed.map_err(|error| error.into_failure(&session.server))
            })?;
            items.extend(listed);
        }
        items.extend(added.into_iter().map(FleetItem::from_input));
        let mut fleet = Fleet::from_items(items, problems);
        if self.from.is_empty() {
            // Only the tenants that the change concerns are shown.
            let Fleet { tenants, machine_counts, .. } = &mut fleet;
            tenants.retain(|tenant| {
                replaced.has_tenant(&tenant.name)
                    || machine_counts.iter().any(|one| one.namespace == tenant.namespace)
            });
        }
        Ok(fleet)
    }
}
