//! Selects the networks whose VMs may send only from the addresses of their leases, and the rules that drop other
//! frames of these VMs.
//!
//! A rule compares the bridge of a frame, on a shared bridge also the VLAN of the port, the Ethernet source and the IP
//! source with one set. A change of the leases therefore changes only the elements of sets, and a frame costs the same
//! with one VM as with thousands. The networks are part of the keys, because VMs of two tenants may have the same
//! addresses. Frames that arrive from uplinks, VLAN links and tunnels are accepted: their senders are VMs of other
//! hosts, whose agents know the leases, or machines that have no leases.
//!
//! These senders need no lease: the unspecified addresses, from which clients of DHCP and of duplicate address
//! detection send, and link-local IPv6 addresses, which guests select themselves. A frame with a second VLAN tag is
//! dropped, because a guest that receives it may ignore the tag, and read a packet that no rule has examined. The
//! Ethernet address in the body of an ARP message is not compared, because with the sender's own IP address it can
//! redirect only the sender's traffic.
//!
//! A network without a known lease has no rules, so VMs are not disconnected before the leases were read for the first
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::{LinkName, MacAddress, VlanId};
use berth_host_facts::ledger::{GuardRecord, SourceRecord};

use super::desired::DesiredNetworks;
use super::desired_link::DesiredKind;
use super::desired_network::{DesiredNetwork, DesiredTenant};
use super::names::name_key;
use super::server_guard::vlan_key;
use crate::plan::input::Input;

/// Name of the set of EtherTypes of VLAN tags.
pub(crate) const TAG_SET: &str = "vlan_tags";
/// EtherTypes of VLAN tags: 802.1Q and 802.1ad.
const TAG_TYPES: [u16; 2] = [0x8100, 0x88a8];

/// Returns the keys of the set [`TAG_SET`].
pub(super) fn tag_keys() -> impl Iterator<Item = Vec<u8>> {
    TAG_TYPES.into_iter().map(|kind| kind.to_be_bytes().to_vec())
}

/// Kind of the bridge of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BridgeKind {
    /// The bridge belongs to a single tenant.
    Single,
    /// The bridge is shared by the VLANs of several tenants.
    Shared,
}

/// Family of the addresses in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];
}

impl BridgeKind {
    const ALL: [Self; 2] = [Self::Single, Self::Shared];

    /// Returns the kinds of bridges that have networks with source guard.
    pub(crate) fn guarded(guard: &GuardRecord) -> impl Iterator<Item = Self> + use<> {
        let is_shared = |network: &SourceRecord| network.vlan.is_some();
        let networks = guard.guarded_sources();
        let kinds =
            [networks.iter().any(|network| !is_shared(network)), networks.iter().any(is_shared)];
        Self::ALL.into_iter().zip(kinds).filter_map(|(kind, is_guarded)| is_guarded.then_some(kind))
    }

    /// Returns the name of the chain for frames on guarded networks.
    pub(crate) const fn chain(self) -> &'static str {
        match self {
            Self::Single => "bridge_sources",
            Self::Shared => "vlan_sources",
        }
    }

    /// Returns the name of the set of guarded networks.
    pub(crate) const fn network_set(self) -> &'static str {
        match self {
            Self::Single => "source_bridges",
            Self::Shared => "source_vlans",
        }
    }

    /// Returns the name of the set of leases: network, Ethernet address and IP address.
    pub(crate) const fn address_set(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Single, Family::V4) => "bridge_ipv4",
            (Self::Single, Family::V6) => "bridge_ipv6",
            (Self::Shared, Family::V4) => "vlan_ipv4",
            (Self::Shared, Family::V6) => "vlan_ipv6",
        }
    }

    /// Returns the keys of the set [`Self::network_set`].
    pub(super) fn network_keys(self, guard: &GuardRecord) -> BTreeSet<Vec<u8>> {
        self.networks(guard).map(network_key).collect()
    }

    /// Returns the keys of the set [`Self::address_set`].
    pub(super) fn address_keys(self, guard: &GuardRecord, family: Family) -> BTreeSet<Vec<u8>> {
        let mut keys = BTreeSet::new();
        for network in self.networks(guard) {
            let prefix = network_key(network);
            let addresses = network.addresses.iter();
            keys.extend(addresses.filter_map(|pair| address_key(&prefix, *pair, family)));
        }
        keys
    }

    fn networks(self, guard: &GuardRecord) -> impl Iterator<Item = &SourceRecord> {
        let sources = guard.guarded_sources().iter();
        sources.filter(move |network| network.vlan.is_some() == (self == Self::Shared))
    }
}

/// Returns true if the set contains leases.
pub(super) fn is_address_set(name: &str) -> bool {
    let mut sets = BridgeKind::ALL
        .into_iter()
        .flat_map(|kind| Family::ALL.map(|family| kind.address_set(family)));
    sets.any(|set| set == name)
}

/// Returns the key of a network as the kernel stores it in its registers: the bridge's name in 16 bytes and, on a
/// shared bridge, the VLAN.
fn network_key(network: &SourceRecord) -> Vec<u8> {
    match network.vlan {
        None => name_key(&network.bridge),
        Some(vlan) => vlan_key(&(network.bridge.clone(), vlan)),
    }
}

/// Returns the key of a lease: the key of its network, the Ethernet address, which is padded to 8 bytes, and the IP
/// address; `None` for an address of the other family.
fn address_key(
    network: &[u8],
    (mac, address): (MacAddress, IpAddr),
    family: Family,
) -> Option<Vec<u8>> {
    let mut key = network.to_vec();
    key.extend(mac.0);
    key.extend([0; 2]);
    match (address, family) {
        (IpAddr::V4(address), Family::V4) => key.extend(address.octets()),
        (IpAddr::V6(address), Family::V6) => key.extend(address.octets()),
        (IpAddr::V4(_), Family::V6) | (IpAddr::V6(_), Family::V4) => return None,
    }
    Some(key)
}

/// A rule of the source guard for one kind of bridges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceRule {
    pub(crate) bridge_kind: BridgeKind,
    pub(crate) step: SourceStep,
}

/// Effect of a rule of the source guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceStep {
    /// Jumps to [`BridgeKind::chain`] for frames on guarded networks.
    Jump,
    /// Accepts frames whose input link has Berth's group.
    AcceptFromGroup,
    /// Accepts frames whose input link is an uplink.
    AcceptFromUplinks,
    /// Drops frames with a second VLAN tag.
    DropTagged,
    /// Drops ARP messages whose sender has no lease.
    DropArp,
    /// Drops IPv4 packets whose source has no lease.
    DropIpv4,
    /// Drops IPv6 packets whose source has no lease and is not link-local.
    DropIpv6,
    /// Drops neighbor advertisements whose target has no lease and is not link-local.
    DropAdvertisement,
}

impl SourceRule {
    const STEPS: [SourceStep; 8] = [
        SourceStep::Jump,
        SourceStep::AcceptFromGroup,
        SourceStep::AcceptFromUplinks,
        SourceStep::DropTagged,
        SourceStep::DropArp,
        SourceStep::DropIpv4,
        SourceStep::DropIpv6,
        SourceStep::DropAdvertisement,
    ];

    /// Returns the rules of a table, in the order in which the kernel evaluates them.
    pub(super) fn all(guard: &GuardRecord) -> impl Iterator<Item = Self> + use<> {
        let rules = |bridge_kind| Self::STEPS.map(|step| Self { bridge_kind, step });
        BridgeKind::guarded(guard).flat_map(rules)
    }

    /// Returns the chain of the rule; `None` if it is the chain for all frames.
    pub(super) const fn chain(self) -> Option<&'static str> {
        match self.step {
            SourceStep::Jump => None,
            SourceStep::AcceptFromGroup
            | SourceStep::AcceptFromUplinks
            | SourceStep::DropTagged
            | SourceStep::DropArp
            | SourceStep::DropIpv4
            | SourceStep::DropIpv6
            | SourceStep::DropAdvertisement => Some(self.bridge_kind.chain()),
        }
    }

    /// Returns the description for the rule's comment.
    pub(super) const fn description(self) -> &'static str {
        match (self.step, self.bridge_kind) {
            (SourceStep::Jump, BridgeKind::Single) => "frames on bridges with source guard",
            (SourceStep::Jump, BridgeKind::Shared) => "frames in VLANs with source guard",
            (SourceStep::AcceptFromGroup, _) => {
                "frames from other hosts, through a link of berth-agent"
            }
            (SourceStep::AcceptFromUplinks, _) => "frames from other hosts, through an uplink",
            (SourceStep::DropTagged, _) => "guests may not send frames with two VLAN tags",
            (SourceStep::DropArp, _) => "guests may send ARP only from their leases",
            (SourceStep::DropIpv4, _) => "guests may send IPv4 only from their leases",
            (SourceStep::DropIpv6, _) => "guests may send IPv6 only from their leases",
            (SourceStep::DropAdvertisement, _) => "guests may advertise only their leases",
        }
    }
}

type Place = (LinkName, Option<VlanId>);

/// Returns the networks with source guard that have leases. While the leases are unknown, and for networks that are
/// not changed because of a fault in their spec (`has_faults`), the recorded networks stay guarded.
pub(super) fn desired_sources(
    input: Input,
    desired: &DesiredNetworks,
    has_faults: bool,
) -> Vec<SourceRecord> {
    let record = input.facts.ledger.filter.as_ref();
    let recorded: BTreeMap<Place, &SourceRecord> = record
        .into_iter()
        .flat_map(|record| &record.guard.sources)
        .map(|network| ((network.bridge.clone(), network.vlan), network))
        .collect();
    let mut sources = BTreeMap::new();
    for (place, network) in recorded.iter().filter(|_| has_faults) {
        // New VMs of the network need their addresses, although its links are not changed.
        if let Some(addresses) = known_addresses(input, &network.network, None, Some(*network)) {
            sources.insert(place.clone(), new_record(&network.network, place, addresses));
        }
    }
    let guarded_names: BTreeSet<&str> = input
        .spec
        .tenant_networks
        .iter()
        .filter(|tenant| tenant.source_guard == Some(true))
        .map(|tenant| tenant.name.as_str())
        .collect();
    for network in &desired.networks {
        for tenant in &network.tenants {
            let Some(place) = place_of(network, tenant) else { continue };
            let known = recorded.get(&place).copied();
            let segment = Some(tenant.segment_number());
            let addresses = guarded_names
                .contains(tenant.name)
                .then(|| known_addresses(input, tenant.name, segment, known))
                .flatten();
            match addresses {
                Some(addresses) => {
                    sources.insert(place.clone(), new_record(tenant.name, &place, addresses));
                }
                None => drop(sources.remove(&place)),
            }
        }
    }
    sources.into_values().collect()
}

/// Returns the addresses of a network's leases; the recorded addresses while the leases are unknown, and `None` without
/// a known lease.
fn known_addresses(
    input: Input,
    name: &str,
    segment: Option<u32>,
    recorded: Option<&SourceRecord>,
) -> Option<BTreeSet<(MacAddress, IpAddr)>> {
    let addresses = match input.leases {
        None => recorded.filter(|network| network.network == name)?.addresses.clone(),
        Some(leases) => {
            let leased = leases.get(name)?;
            let differs = leased.segment.zip(segment).is_some_and(|(one, other)| one != other);
            if differs {
                return None;
            }
            leased.addresses.clone()
        }
    };
    Some(addresses).filter(|addresses| !addresses.is_empty())
}

fn new_record(
    name: &str,
    (bridge, vlan): &Place,
    addresses: BTreeSet<(MacAddress, IpAddr)>,
) -> SourceRecord {
    SourceRecord { network: name.to_owned(), bridge: bridge.clone(), vlan: *vlan, addresses }
}

/// Returns the bridge of a tenant, and its VLAN if the bridge is shared; `None` without a bridge.
fn place_of(network: &DesiredNetwork, tenant: &DesiredTenant) -> Option<Place> {
    if let Some(shared) = network.scenario.shared_bridge() {
        return Some((shared.link.name.clone(), Some(tenant.segment.vlan()?)));
    }
    let is_bridge = |kind: &DesiredKind| matches!(kind, DesiredKind::Bridge { .. });
    let bridge = tenant.links.iter().find(|link| is_bridge(&link.kind))?;
    Some((bridge.name.clone(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(bridge: &str, vlan: Option<u16>, addresses: &[&str]) -> SourceRecord {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        SourceRecord {
            network: "cluster-a".to_owned(),
            bridge: bridge.parse().unwrap(),
            vlan: vlan.map(|vlan| VlanId::try_from(vlan).unwrap()),
            addresses: addresses.iter().map(|address| (mac, address.parse().unwrap())).collect(),
        }
    }

    #[test]
    fn keys_have_the_layout_of_the_registers() {
        let sources = vec![
            source("tn5001", None, &["10.0.0.7", "fd00::7"]),
            source("br-tenant", Some(0x123), &["10.0.0.8"]),
        ];
        let guard = GuardRecord { sources, ..GuardRecord::default() };
        let keys = BridgeKind::Single.address_keys(&guard, Family::V4);
        let single = keys.first().unwrap();
        assert_eq!(single.len(), 28);
        assert!(single.starts_with(b"tn5001\0"));
        assert_eq!(single[16..], [2, 0, 0, 0, 0, 1, 0, 0, 10, 0, 0, 7]);
        let keys = BridgeKind::Single.address_keys(&guard, Family::V6);
        assert!(keys.len() == 1 && keys.iter().all(|key| key.len() == 40));
        let keys = BridgeKind::Shared.address_keys(&guard, Family::V4);
        let shared = keys.first().unwrap();
        assert_eq!(shared.len(), 32);
        assert_eq!(shared[16..20], [0x123_u16.to_ne_bytes(), [0; 2]].concat());
        assert_eq!(shared[20..], [2, 0, 0, 0, 0, 1, 0, 0, 10, 0, 0, 8]);
        assert!(BridgeKind::Shared.address_keys(&guard, Family::V6).is_empty());
        assert_eq!(tag_keys().collect::<Vec<_>>(), [vec![0x81, 0], vec![0x88, 0xa8]]);
    }

    #[test]
    fn only_kinds_of_bridges_with_guarded_networks_have_rules() {
        let kinds = |sources: Vec<SourceRecord>, unsupported: bool| {
            let guard = GuardRecord { sources, unsupported, ..GuardRecord::default() };
            assert_eq!(SourceRule::all(&guard).count(), 8 * BridgeKind::guarded(&guard).count());
            BridgeKind::guarded(&guard).collect::<Vec<_>>()
        };
        let (single, shared) = (source("tn5001", None, &[]), source("br-tenant", Some(100), &[]));
        assert_eq!(kinds(Vec::new(), false), []);
        assert_eq!(kinds(vec![single.clone()], false), [BridgeKind::Single]);
        assert_eq!(kinds(vec![shared.clone()], false), [BridgeKind::Shared]);
        let both = vec![shared, single];
        assert_eq!(kinds(both.clone(), false), [BridgeKind::Single, BridgeKind::Shared]);
        assert_eq!(kinds(both, true), []);
    }

    #[test]
    fn sets_of_leases_are_distinguished_from_sets_of_networks() {
        assert!(is_address_set("vlan_ipv6") && is_address_set("bridge_ipv4"));
        assert!(!is_address_set("source_vlans") && !is_address_set("uplinks"));
    }
}
