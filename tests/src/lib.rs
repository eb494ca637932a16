//! Everything that needs real servers or hosts, or the repository itself, lives in this crate's tests.
//! Here is what they share.

pub mod cluster;
pub mod controller;
pub mod data;
pub mod demo;
pub mod host;
pub mod lscpu;
pub mod package;
pub mod pings;
pub mod running;
pub mod simulated;
pub mod skip;
pub mod wait;

use std::path::PathBuf;

/// The repository's folder.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
