//! Drops guests' control frames that only switches may send, such as BPDUs and LACP, before these frames leave the
//! host.
//!
//! With STP off, a Linux bridge forwards BPDUs like any other frame (`br_handle_frame`), and it forwards frames to
//! the addresses of Cisco's protocols as ordinary multicast. A switch port with BPDU guard goes down at the first
//! BPDU, which disconnects all tenants of the host. So one nftables table of the bridge family drops such frames
//! when a bridge forwards them to a link that leaves the host. The kernel calls the table's chain only for frames
//! that a bridge forwards from one port to another, so the rules do not affect frames that the host itself sends
//! through its uplink (LLDP, LACP, probes of trunks).
//!
//! The same table drops the messages of DHCP servers and routers among VMs ([`super::server_guard`]), and frames of VMs
//! from foreign addresses ([`super::source_guard`]).
//!
//! The rules recognize the links that Berth creates by [`LINK_GROUP`](super::names::LINK_GROUP). The netlink
//! message that creates a link also sets its group, so the rules apply to every tenant and every port from the
//! first frame on. Only uplinks that are bridge ports themselves are listed by name in the table. Any other frame
//! costs one set lookup, regardless of the number of tenants; with guarded networks, it also costs two comparisons
//! of its protocol.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::LinkName;

use super::action::{FilterAction, LinkAction, Stage};
use super::id::LinkChangeId;
use super::link_change::{NOT_ENFORCED_REASON, new_link_change};
use super::names::name_key;
use super::server_guard::{
    BRIDGE_SET, CLIENT_PORT_SET, GUARD_CHAIN, ROUTER_TYPE_SET, VLAN_SET, client_port_keys,
    router_type_keys, vlan_key,
};
use super::source_guard::{BridgeKind, Family, SourceRule, TAG_SET, is_lease_set, tag_keys};

use crate::plan::change::{Change, ChangeReason};
use crate::plan::input::Input;
use berth_host_facts::ledger::{FilterRecord, GuardRecord, Ledger};
use berth_host_facts::links::{BridgeFilter, Link, LinkKind, Links};
use berth_host_facts::nftables::{Chain, Hook, NF_ACCEPT, Table};

/// Name of the chain that the kernel calls for each frame that a bridge forwards.
pub(crate) const FORWARD_CHAIN: &str = "forward";
/// Name of the chain for frames to the reserved addresses of [`RESERVED_BLOCKS`].
pub(crate) const RESERVED_ADDRESS_CHAIN: &str = "leaving";
/// Name of the set of reserved addresses, with the last four bits of each address set to 0.
pub(crate) const RESERVED_SET: &str = "reserved";
/// Name of the set of uplinks that are ports of Berth's bridges.
pub(crate) const UPLINK_SET: &str = "uplinks";
/// Netfilter hook for frames that a bridge forwards (`NF_BR_FORWARD`).
pub(crate) const FORWARD_HOOK: Hook = Hook {
    number: 2,
    // `NF_BR_PRI_FILTER_BRIDGED`: before br_netfilter passes the frame to the host's iptables rules.
    priority: -200,
    policy: NF_ACCEPT,
};

/// Version of the rules. It must be increased with each change of the rules, so that an agent replaces the table of
/// an older agent.
const RULES_VERSION: u32 = 2;

/// Returns the record for the rollback ledger of the rules of this agent version, for these uplinks and guarded
/// networks.
#[must_use]
pub(crate) const fn new_filter_record(
    uplinks: BTreeSet<LinkName>,
    guard: GuardRecord,
) -> FilterRecord {
    FilterRecord { version: RULES_VERSION, uplinks, guard }
}

/// A rule of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Jumps to [`RESERVED_ADDRESS_CHAIN`] for frames to reserved addresses.
    JumpForReserved,
    /// Drops frames whose output link has Berth's group.
    DropToGroup,
    /// Drops frames whose output link is in [`UPLINK_SET`].
    DropToUplinks,
    /// Jumps to [`GUARD_CHAIN`] for messages to DHCP clients.
    JumpForServers,
    /// Jumps to [`GUARD_CHAIN`] for ICMPv6 messages that only routers send.
    JumpForRouters,
    /// Accepts frames whose input link has Berth's group.
    AcceptFromGroup,
    /// Accepts frames whose input link is in [`UPLINK_SET`].
    AcceptFromUplinks,
    /// Drops frames on the bridges of guarded networks.
    DropOnBridges,
    /// Drops frames in the guarded VLANs of shared bridges.
    DropInVlans,
    /// Rule of the source guard.
    Source(SourceRule),
}

impl Rule {
    const CONTROL_FRAMES: [Self; 3] =
        [Self::JumpForReserved, Self::DropToGroup, Self::DropToUplinks];
    const SERVERS: [Self; 6] = [
        Self::JumpForServers,
        Self::JumpForRouters,
        Self::AcceptFromGroup,
        Self::AcceptFromUplinks,
        Self::DropOnBridges,
        Self::DropInVlans,
    ];

    /// Returns the rules of a table, in the order in which the kernel evaluates them.
    pub(crate) fn all(filter: &FilterRecord) -> impl Iterator<Item = Self> + use<> {
        let servers = filter.guard.has_networks().then_some(Self::SERVERS);
        let sources = SourceRule::all(&filter.guard).map(Self::Source);
        Self::CONTROL_FRAMES.into_iter().chain(servers.into_iter().flatten()).chain(sources)
    }

    pub(crate) const fn chain(self) -> &'static str {
        match self {
            Self::JumpForReserved | Self::JumpForServers | Self::JumpForRouters => FORWARD_CHAIN,
            Self::DropToGroup | Self::DropToUplinks => RESERVED_ADDRESS_CHAIN,
            Self::AcceptFromGroup
            | Self::AcceptFromUplinks
            | Self::DropOnBridges
            | Self::DropInVlans => GUARD_CHAIN,
            Self::Source(rule) => match rule.chain() {
                Some(chain) => chain,
                None => FORWARD_CHAIN,
            },
        }
    }

    /// Returns the comment of the rule in nftables. The rules in the kernel are compared with the desired rules by
    /// their comments.
    pub(crate) fn comment(self) -> String {
        let description = match self {
            Self::JumpForReserved => "frames that only switches may send",
            Self::DropToGroup => "guests may not send such frames through a link of berth-agent",
            Self::DropToUplinks => "guests may not send such frames through an uplink",
            Self::JumpForServers => "messages of DHCP servers",
            Self::JumpForRouters => "router advertisements and redirects",
            Self::AcceptFromGroup => "frames from other hosts, through a link of berth-agent",
            Self::AcceptFromUplinks => "frames from other hosts, through an uplink",
            Self::DropOnBridges => "guests may not send such messages on these bridges",
            Self::DropInVlans => "guests may not send such messages in these VLANs",
            Self::Source(rule) => rule.description(),
        };
        format!("berth {RULES_VERSION}: {description}")
    }
}

/// First addresses of the blocks of 16 reserved addresses, of which the last four bits are not compared
/// ([`RESERVED_MASK`]). The addresses of IS-IS (01:80:c2:00:00:14 and 15) are in no block, because routers use
/// IS-IS: such frames may leave the host.
const RESERVED_BLOCKS: [[u8; 6]; 12] = [
    // IEEE 802.1Q, table 8-1: STP, pause frames, LACP, 802.1X, LLDP.
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00],
    // GMRP, GVRP, MVRP; connectivity fault management; TRILL.
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x20],
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x30],
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x40],
    // Cisco: ISL; CDP, VTP, DTP, PAgP, UDLD (cc) and PVST+ (cd); UplinkFast; layer 2 tunnels; CGMP.
    [0x01, 0x00, 0x0c, 0x00, 0x00, 0x00],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc0],
    [0x01, 0x00, 0x0c, 0xcd, 0xcd, 0xc0],
    [0x01, 0x00, 0x0c, 0xcd, 0xcd, 0xd0],
    [0x01, 0x00, 0x0c, 0xdd, 0xdd, 0xd0],
    // Discovery protocols of Extreme (with EAPS and ESRP), and of Foundry and Brocade.
    [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x00],
    [0x01, 0xe0, 0x52, 0xcc, 0xcc, 0xc0],
    // Berth's probes of trunks: a guest must not flood the agents of other hosts with probes, or replay their
    // probes.
    [0x03, 0x62, 0x65, 0x72, 0x74, 0x60],
];

/// Returns the first address of each block. The last byte of an ITU-T G.8032 address (ring protection) is the ring
/// ID, so all sixteen blocks of 01:19:a7:00:00:xx are included.
pub(crate) fn reserved_addresses() -> impl Iterator<Item = [u8; 6]> {
    let rings = (0..16_u8).map(|ring| [0x01, 0x19, 0xa7, 0x00, 0x00, ring << 4]);
    RESERVED_BLOCKS.into_iter().chain(rings)
}

/// Mask for the comparison of an address with the blocks: all bits except the last four.
pub(crate) const RESERVED_MASK: [u8; 6] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xf0];

/// Returns the table that a record describes, in the form in which the kernel lists it.
#[must_use]
pub fn table(filter: &FilterRecord) -> Table {
    let mut chains: BTreeMap<String, Chain> = BTreeMap::new();
    chains.insert(FORWARD_CHAIN.to_owned(), Chain { hook: Some(FORWARD_HOOK), rules: Vec::new() });
    for rule in Rule::all(filter) {
        chains.entry(rule.chain().to_owned()).or_default().rules.push(rule.comment());
    }
    let sets = sets(filter).into_iter().map(|set| (set.name.to_owned(), set.keys)).collect();
    Table { flags: 0, chains, sets }
}

/// A named set of the table.
#[derive(Debug)]
pub(crate) struct KeySet {
    pub(crate) name: &'static str,
    pub(crate) kind: KeyKind,
    pub(crate) keys: BTreeSet<Vec<u8>>,
}

/// Type of the keys of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    HardwareAddress,
    LinkName,
    Port,
    Icmpv6Type,
    /// A link name, followed by a VLAN ID in host byte order.
    LinkAndVlan,
    EtherType,
    /// A network with source guard, followed by an Ethernet address.
    Machine(BridgeKind),
    /// A network with source guard, followed by an Ethernet address and an IP address.
    Lease(BridgeKind, Family),
}

/// Returns the sets of a table, with their keys.
pub(crate) fn sets(filter: &FilterRecord) -> Vec<KeySet> {
    let set = |name, kind, keys| KeySet { name, kind, keys };
    let uplinks = filter.uplinks.iter().map(name_key).collect();
    let mut sets = vec![
        set(RESERVED_SET, KeyKind::HardwareAddress, reserved_addresses().map(Vec::from).collect()),
        set(UPLINK_SET, KeyKind::LinkName, uplinks),
    ];
    let guard = &filter.guard;
    if guard.has_networks() {
        let bridges = guard.bridges.iter().map(name_key).collect();
        let vlans = guard.vlans.iter().map(vlan_key).collect();
        sets.extend([
            set(CLIENT_PORT_SET, KeyKind::Port, client_port_keys().collect()),
            set(ROUTER_TYPE_SET, KeyKind::Icmpv6Type, router_type_keys().collect()),
            set(BRIDGE_SET, KeyKind::LinkName, bridges),
            set(VLAN_SET, KeyKind::LinkAndVlan, vlans),
        ]);
    }
    if !guard.guarded_sources().is_empty() {
        sets.push(set(TAG_SET, KeyKind::EtherType, tag_keys().collect()));
    }
    for kind in BridgeKind::guarded(guard) {
        let network_key = match kind {
            BridgeKind::Single => KeyKind::LinkName,
            BridgeKind::Shared => KeyKind::LinkAndVlan,
        };
        sets.push(set(kind.network_set(), network_key, kind.network_keys(guard)));
        for family in Family::ALL {
            let keys = kind.lease_keys(guard, family);
            sets.extend([
                set(kind.machine_set(family), KeyKind::Machine(kind), keys.machines),
                set(kind.address_set(family), KeyKind::Lease(kind, family), keys.addresses),
            ]);
        }
    }
    sets
}

/// Returns the ports of Berth's bridges through which frames leave the host.
#[must_use]
pub fn bridge_uplinks(links: &Links, ledger: &Ledger) -> BTreeSet<LinkName> {
    let known: BTreeSet<&LinkName> =
        ledger.networks.values().filter_map(|record| record.uplink.as_ref()).collect();
    let leaves_host = |port: &&Link| port.is_uplink() || known.contains(&port.name);
    let bridges =
        links.all.iter().filter(|link| link.kind == LinkKind::Bridge && link.is_created_by_berth());
    let ports = bridges.flat_map(|bridge| links.ports_of(&bridge.name)).filter(leaves_host);
    ports.map(|port| port.name.clone()).collect()
}

/// Returns the record of the table that the host needs while these changes are applied and afterwards; `None` if
/// the host has no link of Berth and no change creates one.
fn desired_record(input: Input, changes: &[Change], guard: GuardRecord) -> Option<FilterRecord> {
    let links = &input.facts.links;
    let possible = || {
        let works = changes.iter().filter(|change| change.blocked.is_none());
        works.filter_map(Change::link_action)
    };
    if !links.all.iter().any(Link::is_created_by_berth) && !possible().any(LinkAction::needs_filter)
    {
        return None;
    }
    let mut uplinks = bridge_uplinks(links, &input.facts.ledger);
    uplinks.extend(possible().filter_map(LinkAction::joined_uplink).map(|(port, _)| port.clone()));
    Some(new_filter_record(uplinks, guard))
}

/// Returns the change that installs, replaces or deletes the table; `None` if the table equals the desired one.
/// [`Stage`] ensures that links are created after the table. The table is deleted only after all links of Berth are
/// removed, and only if `allow_removal` is true, which means that no network's spec has a fault.
pub(super) fn plan_filter(
    input: Input,
    changes: &[Change],
    guard: GuardRecord,
    allow_removal: bool,
) -> Option<Change> {
    let recorded = input.facts.ledger.filter.as_ref();
    let current = match &input.facts.links.filter {
        BridgeFilter::Unknown => return None,
        BridgeFilter::Absent => None,
        BridgeFilter::Present(table) => Some(table),
    };
    let mut action = LinkAction::new("", Stage::Filter, Vec::new());
    let Some(desired) = desired_record(input, changes, guard) else {
        current.filter(|_| allow_removal)?;
        action.filter = Some(FilterAction::Delete);
        return Some(new_link_change(
            LinkChangeId::DeleteFilter,
            "present",
            "absent",
            ChangeReason::Restore,
            action,
        ));
    };
    let should_be = table(&desired);
    let difference = match current {
        None => "absent",
        Some(now) if *now == should_be => return None,
        Some(now) if now.sets.get(UPLINK_SET) != should_be.sets.get(UPLINK_SET) => {
            "different uplinks"
        }
        Some(now) if has_other_leases(now, &should_be) => "different leases",
        Some(now) if now.sets != should_be.sets => "different guarded networks",
        Some(_) => "different rules",
    };
    let drift = recorded == Some(&desired);
    let id = if !drift && current.is_some_and(|now| has_other_leases(now, &should_be)) {
        LinkChangeId::UpdateLeases
    } else {
        LinkChangeId::InstallFilter {
            uplinks: desired.uplinks.clone(),
            guarded_networks: desired.guard.network_count(),
            source_networks: desired.guard.guarded_sources().len(),
        }
    };
    action.filter = Some(FilterAction::Replace(desired));
    let mut change = new_link_change(id, difference, "in place", ChangeReason::Spec, action);
    change.drift = drift;
    if drift && input.spec.enforce == Some(false) {
        change.blocked = Some(NOT_ENFORCED_REASON.to_owned());
    }
    Some(change)
}

/// Returns true if only sets of leases differ.
pub(crate) fn has_other_leases(now: &Table, should_be: &Table) -> bool {
    let networks = |table: &Table| -> BTreeMap<String, BTreeSet<Vec<u8>>> {
        let mut sets = table.sets.clone();
        sets.retain(|name, _| !is_lease_set(name));
        sets
    };
    let leases_differ = now.sets != should_be.sets && networks(now) == networks(should_be);
    leases_differ && now.chains == should_be.chains && now.flags == should_be.flags
}

/// Returns true if the rollback ledger records the table, but the table does not exist.
pub(super) fn is_recorded_but_absent(input: Input) -> bool {
    input.facts.ledger.filter.is_some() && input.facts.links.filter == BridgeFilter::Absent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_dropped(address: [u8; 6]) -> bool {
        let mut masked = address;
        masked.iter_mut().zip(RESERVED_MASK).for_each(|(byte, mask)| *byte &= mask);
        reserved_addresses().any(|reserved| reserved == masked)
    }

    #[test]
    fn only_frames_to_reserved_addresses_are_dropped() {
        for address in [
            [0x01, 0x80, 0xc2, 0, 0, 0x00],
            [0x01, 0x80, 0xc2, 0, 0, 0x02],
            [0x01, 0x80, 0xc2, 0, 0, 0x0e],
            [0x01, 0x80, 0xc2, 0, 0, 0x0f],
            [0x01, 0x80, 0xc2, 0, 0, 0x21],
            [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcc],
            [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcd],
            [0x01, 0x00, 0x0c, 0xcd, 0xcd, 0xcd],
            [0x01, 0x19, 0xa7, 0, 0, 0x01],
            [0x01, 0x19, 0xa7, 0, 0, 0xff],
            [0x03, 0x62, 0x65, 0x72, 0x74, 0x68],
        ] {
            assert!(is_dropped(address), "{address:02x?}");
        }
        for address in [
            [0xff; 6],
            // IPv4 and IPv6 multicast, the address of a VRRP router, IS-IS, PTP, and the address of a guest.
            [0x01, 0x00, 0x5e, 0, 0, 0x12],
            [0x33, 0x33, 0, 0, 0, 0x01],
            [0x00, 0x00, 0x5e, 0, 0x01, 0x01],
            [0x01, 0x80, 0xc2, 0, 0, 0x14],
            [0x01, 0x1b, 0x19, 0, 0, 0],
            [0x52, 0x54, 0, 0, 0, 0x01],
        ] {
            assert!(!is_dropped(address), "{address:02x?}");
        }
        #[cfg(feature = "daemon")]
        assert!(is_dropped(berth_trunk_probe::DESTINATION.0));
        // The masked address of a frame never equals an element whose last four bits are not 0, and the kernel
        // refuses duplicate elements.
        let distinct: BTreeSet<[u8; 6]> = reserved_addresses().collect();
        assert_eq!(distinct.len(), reserved_addresses().count());
        assert!(distinct.iter().all(|address| address[5] & 0xf == 0));
    }
}
