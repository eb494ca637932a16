//! One network link.

use std::collections::BTreeSet;

use berth_api::infra_node::{LinkState, Sriov};
use berth_api::{LinkName, MacAddress, PciAddress};

use super::bridge_options::{BridgeOptions, IpOptions, PortVlans, Tunnel};

/// One network link.
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
    /// Bridge or bond that the link is a port of.
    pub master: Option<LinkName>,
    /// Link that this link is stacked on, for VLANs and similar links.
    pub parent: Option<LinkName>,
    /// Links of other network namespaces that are stacked on this link, such as a pod's macvlan, with their namespace.
    pub users_elsewhere: BTreeSet<String>,
    /// VLAN id.
    pub vlan: Option<u16>,
    /// VLAN filtering of a bridge.
    pub vlan_filtering: Option<bool>,
    /// Alias that an administrator or Berth gave the link.
    pub alias: Option<String>,
    /// Addresses with prefix length, without link-local addresses, sorted.
    pub addresses: Vec<String>,
    /// True if a default route leaves through this link or through a link stacked on it.
    pub default_route: bool,
    /// Destination of another route through the link, if a route does not follow from the link's own addresses.
    pub destination: Option<String>,
    /// Kernel driver of a physical link.
    pub driver: Option<String>,
    /// PCI function of a physical link.
    pub pci_address: Option<PciAddress>,
    /// NUMA zone of the device of a physical link.
    pub zone: Option<u32>,
    /// Speed in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Virtual functions of a physical function.
    pub sriov: Option<Sriov>,
    /// IOMMU group of a physical link.
    pub iommu_group: Option<u32>,
    /// Link of the physical function of a virtual function.
    pub physical_function: Option<LinkName>,
    /// Administrative state (`IFF_UP`), independent of the carrier.
    pub up: Option<bool>,
    /// Link group; the kernel puts all links in group 0.
    pub group: Option<u32>,
    /// Permanent address of the hardware, which a bond does not change.
    pub permanent_mac: Option<MacAddress>,
    /// Link-local addresses with prefix length, sorted.
    pub link_local: Vec<String>,
    /// Options of a bridge.
    pub bridge: Option<BridgeOptions>,
    /// The VLANs of a bridge's port, or of the bridge itself.
    pub vlans: Option<PortVlans>,
    /// The tunnel of a VXLAN link.
    pub tunnel: Option<Tunnel>,
    /// IP options.
    pub ip: IpOptions,
}

/// Kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// A port of a network card.
    Physical,
    /// A virtual function of a network card, or a representor: the end of a virtual function at the card's switch.
    VirtualFunction,
    /// Aggregated links, by the bonding or the team driver.
    Bond,
    /// The datapath or an internal port of Open vSwitch; the kernel does not distinguish the two.
    OpenVSwitch,
    /// A bridge.
    Bridge,
    /// An 802.1Q VLAN.
    Vlan,
    /// The loopback link.
    Loopback,
    /// One end of a veth pair, as pods have.
    Veth,
    /// A TUN or TAP link, as VMs have.
    Tun,
    /// A VXLAN tunnel.
    Vxlan,
    /// Anything else.
    Other,
}

impl Link {
    /// Creates a link that has only its name and kind.
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
            users_elsewhere: BTreeSet::new(),
            vlan: None,
            vlan_filtering: None,
            alias: None,
            addresses: Vec::new(),
            default_route: false,
            destination: None,
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
            link_local: Vec::new(),
            bridge: None,
            vlans: None,
            tunnel: None,
            ip: IpOptions::NONE,
        }
    }

    /// Returns true if Berth created the link.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        let prefix = berth_api::names::LINK_ALIAS_PREFIX;
        self.alias.as_deref().is_some_and(|alias| alias.starts_with(prefix))
    }

    /// Returns true if the kernel reports that the link has no carrier; an unknown state counts as a carrier.
    #[must_use]
    pub const fn has_no_carrier(&self) -> bool {
        matches!(
            self.state,
            Some(LinkState::Down | LinkState::LowerLayerDown | LinkState::NotPresent)
        )
    }

    /// Returns true for physical links and bonds, which can lead out of the host.
    #[must_use]
    pub const fn is_uplink(&self) -> bool {
        matches!(self.kind, LinkKind::Physical | LinkKind::Bond)
    }
}
