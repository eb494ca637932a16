//! The rules of kube-scheduler's plugins on plain data, fast enough to evaluate every pod against many hosts.
//!
//! A pod's rules are compiled once ([`Rules::compile`]) into numbers that identify entries of a [`Counts`]. The
//! [`Counts`] updates its counters whenever a pod or a host is added, changed or removed. Therefore the cost to
//! evaluate a host ([`Counts::filter_for`], [`PodFilter::allows`], [`PodFilter::reasons`], [`Scorer`]) depends only
//! on the number of the pod's own terms, not on the number of pods.
//!
//! The rules are those of kube-scheduler 1.36 with its default configuration. They cover the plugins
//! NodeUnschedulable, TaintToleration, NodeAffinity, NodeResourcesFit, PodTopologySpread (without default constraints)
//! and InterPodAffinity. `tests/tests/rules.rs` compares their results with the real scheduler.

mod compile;
mod compile_cache;
mod compiled;
mod counter;
mod counts;
mod filter;
mod groups;
mod host_set;
mod hosts;
mod invalid;
mod membership;
mod node_affinity;
mod parts;
mod preference;
mod reason;
mod resource_fit;
mod scores;
mod selector;
mod symbols;
mod taints;

pub use compiled::{HostRules, Rules};
pub use counts::{Counts, HostId, PodId, SchedulerBugs};
pub use filter::PodFilter;
pub use invalid::InvalidField;
pub use parts::{HostParts, PodSpecParts};
pub use preference::{HostPreference, PreferenceScore, PreferenceScores};
pub use reason::Reason;
pub use scores::{RawScores, Scorer, Scores};
pub use taints::Effect;
