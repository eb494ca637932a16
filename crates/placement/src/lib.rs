//! Placement of pods on hosts. The crate is pure, so that `berth-controller plan` and the scheduler extender make the
//! same decisions.
//!
//! ```text
//! InfraNode, Node ─► inventory: hosts with zones, allocations, free devices ─┬─► engine: the best host that
//! Pod             ─► rules: compiled rules of kube-scheduler's plugins ──────┘   admits the pod
//! ```

pub mod engine;
pub mod inventory;
pub mod rules;
