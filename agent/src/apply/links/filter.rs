//! Writes the nftables table that drops guests' control frames before they leave through an uplink, the messages of DHCP
//! servers and routers among guests, and frames of guests from foreign addresses. Each change is one transaction, so that
//! the kernel always has either the old rules or the new rules.

use nix::errno::Errno;

use super::error::FilterError;
use super::expressions::{
    Expression, ICMPV6, INPUT_BRIDGE, INPUT_GROUP, INPUT_NAME, INPUT_PVID, LINK_LAYER_HEADER,
    NEXT_REGISTER, NFT_JUMP, OUTPUT_GROUP, OUTPUT_NAME, PROTOCOL, TRANSPORT_HEADER, UDP,
    bitwise_expression, compare_expression, data_value, load_meta, lookup_expression,
    meta_expression, payload_expression, verdict_attributes,
};
use super::source_expressions::source_expressions;
use crate::netlink::KernelRefusal;
use crate::nftables::{NF_DROP, NftablesRequest, NftablesWriter, message_types};
use crate::plan::network::filter::{
    FORWARD_CHAIN, FORWARD_HOOK, KeyKind, KeySet, RESERVED_ADDRESS_CHAIN, RESERVED_MASK,
    RESERVED_SET, Rule, UPLINK_SET, has_other_leases, sets, table,
};
use crate::plan::network::server_guard::{
    BRIDGE_SET, CLIENT_PORT_SET, GUARD_CHAIN, ROUTER_TYPE_SET, VLAN_SET,
};
use crate::plan::network::source_guard::{BridgeKind, Family};
use crate::plan::network::{FilterAction, LINK_GROUP};
use berth_host_facts::ledger::FilterRecord;
use berth_host_facts::links::{BridgeFilter, read_filter};
use berth_host_facts::nftables::{Attributes, NF_ACCEPT, NftablesReader, TABLE_NAME, Table};

/// Applies the change, and compares the table of the kernel with the desired table.
///
/// # Errors
/// Returns an error if the kernel refuses the change or does not answer, or if the table differs from the desired one.
pub(super) fn apply_filter(action: &FilterAction) -> Result<(), FilterError> {
    let mut transactions = NftablesWriter::open().map_err(FilterError::OpenSocket)?;
    if let FilterAction::Replace(filter) = action
        && update_leases(&mut transactions, filter)?
    {
        return Ok(());
    }
    let requests = match action {
        FilterAction::Replace(filter) => replace_requests(filter),
        FilterAction::Delete => vec![delete_request()],
    };
    match transactions.commit_transaction(&requests).map_err(FilterError::NoAnswer)? {
        // Another program deleted the table after the plan was made.
        Err(KernelRefusal { errno: Errno::ENOENT, .. }) if *action == FilterAction::Delete => {}
        Err(refused) => return Err(FilterError::Refused(refused)),
        Ok(()) => {}
    }
    let should_be = match action {
        FilterAction::Replace(filter) => BridgeFilter::Present(table(filter)),
        FilterAction::Delete => BridgeFilter::Absent,
    };
    if read_table()? == should_be { Ok(()) } else { Err(FilterError::TableDiffers) }
}

fn read_table() -> Result<BridgeFilter, FilterError> {
    let now = NftablesReader::open().and_then(|mut nftables| read_filter(&mut nftables));
    now.map_err(FilterError::NoAnswer)
}

/// Adds and deletes elements, if the table of the kernel differs from the desired one only in leases: leases change with
/// each VM, and a host may have thousands. The counters of the rules are kept. Returns false if the table must be
/// replaced, because it differs in other properties, or because another program changed it at the same time.
fn update_leases(
    transactions: &mut NftablesWriter,
    filter: &FilterRecord,
) -> Result<bool, FilterError> {
    let should_be = table(filter);
    let Ok(BridgeFilter::Present(now)) = read_table() else { return Ok(false) };
    if !has_other_leases(&now, &should_be) {
        return Ok(false);
    }
    let requests = element_requests(&now, &should_be);
    if requests.is_empty() {
        return Ok(false);
    }
    let result = transactions.commit_transaction(&requests).map_err(FilterError::NoAnswer)?;
    Ok(result.is_ok() && read_table()? == BridgeFilter::Present(should_be))
}

/// Returns the requests that change the elements of the sets of `now` to those of `should_be`.
fn element_requests(now: &Table, should_be: &Table) -> Vec<NftablesRequest> {
    let mut requests = Vec::new();
    for (name, keys) in &should_be.sets {
        let Some(current) = now.sets.get(name) else { continue };
        let removed = elements(name, current.difference(keys));
        let added = elements(name, keys.difference(current));
        let delete = |elements| NftablesRequest::delete(message_types::DELETE_ELEMENTS, elements);
        let create = |elements| NftablesRequest::create(message_types::NEW_ELEMENTS, elements);
        requests.extend(removed.into_iter().map(delete));
        requests.extend(added.into_iter().map(create));
    }
    requests
}

fn table_attribute() -> Attributes {
    Attributes::default().with_text(1, TABLE_NAME)
}

fn delete_request() -> NftablesRequest {
    NftablesRequest::delete(message_types::DELETE_TABLE, table_attribute())
}

/// Returns the requests that replace the table. The first request creates the table if it does not exist, because the
/// second request, which deletes the table, would fail without it. The other requests create the table from scratch.
fn replace_requests(filter: &FilterRecord) -> Vec<NftablesRequest> {
    let make = || {
        table_attribute()
            .with_number(2, 0)
            .with_comment(6, "created by berth-agent, which corrects any change")
    };
    let mut requests = vec![
        NftablesRequest::create(message_types::NEW_TABLE, make()),
        delete_request(),
        NftablesRequest::create(message_types::NEW_TABLE, make()),
    ];
    for (number, set) in (1..).zip(sets(filter)) {
        requests.extend(set_requests(number, set));
    }
    let hook = Attributes::default()
        .with_number(1, FORWARD_HOOK.number)
        .with_number(2, FORWARD_HOOK.priority.cast_unsigned());
    let forward = table_attribute()
        .with_text(3, FORWARD_CHAIN)
        .with_nested(4, hook)
        .with_number(5, FORWARD_HOOK.policy)
        .with_text(7, "filter");
    // The chains to which rules jump are created first.
    let mut jump_targets = vec![RESERVED_ADDRESS_CHAIN];
    jump_targets.extend(filter.guard.has_networks().then_some(GUARD_CHAIN));
    jump_targets.extend(BridgeKind::guarded(&filter.guard).map(BridgeKind::chain));
    for chain in jump_targets {
        let attributes = table_attribute().with_text(3, chain);
        requests.push(NftablesRequest::create(message_types::NEW_CHAIN, attributes));
    }
    requests.push(NftablesRequest::create(message_types::NEW_CHAIN, forward));
    for rule in Rule::all(filter) {
        let expressions =
            expressions(rule).into_iter().fold(Attributes::default(), |all, (name, data)| {
                all.with_nested(
                    NFTA_LIST_ELEM,
                    Attributes::default().with_text(1, name).with_nested(2, data),
                )
            });
        let attributes = table_attribute()
            .with_text(2, rule.chain())
            .with_nested(4, expressions)
            .with_comment(7, &rule.comment());
        requests.push(NftablesRequest::append(message_types::NEW_RULE, attributes));
    }
    requests
}

/// Netlink attribute of an element in a list (`NFTA_LIST_ELEM`).
const NFTA_LIST_ELEM: u16 = 1;
/// Byte order of the host (`enum byteorder` of `nft`).
const HOST_ENDIAN: u32 = 1;
/// Byte order of the network (`enum byteorder` of `nft`).
const BIG_ENDIAN: u32 = 2;

/// Maximum number of elements of one message: the length of a netlink attribute has 16 bits.
const MAX_ELEMENTS: usize = 1000;

/// Returns the type, the byte order and the length of keys. The types are the data types that `nft` defines, so that
/// `nft list` can show the keys: a hardware address (9), an EtherType (10), a port (13), a type of ICMPv6 (29), the name
/// of a link (41), and a name together with a number of 32 bits (19). In a key of several values, each value has 6 bits
/// of the type, and a multiple of 4 bytes of the key: the key of a VM ends with a hardware address, and the key of a lease
/// also with an IPv4 (7) or IPv6 address (8).
const fn key_format(kind: KeyKind) -> (u32, u32, u32) {
    match kind {
        KeyKind::HardwareAddress => (9, BIG_ENDIAN, 6),
        KeyKind::LinkName => (41, HOST_ENDIAN, 16),
        KeyKind::Port => (13, BIG_ENDIAN, 2),
        KeyKind::Icmpv6Type => (29, BIG_ENDIAN, 1),
        KeyKind::LinkAndVlan => ((41 << 6) | 19, HOST_ENDIAN, 20),
        KeyKind::EtherType => (10, BIG_ENDIAN, 2),
        KeyKind::Machine(bridge) => machine_format(bridge),
        KeyKind::Lease(bridge, family) => {
            let (machine, order, length) = machine_format(bridge);
            match family {
                Family::V4 => ((machine << 6) | 7, order, length + 4),
                Family::V6 => ((machine << 6) | 8, order, length + 16),
            }
        }
    }
}

const fn machine_format(bridge: BridgeKind) -> (u32, u32, u32) {
    match bridge {
        BridgeKind::Single => ((41 << 6) | 9, HOST_ENDIAN, 24),
        BridgeKind::Shared => ((41 << 12) | (19 << 6) | 9, HOST_ENDIAN, 28),
    }
}

/// Returns the requests that create a set with its elements. The number identifies the set within the transaction.
fn set_requests(number: u32, set: KeySet) -> Vec<NftablesRequest> {
    let KeySet { name, kind, keys } = set;
    let (key_type, order, length) = key_format(kind);
    // `NFTNL_UDATA_SET_KEYBYTEORDER`, without which `nft` lists numbers in the wrong byte order.
    let order = [&[0, 4], order.to_ne_bytes().as_slice()].concat();
    let attributes = table_attribute()
        .with_text(2, name)
        .with_number(3, 0)
        .with_number(4, key_type)
        .with_number(5, length)
        .with_number(10, number)
        .with_bytes(13, &order);
    let create_set = NftablesRequest::create(message_types::NEW_SET, attributes);
    let add_elements = elements(name, &keys).into_iter().map(|elements| {
        NftablesRequest::create(message_types::NEW_ELEMENTS, elements.with_number(4, number))
    });
    std::iter::once(create_set).chain(add_elements).collect()
}

/// Returns the attributes of messages about elements of a set.
fn elements<'a>(set: &str, keys: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Attributes> {
    let keys: Vec<&Vec<u8>> = keys.into_iter().collect();
    let message = |keys: &[&Vec<u8>]| {
        let elements = keys.iter().fold(Attributes::default(), |all, key| {
            all.with_nested(NFTA_LIST_ELEM, Attributes::default().with_nested(1, data_value(key)))
        });
        table_attribute().with_text(2, set).with_nested(3, elements)
    };
    keys.chunks(MAX_ELEMENTS).map(message).collect()
}

fn expressions(rule: Rule) -> Vec<Expression> {
    match rule {
        Rule::JumpForReserved => vec![
            // Loads the destination MAC address.
            ("payload", payload_expression(LINK_LAYER_HEADER, 0, 6)),
            ("bitwise", bitwise_expression(&RESERVED_MASK)),
            ("lookup", lookup_expression(RESERVED_SET)),
            ("immediate", verdict_attributes(NFT_JUMP, Some(RESERVED_ADDRESS_CHAIN))),
        ],
        Rule::DropToGroup => vec![
            ("meta", meta_expression(OUTPUT_GROUP)),
            // The kernel compares link groups in the byte order of the host.
            ("cmp", compare_expression(&LINK_GROUP.to_ne_bytes())),
            ("counter", Attributes::default()),
            ("immediate", verdict_attributes(NF_DROP, None)),
        ],
        Rule::DropToUplinks => vec![
            ("meta", meta_expression(OUTPUT_NAME)),
            ("lookup", lookup_expression(UPLINK_SET)),
            ("counter", Attributes::default()),
            ("immediate", verdict_attributes(NF_DROP, None)),
        ],
        // The kernel finds the transport header after any IPv6 extension headers; later fragments have no transport
        // header, and do not match. The kernel stores the VLAN tag in the frame's metadata, so a tag does not shift the
        // headers.
        Rule::JumpForServers => vec![
            ("meta", meta_expression(PROTOCOL)),
            ("cmp", compare_expression(&[UDP])),
            // Loads the destination port.
            ("payload", payload_expression(TRANSPORT_HEADER, 2, 2)),
            ("lookup", lookup_expression(CLIENT_PORT_SET)),
            ("immediate", verdict_attributes(NFT_JUMP, Some(GUARD_CHAIN))),
        ],
        Rule::JumpForRouters => vec![
            ("meta", meta_expression(PROTOCOL)),
            ("cmp", compare_expression(&[ICMPV6])),
            ("payload", payload_expression(TRANSPORT_HEADER, 0, 1)),
            ("lookup", lookup_expression(ROUTER_TYPE_SET)),
            ("immediate", verdict_attributes(NFT_JUMP, Some(GUARD_CHAIN))),
        ],
        Rule::AcceptFromGroup => vec![
            ("meta", meta_expression(INPUT_GROUP)),
            ("cmp", compare_expression(&LINK_GROUP.to_ne_bytes())),
            ("immediate", verdict_attributes(NF_ACCEPT, None)),
        ],
        Rule::AcceptFromUplinks => vec![
            ("meta", meta_expression(INPUT_NAME)),
            ("lookup", lookup_expression(UPLINK_SET)),
            ("immediate", verdict_attributes(NF_ACCEPT, None)),
        ],
        Rule::DropOnBridges => vec![
            ("meta", meta_expression(INPUT_BRIDGE)),
            ("lookup", lookup_expression(BRIDGE_SET)),
            ("counter", Attributes::default()),
            ("immediate", verdict_attributes(NF_DROP, None)),
        ],
        Rule::DropInVlans => vec![
            ("meta", meta_expression(INPUT_BRIDGE)),
            ("meta", load_meta(INPUT_PVID, NEXT_REGISTER)),
            ("lookup", lookup_expression(VLAN_SET)),
            ("counter", Attributes::default()),
            ("immediate", verdict_attributes(NF_DROP, None)),
        ],
        Rule::Source(rule) => source_expressions(rule),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use berth_api::MacAddress;
    use berth_host_facts::ledger::{GuardRecord, SourceRecord};

    use super::*;
    use crate::plan::network::filter::new_filter_record;

    #[test]
    fn elements_are_split_into_messages_of_valid_length() {
        let keys: Vec<Vec<u8>> =
            (0..2500_u32).map(|number| number.to_be_bytes().repeat(11)).collect();
        let messages = elements("vlan_ipv6", &keys);
        assert_eq!(messages.len(), 3);
        let lengths = messages.iter().map(|message| message.as_bytes().len());
        assert!(lengths.max().is_some_and(|longest| longest < usize::from(u16::MAX)));
    }

    #[test]
    fn a_new_lease_adds_one_element() {
        let table = |keys: &[u8]| {
            let set: BTreeSet<Vec<u8>> = keys.iter().map(|key| vec![*key; 32]).collect();
            Table { sets: [("vlan_ipv4".to_owned(), set)].into(), ..Table::default() }
        };
        let keys: Vec<u8> = (0..200).collect();
        assert_eq!(element_requests(&table(&keys[1..]), &table(&keys)).len(), 1);
        // The first element is removed, and the last one is added.
        let (now, should_be) = (table(&keys[..199]), table(&keys[1..]));
        assert_eq!(element_requests(&now, &should_be).len(), 2);
        assert!(element_requests(&now, &now).is_empty());
    }

    #[test]
    fn keys_of_each_set_have_its_length() {
        let lease = |text: &str| (MacAddress([2, 0, 0, 0, 0, 1]), text.parse::<IpAddr>().unwrap());
        let source = |bridge: &str, vlan: Option<u16>| SourceRecord {
            network: "cluster-a".to_owned(),
            bridge: bridge.parse().unwrap(),
            vlan: vlan.map(|vlan| vlan.try_into().unwrap()),
            addresses: ["10.0.0.1", "fd00::1"].map(lease).into(),
        };
        let guard = GuardRecord {
            bridges: ["tn5001".parse().unwrap()].into(),
            vlans: [("br-tenant".parse().unwrap(), 120.try_into().unwrap())].into(),
            sources: vec![source("br-tenant", Some(120)), source("tn5001", None)],
            unsupported: false,
        };
        let record = new_filter_record(["eth1".parse().unwrap()].into(), guard);
        let all = sets(&record);
        assert_eq!(all.len(), 17);
        for set in all {
            let (_, _, length) = key_format(set.kind);
            assert!(!set.keys.is_empty(), "{set:?}");
            let has_length = |key: &Vec<u8>| u32::try_from(key.len()) == Ok(length);
            assert!(set.keys.iter().all(has_length), "{set:?}");
        }
    }
}
