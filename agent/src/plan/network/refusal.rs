//! Reasons for which a change of links is blocked.

use std::collections::BTreeSet;

use berth_api::LinkName;

use super::removal;

/// A link that cannot be taken for a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Taken {
    /// Another program made it.
    #[error(
        "there is a link {0} that Berth did not make; give the network another bridge name, or remove that link if \
         it is not needed"
    )]
    Foreign(LinkName),
    /// It is of another kind.
    #[error("{0} is no bridge; remove it (ip link delete {0})")]
    NoBridge(LinkName),
}

/// A tenant whose links cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TenantRefused {
    /// A VLAN link of another program would receive its frames.
    #[error(
        "{link}, which Berth did not make, is VLAN {id} of the same uplink and would get its frames; remove it (ip \
         link delete {link}), or give the tenant another VLAN"
    )]
    Competing {
        /// That link.
        link: LinkName,
        /// The VLAN.
        id: u32,
    },
    /// Its link exists and is another's.
    #[error(transparent)]
    Taken(#[from] Taken),
    /// Its bridge is another tenant's, with ports.
    #[error("{link} is still that of {tenant}: {}", removal::in_use(.users))]
    OfAnotherTenant {
        /// The bridge.
        link: LinkName,
        /// The other tenant.
        tenant: String,
        /// The ports.
        users: BTreeSet<String>,
    },
    /// Links that are attached would lose the network.
    #[error(transparent)]
    Disrupts(#[from] Disrupts),
}

/// A change by which links that are attached would lose the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} would lose the network while {loses}; move these VMs away first, or set \
     spec.networks[{network}].allowDisruption: true",
    removal::counted(.users)
)]
pub(super) struct Disrupts {
    /// The links.
    pub(super) users: BTreeSet<String>,
    /// The operation meanwhile.
    pub(super) loses: String,
    /// The host network.
    pub(super) network: String,
}
