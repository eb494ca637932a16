//! Everything that needs real servers or hosts, or the repository itself, lives in this crate's tests.
//! Here is what they share.

pub mod cluster;
pub mod host;
pub mod lscpu;
pub mod package;
pub mod running;
