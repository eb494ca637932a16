//! Input of the planner.

use berth_api::infra_node::InfraNodeSpec;

use super::leased_networks::LeasedNetworks;
use crate::manifest::UnparsedParts;
use berth_host_facts::HostFacts;
use berth_host_facts::host_settings::HostSettings;

/// Input of the planner.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Desired state.
    pub spec: &'a InfraNodeSpec,
    /// Parts of the spec that could not be parsed, which are neither changed nor restored.
    pub unparsed: &'a UnparsedParts,
    /// Observed facts.
    pub facts: &'a HostFacts,
    /// Observed settings.
    pub settings: &'a HostSettings,
    /// Addresses of the VMs on this host; `None` while they are unknown.
    pub leases: Option<&'a LeasedNetworks>,
}
