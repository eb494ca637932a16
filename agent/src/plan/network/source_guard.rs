//! Selects the networks whose VMs may send only from the addresses of their leases, and the rules that drop other
//! frames of these VMs: frames from foreign addresses.
//!
//! A rule compares the bridge of a frame, on a shared bridge also the VLAN of the port, the Ethernet source and the IP
//! source with two sets: one has the Ethernet addresses with a lease, the other one the leases. A change of the leases
//! therefore changes only the elements of sets, and a frame costs the same with one VM as with thousands. The networks
//! are part of the keys, because VMs of two tenants may have the same addresses. Frames that arrive from uplinks, VLAN
//! links and tunnels are accepted: their senders are VMs of other hosts, whose agents know the leases, or machines that
//! have no leases.
//!
//! A VM without a lease, and the family for which a lease has no address, are not restricted. A VM can be without a
//! lease although nothing is wrong with it: the agent has not read the leases yet, the object with the leases was full,
//! or the VM has an address of a previous pool. `macSpoofCheck` ensures that a VM cannot choose such an Ethernet address.
//!
//! These senders need no lease: the unspecified addresses, from which clients of DHCP and of duplicate address
//! detection send, and link-local IPv6 addresses, which guests select themselves. A frame with a second VLAN tag or with
//! a SNAP header is dropped, because a guest that receives it may ignore the tag or the header, and read a packet that
//! no rule has examined. The Ethernet address in the body of an ARP message is not compared, because with the sender's
//! own IP address it can redirect only the sender's traffic.

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
use crate::plan::leased_networks::LeasedNetwork;

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

    /// Returns the name of the set of VMs that have a lease of this family: network and Ethernet address.
    pub(crate) const fn machine_set(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Single, Family::V4) => "bridge_ipv4_macs",
            (Self::Single, Family::V6) => "bridge_ipv6_macs",
            (Self::Shared, Family::V4) => "vlan_ipv4_macs",
            (Self::Shared, Family::V6) => "vlan_ipv6_macs",
        }
    }

    /// Returns the keys of the set [`Self::network_set`].
    pub(super) fn network_keys(self, guard: &GuardRecord) -> BTreeSet<Vec<u8>> {
        self.networks(guard).map(network_key).collect()
    }

    /// Returns the keys of the sets [`Self::machine_set`] and [`Self::address_set`].
    pub(super) fn lease_keys(self, guard: &GuardRecord, family: Family) -> LeaseKeys {
        let mut keys = LeaseKeys::default();
        for network in self.networks(guard) {
            let prefix = network_key(network);
            for (mac, address) in &network.addresses {
                let octets = match (address, family) {
                    (IpAddr::V4(address), Family::V4) => address.octets().to_vec(),
                    (IpAddr::V6(address), Family::V6) => address.octets().to_vec(),
                    (IpAddr::V4(_), Family::V6) | (IpAddr::V6(_), Family::V4) => continue,
                };
                let machine = machine_key(&prefix, *mac);
                keys.addresses.insert([machine.as_slice(), octets.as_slice()].concat());
                keys.machines.insert(machine);
            }
        }
        keys
    }

    fn networks(self, guard: &GuardRecord) -> impl Iterator<Item = &SourceRecord> {
        let sources = guard.guarded_sources().iter();
        sources.filter(move |network| network.vlan.is_some() == (self == Self::Shared))
    }
}

/// Keys of the sets of one family.
#[derive(Debug, Default)]
pub(super) struct LeaseKeys {
    pub(super) machines: BTreeSet<Vec<u8>>,
    pub(super) addresses: BTreeSet<Vec<u8>>,
}

/// Returns true if the set contains leases, or the Ethernet addresses of leases.
pub(super) fn is_lease_set(name: &str) -> bool {
    let contains = |kind: BridgeKind, family: Family| {
        [kind.machine_set(family), kind.address_set(family)].contains(&name)
    };
    BridgeKind::ALL
        .into_iter()
        .any(|kind| Family::ALL.into_iter().any(|family| contains(kind, family)))
}

/// Returns the key of a network as the kernel stores it in its registers: the bridge's name in 16 bytes and, on a
/// shared bridge, the VLAN.
fn network_key(network: &SourceRecord) -> Vec<u8> {
    match network.vlan {
        None => name_key(&network.bridge),
        Some(vlan) => vlan_key(&(network.bridge.clone(), vlan)),
    }
}

/// Returns the key of a VM: the key of its network, and the Ethernet address, which is padded to 8 bytes.
fn machine_key(network: &[u8], mac: MacAddress) -> Vec<u8> {
    [network, &mac.0, &[0; 2]].concat()
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
    /// Drops frames with an EtherType in a SNAP header.
    DropSnap,
    /// Drops ARP messages of VMs with a lease, if the sender is another address.
    DropArp,
    /// Drops IPv4 packets of VMs with a lease, if the source is another address.
    DropIpv4,
    /// Drops IPv6 packets of VMs with a lease, if the source is another address that is not link-local.
    DropIpv6,
    /// Drops neighbor advertisements of VMs with a lease, if the target is another address that is not link-local.
    DropAdvertisement,
}

impl SourceRule {
    const STEPS: [SourceStep; 9] = [
        SourceStep::Jump,
        SourceStep::AcceptFromGroup,
        SourceStep::AcceptFromUplinks,
        SourceStep::DropTagged,
        SourceStep::DropSnap,
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
            | SourceStep::DropSnap
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
            (SourceStep::DropSnap, _) => "guests may not send packets with SNAP headers",
            (SourceStep::DropArp, _) => "guests may send ARP only from their leases",
            (SourceStep::DropIpv4, _) => "guests may send IPv4 only from their leases",
            (SourceStep::DropIpv6, _) => "guests may send IPv6 only from their leases",
            (SourceStep::DropAdvertisement, _) => "guests may advertise only their leases",
        }
    }
}

/// Bridge of a network, and the VLAN of the network if several tenants share the bridge.
type BridgeAndVlan = (LinkName, Option<VlanId>);

/// Returns the networks with source guard, with their leases. Networks that are not changed because of a fault in their
/// spec (`has_faults`) stay guarded, unless the spec of their tenant disables the source guard.
pub(super) fn desired_sources(
    input: Input,
    desired: &DesiredNetworks,
    has_faults: bool,
) -> Vec<SourceRecord> {
    let record = input.facts.ledger.filter.as_ref();
    let recorded: BTreeMap<BridgeAndVlan, &SourceRecord> = record
        .into_iter()
        .flat_map(|record| &record.guard.sources)
        .map(|network| ((network.bridge.clone(), network.vlan), network))
        .collect();
    let names = |is_guarded: bool| -> BTreeSet<&str> {
        let tenants = input.spec.tenant_networks.iter();
        let selected = tenants.filter(|tenant| (tenant.source_guard == Some(true)) == is_guarded);
        selected.map(|tenant| tenant.name.as_str()).collect()
    };
    let (guarded, unguarded) = (names(true), names(false));
    let mut sources = BTreeMap::new();
    if has_faults {
        for (bridge_and_vlan, network) in &recorded {
            let name = network.network.as_str();
            if !unguarded.contains(name) {
                // New VMs of the network need their addresses, although its links are not changed.
                let addresses = known_addresses(input, name, None, Some(*network));
                sources
                    .insert(bridge_and_vlan.clone(), new_record(name, bridge_and_vlan, addresses));
            }
        }
    }
    for network in &desired.networks {
        for tenant in &network.tenants {
            let Some(bridge_and_vlan) = find_bridge_and_vlan(network, tenant) else { continue };
            // The recorded network with this bridge and VLAN may be that of another tenant.
            sources.remove(&bridge_and_vlan);
            if guarded.contains(tenant.name) {
                let segment = Some(tenant.segment_number());
                let record = recorded.get(&bridge_and_vlan).copied();
                let addresses = known_addresses(input, tenant.name, segment, record);
                sources.insert(
                    bridge_and_vlan.clone(),
                    new_record(tenant.name, &bridge_and_vlan, addresses),
                );
            }
        }
    }
    sources.into_values().collect()
}

/// Returns the addresses of a network's leases, and the recorded addresses while the leases are unknown. Leases of
/// another VLAN or VNI do not belong to the network.
fn known_addresses(
    input: Input,
    name: &str,
    segment: Option<u32>,
    recorded: Option<&SourceRecord>,
) -> BTreeSet<(MacAddress, IpAddr)> {
    let Some(leases) = input.leases else {
        let same = recorded.filter(|network| network.network == name);
        return same.map(|network| network.addresses.clone()).unwrap_or_default();
    };
    let is_same = |leased: &&LeasedNetwork| {
        leased.segment.zip(segment).is_none_or(|(one, other)| one == other)
    };
    let leased = leases.get(name).filter(is_same);
    leased.map(|leased| leased.addresses.clone()).unwrap_or_default()
}

fn new_record(
    name: &str,
    (bridge, vlan): &BridgeAndVlan,
    addresses: BTreeSet<(MacAddress, IpAddr)>,
) -> SourceRecord {
    SourceRecord { network: name.to_owned(), bridge: bridge.clone(), vlan: *vlan, addresses }
}

/// Returns the bridge of a tenant, and its VLAN if the bridge is shared; `None` without a bridge.
fn find_bridge_and_vlan(network: &DesiredNetwork, tenant: &DesiredTenant) -> Option<BridgeAndVlan> {
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
        let keys = BridgeKind::Single.lease_keys(&guard, Family::V4);
        let single = keys.addresses.first().unwrap();
        assert_eq!(single.len(), 28);
        assert_eq!(single[..24], keys.machines.first().unwrap()[..]);
        assert!(single.starts_with(b"tn5001\0"));
        assert_eq!(single[16..], [2, 0, 0, 0, 0, 1, 0, 0, 10, 0, 0, 7]);
        let keys = BridgeKind::Single.lease_keys(&guard, Family::V6).addresses;
        assert!(keys.len() == 1 && keys.iter().all(|key| key.len() == 40));
        let keys = BridgeKind::Shared.lease_keys(&guard, Family::V4);
        let shared = keys.addresses.first().unwrap();
        assert_eq!(shared.len(), 32);
        assert_eq!(shared[16..20], [0x123_u16.to_ne_bytes(), [0; 2]].concat());
        assert_eq!(shared[20..], [2, 0, 0, 0, 0, 1, 0, 0, 10, 0, 0, 8]);
        assert_eq!(shared[..28], keys.machines.first().unwrap()[..]);
        // A VM without an IPv6 address in its lease is not restricted to one.
        assert!(BridgeKind::Shared.lease_keys(&guard, Family::V6).machines.is_empty());
        assert_eq!(tag_keys().collect::<Vec<_>>(), [vec![0x81, 0], vec![0x88, 0xa8]]);
    }

    #[test]
    fn only_kinds_of_bridges_with_guarded_networks_have_rules() {
        let kinds = |sources: Vec<SourceRecord>, unsupported: bool| {
            let guard = GuardRecord { sources, unsupported, ..GuardRecord::default() };
            let steps = SourceRule::STEPS.len();
            assert_eq!(
                SourceRule::all(&guard).count(),
                steps * BridgeKind::guarded(&guard).count()
            );
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
        assert!(is_lease_set("vlan_ipv6") && is_lease_set("bridge_ipv4_macs"));
        assert!(!is_lease_set("source_vlans") && !is_lease_set("uplinks"));
    }
}
