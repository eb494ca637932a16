//! The rules of kube-scheduler: the indexes compared with a slow reference model, kube-scheduler's own cases, and
//! errors.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "tests fail by panicking, and compute as the scheduler does"
)]

#[path = "rules/agree.rs"]
mod agree;
#[path = "rules/facts.rs"]
mod facts;
#[path = "rules/invalid.rs"]
mod invalid;
#[path = "rules/random.rs"]
mod random;
#[path = "rules/slow.rs"]
mod slow;
