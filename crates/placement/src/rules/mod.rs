//! The rules of kube-scheduler's plugins on plain data, fast enough to evaluate every pod against many hosts.
//!
//! A pod's rules are compiled once ([`Rules::compile`]) into numbers that identify entries of a [`ClusterState`]. The
//! [`ClusterState`] updates its counters whenever a pod or a host is added, changed or removed. Therefore the cost to
//! evaluate a host ([`ClusterState::pod_filter`], [`PodFilter::allows`], [`PodFilter::reasons`], [`Scorer`]) depends
//! only on the number of the pod's own terms, not on the number of pods.
//!
//! The rules equal the rules of kube-scheduler 1.36 with its default configuration. They cover the plugins
//! NodeUnschedulable, TaintToleration, NodeAffinity, NodeResourcesFit, VolumeBinding (without volumes that have no
//! claim), PodTopologySpread (without default constraints) and InterPodAffinity. `tests/tests/rules.rs` compares their
//! results with the real scheduler; for VolumeBinding, `tests/tests/assign.rs` does so.

mod capacity_pools;
mod cluster_state;
mod compile;
mod compile_cache;
mod compiled;
mod counter;
mod field_path;
mod filter;
mod groups;
mod host_set;
mod hosts;
mod membership;
mod node_affinity;
mod object_fields;
mod preference;
mod reason;
mod resource_fit;
mod scores;
mod selector;
mod storage_fields;
mod storage_objects;
mod symbols;
mod taints;
mod volume_filter;
#[cfg(test)]
mod volume_tests;
mod volumes;

pub use cluster_state::{ClusterState, HostId, PodId, SchedulerBugs};
pub use compiled::{HostRules, Rules};
pub use field_path::{InvalidField, is_label_key};
pub use filter::PodFilter;
pub use object_fields::{NodeFields, PodFields};
pub use preference::{HostPreference, PreferenceScore, PreferenceScores};
pub use reason::Reason;
pub use scores::{NormalizedScores, RawScores, Scorer};
pub use storage_fields::{ClaimVolume, StorageCapacityFields, StorageClassFields, UnboundClaim};
pub use taints::TaintEffect;
pub use volumes::VolumeChecks;
