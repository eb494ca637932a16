//! Placement of pods on hosts: pure, so that `berth-controller plan` and the scheduler extender decide alike.
//!
//! ```text
//! InfraNode, Node ─► inventory: hosts with zones, allocations, free devices ─┐
//! Pod             ─► rules: the stock scheduler's plugins, compiled          ├─► engine: ranked hosts, first that admits the pod
//! ```

pub mod engine;
pub mod inventory;
pub mod rules;
