//! Input objects of placement, parsed and sorted by kind. Invalid objects are reported and left out.

mod collection;
mod deployments;
mod drain_facts;
mod kinds;
mod machine;
mod machine_claims;
mod object;
mod planned;
mod render_input;
mod storage;
pub mod stream;
mod tenants;
mod yaml;

pub use collection::Fleet;
pub use drain_facts::DrainFacts;
pub use machine::FleetMachine;
pub use machine_claims::{MachineClaim, pod_claims};
pub use object::FleetItem;
pub use planned::{MachineCounts, PlannedClone, PlannedTenant};
pub use render_input::RenderInput;
pub use storage::StorageObjects;
pub use stream::InputObject;

use berth_api::Problem;

/// Parses all objects in `text`. Each item of a List object becomes a separate object. Adds invalid content to
/// `problems`.
pub fn parse_items(source: &str, text: &str, problems: &mut Vec<Problem>) -> Vec<FleetItem> {
    stream::for_each_object(source, text, problems, FleetItem::from_input)
}
