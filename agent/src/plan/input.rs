//! Input of the planner.

use berth_api::infra_node::InfraNodeSpec;

use crate::manifest::Unclear;
use berth_host_facts::HostFacts;
use berth_host_facts::host_settings::HostSettings;

/// What the planner looks at.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// What the host is asked to be.
    pub spec: &'a InfraNodeSpec,
    /// Parts of it that nobody could make sense of: neither changed nor put back.
    pub unclear: &'a Unclear,
    /// What the host is.
    pub facts: &'a HostFacts,
    /// Its settings now.
    pub shape: &'a HostSettings,
}
