//! Turns tenants' machines into `KubeVirt` virtual machines, and assigns them to hosts by what the agents report.
//!
//! What decides is pure: it reads plain data and answers with plain data, so that `berth-controller plan` says without
//! a cluster what the controller would do in one.

pub mod cli;
pub mod fleet;
pub mod managed_fields;
mod parallel;
pub mod parsers;
pub mod plan;
pub mod profiles;
pub mod run;
pub mod tenants;
