//! Identities of changes of links.

use std::collections::BTreeSet;
use std::fmt;

use berth_api::{LinkName, VlanSet};

use super::difference::{Difference, DifferenceList};
use berth_host_facts::nftables::TABLE_NAME;

/// Identity of a change of links: the operation, its objects, and the properties that it changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkChangeId {
    /// Installs the rules that drop guests' control frames.
    InstallFilter {
        /// Uplinks that are ports of Berth's bridges.
        uplinks: BTreeSet<LinkName>,
        /// Number of networks whose guests may not send messages of DHCP servers and routers.
        guarded_networks: usize,
        /// Number of networks whose guests may send only from the addresses of their leases.
        source_networks: usize,
    },
    /// Changes the leases of networks whose guests may send only from the addresses of their leases.
    UpdateLeases,
    /// Deletes the rules that drop guests' control frames.
    DeleteFilter,
    /// Removes an uplink from its current bridge, because another network needs the uplink.
    DetachUplink {
        uplink: LinkName,
        /// The network that needs the uplink.
        network: String,
    },
    /// Creates the shared bridge of a network.
    CreateBridge {
        bridge: LinkName,
        network: String,
    },
    /// Changes properties of a shared bridge.
    SetLink {
        /// The bridge.
        link: LinkName,
        /// The properties to change, with their observed and desired values.
        differences: Vec<Difference>,
    },
    /// Makes an uplink a port of a shared bridge.
    JoinBridge {
        /// The uplink.
        port: LinkName,
        bridge: LinkName,
    },
    /// Moves a shared bridge from its current uplinks to another uplink.
    MoveUplink {
        uplink: LinkName,
        bridge: LinkName,
        previous_uplinks: Vec<LinkName>,
    },
    SetUp(LinkName),
    SetDown(LinkName),
    /// Adds VLANs to an uplink on a shared bridge.
    AddVlans {
        vlans: VlanSet,
        /// The uplink.
        port: LinkName,
        bridge: LinkName,
        /// Names of the tenants to which the VLANs belong.
        tenants: Vec<String>,
    },
    /// Removes VLANs from an uplink on a shared bridge.
    RemoveVlans {
        vlans: VlanSet,
        /// The uplink.
        port: LinkName,
        bridge: LinkName,
    },
    /// Creates the links of one tenant.
    AddTenant {
        tenant: String,
        /// VLAN of the tenant and the uplink that carries it, or VNI of the tenant.
        segment: SegmentDescription,
        /// Bridge of the tenant.
        bridge: Option<LinkName>,
        /// True if some links of the tenant exist, and others are missing.
        is_incomplete: bool,
    },
    /// Changes properties of one tenant's links.
    SetTenant {
        tenant: String,
        /// Links of the tenant that differ, each with the properties that are changed. An empty list of properties
        /// means that the link is removed and created again.
        links: Vec<(LinkName, Vec<Difference>)>,
    },
    /// Removes the links of a tenant or a network.
    RemoveLinks {
        links: Vec<LinkName>,
        /// The host network.
        network: String,
        /// The tenant; `None` if the links belong to no tenant.
        tenant: Option<String>,
    },
    /// Removes a link whose creation was interrupted.
    RemoveIncompleteLink(LinkName),
}

/// The layer 2 segment of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SegmentDescription {
    /// A VLAN on an uplink.
    Vlan {
        /// The VLAN id.
        id: u32,
        /// The uplink that carries the VLAN.
        uplink: LinkName,
    },
    /// A VXLAN with this VNI.
    Vni(u32),
}

impl LinkChangeId {
    /// Returns true if the outcome of this change replaces the recorded outcome of the older change `other`: both
    /// changes are the same operation on the same links, even if they set different properties.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::InstallFilter { .. } | Self::DeleteFilter, Self::UpdateLeases) => true,
            (Self::SetLink { link: new, .. }, Self::SetLink { link: old, .. }) => new == old,
            (
                Self::SetTenant { tenant: new, links: new_links },
                Self::SetTenant { tenant: old, links: old_links },
            ) => {
                let first = |links: &[(LinkName, _)]| links.first().map(|(link, _)| link.clone());
                new == old && first(new_links) == first(old_links)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for LinkChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InstallFilter { uplinks, guarded_networks, source_networks } => {
                let by = if uplinks.is_empty() {
                    "tenants' links".to_owned()
                } else {
                    join_link_names(uplinks, ", ")
                };
                write!(f, "drop guests' BPDUs and discovery frames to {by}")?;
                if *guarded_networks > 0 {
                    write!(
                        f,
                        ", and DHCP servers and routers among VMs of {guarded_networks} networks"
                    )?;
                }
                if *source_networks > 0 {
                    write!(f, ", and foreign addresses of VMs of {source_networks} networks")?;
                }
                write!(f, " (nftables table bridge {TABLE_NAME})")
            }
            Self::UpdateLeases => write!(f, "update leases in nftables table bridge {TABLE_NAME}"),
            Self::DeleteFilter => write!(f, "delete nftables table bridge {TABLE_NAME}"),
            Self::DetachUplink { uplink, network } => {
                write!(f, "detach {uplink} from its bridge for network {network}")
            }
            Self::CreateBridge { bridge, network } => {
                write!(f, "create bridge {bridge} for network {network}")
            }
            Self::SetLink { link, differences } => {
                write!(f, "set {link}: {}", DifferenceList(differences))
            }
            Self::JoinBridge { port, bridge } => write!(f, "make {port} a port of {bridge}"),
            Self::MoveUplink { uplink, bridge, previous_uplinks: from } => {
                write!(
                    f,
                    "make {uplink} the uplink of {bridge} instead of {}",
                    join_link_names(from, ", ")
                )
            }
            Self::SetUp(link) => write!(f, "set {link} up"),
            Self::SetDown(link) => write!(f, "set {link} down"),
            Self::AddVlans { vlans, port, bridge, tenants } => {
                write!(
                    f,
                    "add {} to {port} on {bridge}{}",
                    format_vlans(vlans),
                    format_owners(tenants)
                )
            }
            Self::RemoveVlans { vlans, port, bridge } => {
                write!(f, "remove {} from {port} on {bridge}", format_vlans(vlans))
            }
            Self::AddTenant { tenant, segment, bridge, is_incomplete: partly } => {
                let bridge = bridge.as_ref().map(LinkName::as_str).unwrap_or_default();
                write!(f, "add {segment} on bridge {bridge} for {tenant}")?;
                f.write_str(if *partly { ", which is incomplete" } else { "" })
            }
            Self::SetTenant { tenant, links } => {
                f.write_str("set ")?;
                for (index, (link, differences)) in links.iter().enumerate() {
                    f.write_str(if index > 0 { "; " } else { "" })?;
                    if differences.is_empty() {
                        write!(f, "{link}: recreated")?;
                    } else {
                        write!(f, "{link}: {}", DifferenceList(differences))?;
                    }
                }
                write!(f, " for {tenant}")
            }
            Self::RemoveLinks { links, network, tenant } => {
                write!(f, "remove {} of ", join_link_names(links, " and "))?;
                match tenant {
                    Some(tenant) => write!(f, "tenant {tenant}"),
                    None => write!(f, "network {network}"),
                }
            }
            Self::RemoveIncompleteLink(link) => {
                write!(f, "remove {link}, which was not created completely")
            }
        }
    }
}

impl fmt::Display for SegmentDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vlan { id, uplink } => write!(f, "VLAN {id} of {uplink}"),
            Self::Vni(vni) => write!(f, "VNI {vni}"),
        }
    }
}

fn join_link_names<'a>(links: impl IntoIterator<Item = &'a LinkName>, separator: &str) -> String {
    links.into_iter().map(LinkName::as_str).collect::<Vec<_>>().join(separator)
}

/// Returns `VLAN 120`, or `VLANs 120-121`.
fn format_vlans(vlans: &VlanSet) -> String {
    format!("VLAN{} {vlans}", if vlans.len() == 1 { "" } else { "s" })
}

/// Returns ` for cluster-abc`, the names of two tenants, or only the number of three or more tenants.
fn format_owners(tenants: &[String]) -> String {
    match tenants {
        [] => String::new(),
        [tenant] => format!(" for {tenant}"),
        [first, second] => format!(" for {first} and {second}"),
        many => format!(" for {} tenants", many.len()),
    }
}
