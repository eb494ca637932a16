//! Placement of pods on hosts. The crate is pure, so that `berth-controller plan` and the scheduler extender make the
//! same decisions.
//!
//! ```text
//! InfraNode, Node ─► inventory: hosts with zones, allocations, free devices ─┐
//! Pod             ─► rules: the stock scheduler's plugins, compiled          ├─► engine: ranked hosts, first that admits the pod
//! ```

pub mod engine;
pub mod inventory;
pub mod rules;
