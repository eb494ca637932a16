//! HTML of the pages, computed from rows of `berth-views`. All texts of objects are escaped by the templates.

mod cpu_map;
pub(crate) mod create;
pub(crate) mod fleet;
pub(crate) mod fleet_filter;
pub(crate) mod host;
mod host_comparison;
pub(crate) mod layout;
pub(crate) mod machine;
pub(crate) mod machines;
pub(crate) mod networks;
mod parts;
pub(crate) mod reads;
pub(crate) mod sign_in;
pub(crate) mod simulation;
pub(crate) mod stream;
pub(crate) mod tenant;
pub(crate) mod tenants;
pub(crate) mod theme;
pub(crate) mod what_if;
pub(crate) mod what_if_forms;
