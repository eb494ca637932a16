//! Reasons why a change of links is blocked.

use std::collections::BTreeSet;

use berth_api::LinkName;

use super::removal;

/// A link that cannot be used for a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableLink {
    /// Another program created the link.
    #[error(
        "link {0} exists and was not created by Berth; set another bridge name for the network, or remove that link if \
         it is not needed"
    )]
    NotCreatedByBerth(LinkName),
    /// A link with the name of the desired bridge exists, but is not a bridge.
    #[error("{0} is not a bridge; remove it (ip link delete {0})")]
    NotABridge(LinkName),
}

/// A tenant whose links cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TenantError {
    /// A VLAN link of another program would receive the tenant's frames.
    #[error(
        "{link}, which was not created by Berth, is VLAN {id} of the same uplink and would \
         receive the tenant's frames; remove it (ip \
         link delete {link}), or give the tenant another VLAN"
    )]
    ConflictingVlanLink {
        /// The VLAN link of the other program.
        link: LinkName,
        /// The VLAN.
        id: u32,
    },
    /// A link with the name of the desired link exists, and cannot be used.
    #[error(transparent)]
    UnusableLink(#[from] UnusableLink),
    /// The bridge belongs to another tenant, and has ports.
    #[error("{link} still belongs to {tenant}: {}", removal::in_use_message(.ports))]
    OwnedByOtherTenant {
        /// The bridge.
        link: LinkName,
        /// The other tenant.
        tenant: String,
        ports: BTreeSet<String>,
    },
    /// The change would disconnect VMs or links that are attached to the tenant's links.
    #[error(transparent)]
    DisruptionRefused(#[from] DisruptionRefused),
}

/// A change that would disconnect attached links.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} would lose the network while {operation}; migrate these VMs first, or set \
     spec.networks[{network}].allowDisruption: true",
    removal::format_links(.attached_links)
)]
pub(super) struct DisruptionRefused {
    pub(super) attached_links: BTreeSet<String>,
    /// Text that describes the operation, such as `eth1 replaces eth0 as the uplink of br0`.
    pub(super) operation: String,
    /// The host network.
    pub(super) network: String,
}
