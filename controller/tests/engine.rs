//! The assignment engine against a slow and plain reckoning, and in scenes that a person would want to read.

#![expect(clippy::expect_used, reason = "tests fail by panicking")]

#[path = "engine/allocation.rs"]
mod allocation;
#[path = "engine/dice.rs"]
mod dice;
#[path = "engine/handed_out.rs"]
mod handed_out;
#[path = "engine/host.rs"]
mod host;
#[path = "engine/pod.rs"]
mod pod;
#[path = "engine/random.rs"]
mod random;
#[path = "engine/scenes.rs"]
mod scenes;
#[path = "engine/slow.rs"]
mod slow;
