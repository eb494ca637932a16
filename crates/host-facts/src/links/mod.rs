//! Network links of the host: what is physical, what is stacked on what, and which of them the host
//! cannot do without.
//!
//! On a live machine netlink gives all links in one dump; from a captured tree sysfs does, file by
//! file. What only sysfs has (driver, PCI function, speed) is read for physical links in both cases.

mod bridging;
mod filter;
mod nearby;
mod netlink;
mod physical;
pub mod proc_net;
mod sysfs;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::{LinkState, Sriov, UnknownReason};
use berth_api::{LinkName, MacAddress, PciAddress};

use super::pci::PciDevice;
use crate::notes::Notes;
use crate::root::Root;
pub use bridging::{BridgeOptions, IpOptions, PortVlans, Tunnel};
pub use filter::BridgeFilter;
pub use filter::{observe as observe_filter, read as read_filter};
pub use nearby::nearby;
use nearby::stacked_elsewhere;
pub use netlink::link_of;
pub use netlink::{Gateway, default_gateways, indexes};
pub use trouble::{Manager, Trouble};
pub use trouble::{networkd_manages, nm_manages};

/// All links, sorted by name, and what is known of routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Every link of this network namespace, sorted by name.
    pub all: Vec<Link>,
    /// Whether default routes were looked up at all.
    pub routes_known: bool,
    /// Whether the kernel could not be asked, so that much of what is below is missing.
    pub incomplete: bool,
    /// UDP ports that are taken on this host.
    pub udp_ports: BTreeSet<u16>,
    /// Whether bridged frames go through the host's iptables rules, and who manages the links.
    pub trouble: Trouble,
    /// The rules that keep guests' control frames from the uplinks.
    pub filter: BridgeFilter,
}

/// One network link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: LinkName,
    /// The kernel's number of it; `None` where a capture has no `ifindex`.
    pub index: Option<u32>,
    /// What it is.
    pub kind: LinkKind,
    /// Hardware address, in lower case with colons.
    pub mac: Option<String>,
    /// Maximum transmission unit in bytes.
    pub mtu: Option<u32>,
    /// Operational state.
    pub state: Option<LinkState>,
    /// The bridge or bond it is a port of.
    pub master: Option<LinkName>,
    /// The link it is stacked on, for VLANs and their like.
    pub parent: Option<LinkName>,
    /// Links of other network namespaces that are stacked on it, such as a pod's macvlan, with their namespace.
    pub users_elsewhere: BTreeSet<String>,
    /// VLAN id.
    pub vlan: Option<u16>,
    /// Whether a bridge keeps VLANs apart.
    pub vlan_filtering: Option<bool>,
    /// The alias an administrator or Berth gave it.
    pub alias: Option<String>,
    /// Addresses with prefix length, link-local ones left out, sorted.
    pub addresses: Vec<String>,
    /// Whether a default route leaves through it or through a link stacked on it.
    pub default_route: bool,
    /// A destination of another route through it, if there is one that does not follow from its own addresses.
    pub destination: Option<String>,
    /// Kernel driver, of physical links.
    pub driver: Option<String>,
    /// PCI function, of physical links.
    pub pci_address: Option<PciAddress>,
    /// NUMA zone of the device, of physical links.
    pub zone: Option<u32>,
    /// Speed in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// Virtual functions, of physical functions.
    pub sriov: Option<Sriov>,
    /// IOMMU group, of physical links.
    pub iommu_group: Option<u32>,
    /// The link of the card that a virtual function is of.
    pub physical_function: Option<LinkName>,
    /// Whether an administrator has it up, whatever its cable says.
    pub up: Option<bool>,
    /// The group it was put in; the kernel puts all in 0.
    pub group: Option<u32>,
    /// The hardware's own address, which no bond changes.
    pub permanent_mac: Option<MacAddress>,
    /// Link-local addresses with prefix length, sorted.
    pub link_local: Vec<String>,
    /// How a bridge is set.
    pub bridge: Option<BridgeOptions>,
    /// The VLANs of a bridge's port, or of the bridge itself.
    pub vlans: Option<PortVlans>,
    /// The tunnel of a VXLAN link.
    pub tunnel: Option<Tunnel>,
    /// How IP is set on it.
    pub ip: IpOptions,
}

/// What a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// A port of a network card.
    Physical,
    /// A virtual function of a network card, or the switch's end of one.
    VirtualFunction,
    /// Several links as one, by the bonding or the team driver.
    Bond,
    /// The datapath or an internal port of Open vSwitch, which the kernel does not tell apart.
    OpenVSwitch,
    /// A bridge.
    Bridge,
    /// An 802.1Q VLAN.
    Vlan,
    /// The loopback link.
    Loopback,
    /// One end of a pair, as pods have.
    Veth,
    /// A TUN or TAP link, as VMs have.
    Tun,
    /// A VXLAN tunnel.
    Vxlan,
    /// Anything else.
    Other,
}

impl Link {
    /// A link of which only name and kind are known yet.
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

    /// Whether Berth made it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        let prefix = berth_api::names::LINK_ALIAS_PREFIX;
        self.alias.as_deref().is_some_and(|alias| alias.starts_with(prefix))
    }

    /// Whether the kernel says that no frame can leave by it; a driver that says nothing is believed.
    #[must_use]
    pub const fn has_no_carrier(&self) -> bool {
        matches!(
            self.state,
            Some(LinkState::Down | LinkState::LowerLayerDown | LinkState::NotPresent)
        )
    }

    /// Physical or a bond: something that can lead out of the host.
    #[must_use]
    pub const fn is_uplink(&self) -> bool {
        matches!(self.kind, LinkKind::Physical | LinkKind::Bond)
    }
}

impl Links {
    /// The link of that name.
    #[must_use]
    pub fn named(&self, name: &LinkName) -> Option<&Link> {
        let found = self.all.binary_search_by(|link| link.name.cmp(name)).ok();
        found.and_then(|index| self.all.get(index))
    }

    /// Ports of the bridge or bond of that name.
    pub fn ports<'a>(&'a self, master: &'a LinkName) -> impl Iterator<Item = &'a Link> {
        self.all.iter().filter(move |link| link.master.as_ref() == Some(master))
    }

    /// Links stacked on the one of that name.
    pub fn stacked_on<'a>(&'a self, parent: &'a LinkName) -> impl Iterator<Item = &'a Link> {
        self.all.iter().filter(move |link| link.parent.as_ref() == Some(parent))
    }

    /// Physical links and bonds.
    pub fn uplinks(&self) -> impl Iterator<Item = &Link> {
        self.all.iter().filter(|link| link.is_uplink())
    }

    fn take_routes(&mut self, mut routes: Routes) {
        for link in &mut self.all {
            link.destination = routes.others.remove(&link.name);
        }
        self.routes_known = self.mark_default_routes(&routes.default) && routes.complete;
    }

    /// Marks the links a default route uses, and everything beneath them: the VLAN's parent, the
    /// bridge's and the bond's ports that lead out of the host.
    ///
    /// Open vSwitch forwards by flows that no table here shows: if a route leaves through one of its
    /// ports, any uplink in a datapath may carry it. `false` if a route leads to no uplink that we see.
    #[must_use]
    fn mark_default_routes(&mut self, names: &BTreeSet<LinkName>) -> bool {
        let mut marked: BTreeSet<LinkName> = BTreeSet::new();
        let mut open: Vec<LinkName> = names.iter().cloned().collect();
        while let Some(name) = open.pop() {
            if !marked.insert(name.clone()) {
                continue;
            }
            open.extend(self.named(&name).and_then(|link| link.parent.clone()));
            let leads_out = |link: &&Link| link.is_uplink() || link.kind == LinkKind::Vlan;
            let ports = self.all.iter().filter(|link| link.master.as_ref() == Some(&name));
            open.extend(ports.filter(leads_out).map(|link| link.name.clone()));
        }
        let by_switch =
            |name: &LinkName| self.named(name).is_some_and(|l| l.kind == LinkKind::OpenVSwitch);
        // In a capture an internal port is a virtual link like any other.
        let nowhere = !self.uplinks().any(|link| marked.contains(&link.name));
        if marked.iter().any(by_switch) || nowhere {
            let in_datapath = |link: &&Link| link.master.as_ref().is_some_and(by_switch);
            let uplinks: Vec<LinkName> =
                self.uplinks().filter(in_datapath).map(|link| link.name.clone()).collect();
            for name in uplinks {
                let ports = self.all.iter().filter(|link| link.master.as_ref() == Some(&name));
                marked.extend(ports.map(|link| link.name.clone()));
                marked.insert(name);
            }
        }
        for link in &mut self.all {
            link.default_route = marked.contains(&link.name);
        }
        names.is_empty() || self.uplinks().any(|link| link.default_route)
    }
}

/// Which links the host's routes use.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Links of default routes.
    default: BTreeSet<LinkName>,
    /// Links of other routes, with one destination each.
    others: BTreeMap<LinkName, String>,
    /// Whether of all routes the links are known.
    complete: bool,
}

impl Routes {
    fn add(&mut self, link: &LinkName, destination: &impl std::fmt::Display) {
        if !self.others.contains_key(link) {
            self.others.insert(link.clone(), destination.to_string());
        }
    }
}

/// The links of the running kernel alone, for a look at what became of a change.
///
/// # Errors
/// If the kernel does not answer.
pub fn live() -> std::io::Result<Links> {
    let dump = netlink::dump()?;
    let mut links = Links { all: dump.links, routes_known: true, ..Links::default() };
    links.all.sort_by(|a, b| a.name.cmp(&b.name));
    links.take_routes(dump.routes);
    Ok(links)
}

/// Reads all links.
pub fn observe(root: &Root, pci: &[PciDevice], notes: &mut Notes) -> Links {
    let live = root.is_live().then(netlink::dump);
    let incomplete = matches!(live, Some(Err(_)));
    let (mut all, routes) = match live {
        Some(Ok(dump)) => (dump.links, Some(dump.routes)),
        other => {
            if let Some(Err(error)) = other {
                let what =
                    "links are read from /sys instead, and tenant networks are left as they are";
                notes.warn("netlink", format!("{error}; {what}"));
            }
            let mut all = sysfs::links(root, notes);
            proc_net::add_vlans(root, &mut all);
            (all, proc_net::routes(root))
        }
    };
    all.sort_by(|a, b| a.name.cmp(&b.name));
    for link in &mut all {
        physical::complete(root, pci, link);
    }
    let (udp_ports, trouble) = (proc_net::udp_ports(root), trouble::observe(root, &all));
    let mut links = Links {
        all,
        routes_known: routes.is_some(),
        incomplete,
        udp_ports,
        trouble,
        filter: BridgeFilter::Unknown,
    };
    if let Some(routes) = routes {
        links.take_routes(routes);
    }
    note_unknown(root, &links, notes);
    links
}

fn note_unknown(root: &Root, links: &Links, notes: &mut Notes) {
    if links.all.is_empty() && !root.is_live() && !root.exists("sys/class/net") {
        let why = "/sys/class/net: not there";
        notes.unknown("capabilities.uplinks", UnknownReason::NotFound, why);
        return;
    }
    if !links.routes_known {
        let why =
            "neither netlink nor /proc/net/route tells through which uplink default routes leave";
        notes.unknown("capabilities.uplinks[].defaultRoute", UnknownReason::NotFound, why);
    }
    if !root.is_live() {
        let why = "addresses come from netlink, which only a running kernel has";
        notes.unknown("capabilities.uplinks[].addresses", UnknownReason::CapturedTree, why);
    }
}

/// Names by the kernel's numbers, for messages that refer to links by number.
fn names_by_index(links: &[Link]) -> BTreeMap<u32, LinkName> {
    links.iter().filter_map(|link| Some((link.index?, link.name.clone()))).collect()
}

/// The kernel's word for an operational state (`/sys/class/net/*/operstate`).
fn state_from_word(word: &str) -> Option<LinkState> {
    Some(match word {
        "up" => LinkState::Up,
        "down" => LinkState::Down,
        "lowerlayerdown" => LinkState::LowerLayerDown,
        "dormant" => LinkState::Dormant,
        "testing" => LinkState::Testing,
        "notpresent" => LinkState::NotPresent,
        "unknown" => LinkState::Unknown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LinkName {
        text.parse().unwrap()
    }

    fn link(text: &str, kind: LinkKind, master: Option<&str>, parent: Option<&str>) -> Link {
        let (master, parent) = (master.map(name), parent.map(name));
        Link { master, parent, ..Link::new(name(text), kind) }
    }

    fn sorted(mut all: Vec<Link>) -> Links {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Links { all, routes_known: true, ..Links::default() }
    }

    #[test]
    fn the_default_route_marks_everything_beneath_it() {
        let all = vec![
            link("br-ex", LinkKind::Bridge, None, None),
            link("bond0", LinkKind::Bond, None, None),
            link("bond0.100", LinkKind::Vlan, Some("br-ex"), Some("bond0")),
            link("eth0", LinkKind::Physical, Some("bond0"), None),
            link("eth1", LinkKind::Physical, None, None),
            link("vnet0", LinkKind::Tun, Some("br-ex"), None),
        ];
        let mut links = sorted(all);
        assert!(links.mark_default_routes(&BTreeSet::from([name("br-ex")])));
        let marked: Vec<&str> =
            links.all.iter().filter(|l| l.default_route).map(|l| l.name.as_str()).collect();
        assert_eq!(marked, ["bond0", "bond0.100", "br-ex", "eth0"]);
    }

    #[test]
    fn a_route_through_open_vswitch_leaves_by_the_datapaths_uplinks() {
        let all = vec![
            link("br-ex", LinkKind::OpenVSwitch, None, None),
            link("bond0", LinkKind::Bond, Some("ovs-system"), None),
            link("eth0", LinkKind::Physical, Some("bond0"), None),
            link("eth1", LinkKind::Physical, None, None),
            link("ovs-system", LinkKind::OpenVSwitch, None, None),
        ];
        let mut links = sorted(all);
        assert!(links.mark_default_routes(&BTreeSet::from([name("br-ex")])));
        let marked: Vec<&str> =
            links.all.iter().filter(|l| l.default_route).map(|l| l.name.as_str()).collect();
        assert_eq!(marked, ["bond0", "br-ex", "eth0"]);
    }

    #[test]
    fn a_ring_of_links_ends() {
        let all = vec![
            link("a", LinkKind::Vlan, None, Some("b")),
            link("b", LinkKind::Vlan, None, Some("a")),
        ];
        let mut links = sorted(all);
        assert!(!links.mark_default_routes(&BTreeSet::from([name("a")])), "it leads to no uplink");
        assert!(links.all.iter().all(|link| link.default_route));
    }
}
