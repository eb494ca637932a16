//! Desired state of hosts: selects the HostProfile of each Node ([`selection`]), and derives the spec of its
//! InfraNode ([`spec`]), including the tenant networks of the host ([`tenant_networks`](mod@tenant_networks)), its
//! tunnel endpoints ([`tunnels`]), and the conditions ([`status`]).
//!
//! The modules have no side effects: they compute desired objects from observed objects.

mod config;
mod host_devices;
mod images;
mod resolved;
mod selection;
mod spec;
mod status;
mod tenant_networks;
mod tunnels;

pub use config::config_problems;
pub use resolved::{HostObjects, ProfileOutcome, ResolvedProfiles};
pub use selection::{Selection, ineligibility_reason, select_profile};
pub use spec::{DesiredInfraNode, desired_infra_node, profile_labels};
pub use status::{ConditionUpdate, host_conditions, new_condition, profile_status};
pub use tenant_networks::tenant_networks;
