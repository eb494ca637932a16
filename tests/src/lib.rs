//! Shared helpers of the tests that need real servers, real hosts or the repository's files. These tests are in
//! this crate.

pub mod browser;
pub mod cdi;
pub mod check;
pub mod cluster;
pub mod console;
pub mod controller;
pub mod data;
pub mod demo;
pub mod disk_observer;
pub mod drain_observer;
pub mod drain_testbed;
mod event_watch;
pub mod golden_images;
pub mod host;
pub mod image_testbed;
pub mod kubevirt;
pub mod lscpu;
pub mod package;
pub mod pings;
pub mod plan;
pub mod running;
pub mod simulated;
pub mod skip;
pub mod sources;
pub mod tenant_clusters;
pub mod wait;

use std::env;
use std::path::{Path, PathBuf};

/// Returns the repository's folder.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the path of a program of this workspace, such as `berth-agent`, from the same build as the running program.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let running = env::current_exe().unwrap_or_default();
    // Test programs are in `deps`, examples in `examples`.
    let is_build = |folder: &&Path| !folder.ends_with("deps") && !folder.ends_with("examples");
    let build = running.ancestors().skip(1).find(is_build);
    build.map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}
