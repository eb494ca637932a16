//! Compares the placement engine with a slow reference model, and runs readable scenarios.

#![expect(clippy::expect_used, reason = "tests fail by panicking")]

#[path = "engine/allocation.rs"]
mod allocation;
#[path = "engine/allocation_invariants.rs"]
mod allocation_invariants;
#[path = "engine/host.rs"]
mod host;
#[path = "engine/pod.rs"]
mod pod;
#[path = "engine/random.rs"]
mod random;
#[path = "engine/random_choices.rs"]
mod random_choices;
#[path = "engine/reference_model.rs"]
mod reference_model;
#[path = "engine/scenarios.rs"]
mod scenarios;
