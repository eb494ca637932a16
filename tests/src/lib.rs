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

use std::env;
use std::path::PathBuf;

/// Returns the repository's folder.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the path of a program of this workspace, such as `berth-agent`, from the same build as the running program.
///
/// # Panics
/// If the path of the running program cannot be read.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let running = env::current_exe().expect("the path of the running program");
    let mut folder = running.parent().expect("the folder of the running program");
    // Test programs are in `deps`, examples in `examples`.
    if folder.ends_with("deps") || folder.ends_with("examples") {
        folder = folder.parent().expect("the folder of the build");
    }
    folder.join(name)
}
