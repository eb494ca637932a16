//! Storage classes that tenants may use, from `infraStorageClasses` of the InfraConfig.

use berth_api::{InfraStorageClass, ReclaimPolicy};
use serde::Serialize;

use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// Kinds that the rows of storage classes need. The InfraConfig is required; the StorageClasses add details.
pub const KINDS: [Kind; 2] = [Kind::InfraConfig, Kind::StorageClass];

/// A storage class that tenants may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassRow {
    /// Name of the StorageClass in the infra cluster.
    pub name: String,
    /// True if this is the default class.
    pub is_default: bool,
    /// True if disks of machines may use the class.
    pub is_for_machines: bool,
    /// True if volumes in tenants' clusters may use the class.
    pub is_for_tenants: bool,
    /// False if the infra cluster has no such StorageClass; `None` if the user may not list StorageClasses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<String>,
    /// Binding mode of volumes in tenants' clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding_mode: Option<String>,
    /// Reclaim policy of volumes in tenants' clusters.
    pub reclaim_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_expandable: Option<bool>,
    pub zones: Vec<String>,
    pub regions: Vec<String>,
}

/// Returns a row for each entry of `infraStorageClasses`, in the order of the InfraConfig.
#[must_use]
pub fn rows(snapshot: &Snapshot) -> Vec<StorageClassRow> {
    let classes = snapshot.config.iter().flat_map(|config| &config.infra_storage_classes);
    classes.map(|class| row(snapshot, class)).collect()
}

fn row(snapshot: &Snapshot, class: &InfraStorageClass) -> StorageClassRow {
    let found = snapshot.storage_classes.get(&class.name);
    let binding_mode = class.volume_binding_mode.map(|mode| mode.as_str().to_owned());
    let reclaim_policy = class.reclaim_policy.unwrap_or(ReclaimPolicy::Delete);
    StorageClassRow {
        name: class.name.clone(),
        is_default: class.is_default_class.unwrap_or_default(),
        is_for_machines: class.is_for_machines(),
        is_for_tenants: class.is_for_tenants(),
        exists: (!snapshot.is_unread(Kind::StorageClass)).then_some(found.is_some()),
        provisioner: found.map(|found| found.provisioner.clone()),
        binding_mode: binding_mode.or_else(|| found?.binding_mode.clone()),
        reclaim_policy: reclaim_policy.as_str().to_owned(),
        is_expandable: class.allow_volume_expansion.or_else(|| found.map(|one| one.is_expandable)),
        zones: class.zones.clone(),
        regions: class.regions.clone(),
    }
}
