//! One network link.

use std::collections::BTreeSet;

use berth_api::infra_node::{LinkState, Sriov};
use berth_api::{LinkName, MacAddress, PciAddress};

use super::bridge_options::{BridgeOptions, IpOptions, PortVlans, VxlanTunnel};

/// A network link and its properties. A property that is unknown or that the link does not have is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub name: LinkName,
    /// Interface index; `None` if a capture has no `ifindex`.
    pub index: Option<u32>,
    pub kind: LinkKind,
    /// Hardware address, in lower case with colons.
    pub mac: Option<String>,
    /// Maximum transmission unit in bytes.
    pub mtu: Option<u32>,
    /// Operational state.
    pub state: Option<LinkState>,
    /// Bridge or bond of which the link is a port.
    pub master: Option<LinkName>,
    /// Link on which this link is stacked, such as the uplink of a VLAN link.
    pub parent: Option<LinkName>,
    /// Links in other network namespaces that are stacked on this link, such as the macvlan of a pod: the name of each
    /// link with the id of its namespace.
    pub users_in_other_namespaces: BTreeSet<String>,
    /// VLAN id of a VLAN link.
    pub vlan: Option<u16>,
    /// For a bridge: true if VLAN filtering is on.
    pub vlan_filtering: Option<bool>,
    /// Alias (`ip link set alias`) that an administrator or Berth has set.
    pub alias: Option<String>,
    /// IP addresses with prefix length, sorted, without link-local addresses.
    pub addresses: Vec<String>,
    /// True if a default route uses this link, or a link above it (a VLAN, a bridge or a bond).
    pub has_default_route: bool,
    /// Destination of one route through the link. Default routes and routes that the kernel derives from the link's
    /// addresses are omitted.
    pub route_destination: Option<String>,
    /// Kernel driver of a physical link.
    pub driver: Option<String>,
    /// PCI function of a physical link.
    pub pci_address: Option<PciAddress>,
    /// NUMA zone of a physical link's device.
    pub zone: Option<u32>,
    /// Speed in Mbit/s; `None` without a carrier.
    pub speed_mbps: Option<u32>,
    /// Numbers of configured and possible virtual functions, if the link is an SR-IOV physical function.
    pub sriov: Option<Sriov>,
    /// IOMMU group of a physical link.
    pub iommu_group: Option<u32>,
    /// Link of the SR-IOV physical function, if this link is one of its virtual functions.
    pub physical_function: Option<LinkName>,
    /// True if the link is administratively up (`IFF_UP`); it may nevertheless have no carrier.
    pub is_up: Option<bool>,
    /// Number of the link's group. The kernel assigns every new link to group 0.
    pub group: Option<u32>,
    /// Permanent hardware address of the network card. Unlike `mac`, it does not change when the link becomes a port of
    /// a bond.
    pub permanent_mac: Option<MacAddress>,
    /// Link-local addresses with prefix length, sorted.
    pub link_local_addresses: Vec<String>,
    /// Options of the link, if it is a bridge.
    pub bridge: Option<BridgeOptions>,
    /// VLANs of the link, if it is a port of a VLAN-aware bridge or the bridge itself.
    pub vlans: Option<PortVlans>,
    /// Properties of the tunnel, if the link is a VXLAN link.
    pub tunnel: Option<VxlanTunnel>,
    pub ip_options: IpOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// A port of a network card.
    Physical,
    /// A virtual function of a network card, or its representor: the port of the card's embedded switch to which the
    /// virtual function is connected.
    VirtualFunction,
    /// Aggregated links of the bonding driver or the team driver.
    Bond,
    /// The datapath of Open vSwitch, or an internal port of the datapath; the kernel reports the same kind for both.
    OpenVSwitch,
    Bridge,
    /// An 802.1Q VLAN.
    Vlan,
    Loopback,
    /// One end of a veth pair, as used by pods.
    Veth,
    /// A TUN or TAP link, as used by VMs.
    Tun,
    /// A VXLAN tunnel.
    Vxlan,
    /// Any other kind.
    Other,
}

impl Link {
    /// Creates a link of which only the name and the kind are known.
    #[must_use]
    pub const fn new(name: LinkName, kind: LinkKind) -> Self {
        Self {
            name,
            index: None,
            kind,
            mac: None,
            mtu: None,
            state: None,
            master: None,
            parent: None,
            users_in_other_namespaces: BTreeSet::new(),
            vlan: None,
            vlan_filtering: None,
            alias: None,
            addresses: Vec::new(),
            has_default_route: false,
            route_destination: None,
            driver: None,
            pci_address: None,
            zone: None,
            speed_mbps: None,
            sriov: None,
            iommu_group: None,
            physical_function: None,
            is_up: None,
            group: None,
            permanent_mac: None,
            link_local_addresses: Vec::new(),
            bridge: None,
            vlans: None,
            tunnel: None,
            ip_options: IpOptions::UNKNOWN,
        }
    }

    /// Returns true if Berth created the link.
    #[must_use]
    pub fn is_created_by_berth(&self) -> bool {
        let prefix = berth_api::names::LINK_ALIAS_PREFIX;
        self.alias.as_deref().is_some_and(|alias| alias.starts_with(prefix))
    }

    /// Returns true if the kernel reports that the link is down, because the link is set down or has no carrier.
    /// Returns false if the state is unknown.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        matches!(
            self.state,
            Some(LinkState::Down | LinkState::LowerLayerDown | LinkState::NotPresent)
        )
    }

    /// Returns true if the link is a physical link or a bond, which can be connected to an external network.
    #[must_use]
    pub const fn is_uplink(&self) -> bool {
        matches!(self.kind, LinkKind::Physical | LinkKind::Bond)
    }
}
