//! Tests Berth's implementation of kube-scheduler's rules: the indexes are compared with a slow reference model and
//! with kube-scheduler's own test cases, and invalid rules cause errors.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "tests fail by panicking, and compute as the scheduler does"
)]

#[path = "rules/comparison.rs"]
mod comparison;
#[path = "rules/invalid.rs"]
mod invalid;
#[path = "rules/random.rs"]
mod random;
#[path = "rules/reference_model.rs"]
mod reference_model;
#[path = "rules/scheduler_cases.rs"]
mod scheduler_cases;
