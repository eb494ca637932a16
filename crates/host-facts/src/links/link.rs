//! One network link.

use std::collections::BTreeSet;

use berth_api::infra_node::{LinkState, Sriov};
use berth_api::{LinkName, MacAddress, PciAddress};

use super::bridge_options::{BridgeOptions, IpOptions, PortVlans, Tunnel};

/// A network link and its properties. A property that is unknown or that the link does not have is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Name of the link.
    pub name: LinkName,
    /// Interface index; `None` if a capture has no `ifindex`.
    pub index: Option<u32>,
    /// Kind of link.
    pub kind: LinkKind,
    /// Hardware address, in lower case with colons.
    pub mac: Option<String>,
    /// Maximum transmission unit in bytes.
    pub mtu: Option<u32>,
    /// Operational state.
    pub state: Option<LinkState>,
    /// Bridge or bond of which the link is a port.
    pub master: Option<LinkName>,
    /// Link on which this link is stacked, for VLANs and similar links.
    pub parent: Option<LinkName>,
    /// Links in other network namespaces that are stacked on this link, such as the macvlan of a pod, each with its
    /// namespace.
    pub users_in_other_namespaces: BTreeSet<String>,
    /// VLAN id of a VLAN link.
    pub vlan: Option<u16>,
    /// True if VLAN filtering of a bridge is on.
    pub vlan_filtering: Option<bool>,
    /// Alias that an administrator or Berth gave the link.
    pub alias: Option<String>,
    /// IP addresses with prefix length, sorted, without link-local addresses.
    pub addresses: Vec<String>,
    /// True if a default route uses this link, or a link that is stacked on it.
    pub default_route: bool,
    /// Destination of a route through the link that is not a default route and does not follow from the link's own
    /// addresses.
    pub route_destination: Option<String>,
    /// Kernel driver of a physical link.
    pub driver: Option<String>,
    /// PCI function of a physical link.
    pub pci_address: Option<PciAddress>,
    /// NUMA zone of the device of a physical link.
    pub zone: Option<u32>,
    /// Speed in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Numbers of virtual functions of a link that is an SR-IOV physical function.
    pub sriov: Option<Sriov>,
    /// IOMMU group of a physical link.
    pub iommu_group: Option<u32>,
    /// Link of the physical function, if this link is a virtual function.
    pub physical_function: Option<LinkName>,
    /// True if the link is administratively up (`IFF_UP`), whether or not it has a carrier.
    pub up: Option<bool>,
    /// Number of the link's group. The kernel assigns every new link to group 0.
    pub group: Option<u32>,
    /// Permanent address of the hardware. A bond does not change it.
    pub permanent_mac: Option<MacAddress>,
    /// Link-local addresses with prefix length, sorted.
    pub link_local_addresses: Vec<String>,
    /// Options of a bridge.
    pub bridge: Option<BridgeOptions>,
    /// VLANs of a bridge port, or of the bridge itself.
    pub vlans: Option<PortVlans>,
    /// Tunnel of a VXLAN link.
    pub tunnel: Option<Tunnel>,
    /// IP options of the link.
    pub ip_options: IpOptions,
}

/// Kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// A port of a network card.
    Physical,
    /// A virtual function of a network card, or its representor, which is the virtual function's end at the card's
    /// switch.
    VirtualFunction,
    /// Aggregated links of the bonding driver or the team driver.
    Bond,
    /// The datapath of Open vSwitch, or one of its internal ports; the kernel does not distinguish them.
    OpenVSwitch,
    /// A bridge.
    Bridge,
    /// An 802.1Q VLAN.
    Vlan,
    /// The loopback link.
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
            default_route: false,
            route_destination: None,
            driver: None,
            pci_address: None,
            zone: None,
            speed_mbps: None,
            sriov: None,
            iommu_group: None,
            physical_function: None,
            up: None,
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

    /// Returns true if the kernel reports that the link is down: it is set down, or it has no carrier. If the state
    /// is unknown, returns false.
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
