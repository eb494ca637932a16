//! Views of an infra cluster: the rows and details that `kubectl berth` prints and that the web console shows.
//!
//! A [`Snapshot`] contains the objects that were read. It is filled object by object ([`Snapshot::add`]), so that lists and
//! watches can fill it. An object that cannot be parsed becomes a [`berth_api::Problem`], and a kind that the user may not
//! read becomes an [`Unread`]: all other objects are shown nevertheless. The functions of the modules compute rows from a
//! snapshot.
//!
//! Strings of rows come from objects, and may contain any characters: a table replaces control characters, and a web page
//! escapes them.

pub mod host_detail;
pub mod hosts;
mod issue;
mod kind;
pub mod machines;
pub mod networks;
mod objects;
mod parse;
mod remedy;
mod snapshot;
pub mod storage_classes;
pub mod tenants;
#[cfg(test)]
mod tests;

pub use issue::{ConditionRow, ConditionState, Issue, Severity, condition_rows, issues};
pub use kind::Kind;
pub use objects::{
    AddressClaimFields, DeploymentFields, Evacuation, Hardware, InstanceFields, MachineFields,
    NodeFields, ObjectCondition, ObjectName, PodFields, ServiceFields, StorageClassFields,
};
pub use parse::deserialize_object;
pub use remedy::remedy;
pub use snapshot::{Snapshot, Unread};
