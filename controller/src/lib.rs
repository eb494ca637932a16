//! Turns tenants' machines into `KubeVirt` virtual machines, and assigns them to hosts by what the agents report.
//!
//! What decides is pure: it reads plain data and answers with plain data, so that `berth-controller plan` says without
//! a cluster what the controller would do in one.

pub mod admission;
pub mod cli;
pub mod engine;
pub mod fields;
pub mod fleet;
pub mod inventory;
pub mod launcher;
pub mod machines;
mod parallel;
pub mod parsers;
pub mod plan;
pub mod pod;
pub mod profiles;
pub mod rules;
pub mod run;
pub mod sidecar;
mod stable_hash;
pub mod tenants;
