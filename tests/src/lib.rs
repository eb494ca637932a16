//! Shared helpers of the tests that need real servers, real hosts or the repository's files. These tests are in
//! this crate.

pub mod check;
pub mod cluster;
pub mod controller;
pub mod data;
pub mod demo;
pub mod host;
pub mod kubevirt;
pub mod lscpu;
pub mod package;
pub mod pings;
pub mod plan;
pub mod running;
pub mod simulated;
pub mod skip;
pub mod sources;
pub mod tenant_bed;
pub mod wait;

use std::path::PathBuf;

/// Returns the repository's folder.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
