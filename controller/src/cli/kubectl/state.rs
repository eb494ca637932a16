//! Reads the whole state of a cluster, for commands that run the placement engine on it.

use std::path::PathBuf;

use berth_api::Problem;
use berth_runtime::cli::Failure;

use super::arguments::ClusterArguments;
use super::read::Session;
use crate::cli::{input, live};
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
        let mut problems: Vec<Problem> = Vec::new();
        let mut items: Vec<FleetItem> = Vec::new();
        for path in self.from {
            items.extend(input::for_each_input_object(path, &mut problems, FleetItem::from_input)?);
        }
        if self.from.is_empty() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let listed = runtime.block_on(async {
                let session = Session::open(self.cluster, None).await?;
                let (client, server) = (&session.client, session.server.as_str());
                live::list_items_with_client(client, server, self.is_drain, &mut problems).await
            })?;
            items.extend(listed);
        }
        for path in self.added {
            items.extend(input::for_each_input_object(path, &mut problems, FleetItem::from_input)?);
        }
        Ok(Fleet::from_items(items, problems))
    }
}
