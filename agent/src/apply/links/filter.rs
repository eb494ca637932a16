//! Writes the nftables table that drops guests' control frames before they leave through an uplink, and the messages of
//! DHCP servers and routers among guests. Each change is one transaction, so that the kernel always has either the old
//! rules or the new rules.

use nix::errno::Errno;

use super::error::FilterError;
use crate::netlink::KernelRefusal;
use crate::nftables::{NF_DROP, NftablesRequest, NftablesWriter, message_types};
use crate::plan::network::filter::{
    FORWARD_CHAIN, FORWARD_HOOK, KeyKind, KeySet, RESERVED_ADDRESS_CHAIN, RESERVED_MASK,
    RESERVED_SET, Rule, UPLINK_SET, sets, table,
};
use crate::plan::network::server_guard::{
    BRIDGE_SET, CLIENT_PORT_SET, GUARD_CHAIN, ROUTER_TYPE_SET, VLAN_SET,
};
use crate::plan::network::{FilterAction, LINK_GROUP};
use berth_host_facts::ledger::FilterRecord;
use berth_host_facts::links::{BridgeFilter, read_filter};
use berth_host_facts::nftables::{Attributes, NF_ACCEPT, NftablesReader, TABLE_NAME};

/// Applies the change, and compares the table of the kernel with the desired table.
///
/// # Errors
/// Returns an error if the kernel refuses the change or does not answer, or if the table differs from the desired one.
pub(super) fn apply_filter(action: &FilterAction) -> Result<(), FilterError> {
    let mut transactions = NftablesWriter::open().map_err(FilterError::OpenSocket)?;
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
    let now = NftablesReader::open().and_then(|mut nftables| read_filter(&mut nftables));
    let now = now.map_err(FilterError::NoAnswer)?;
    if now == should_be { Ok(()) } else { Err(FilterError::TableDiffers) }
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
/// `nft list` can show the keys: a hardware address (9), a port (13), a type of ICMPv6 (29), the name of a link (41),
/// and a name together with a number of 32 bits (19).
const fn key_format(kind: KeyKind) -> (u32, u32, u32) {
    match kind {
        KeyKind::HardwareAddress => (9, BIG_ENDIAN, 6),
        KeyKind::LinkName => (41, HOST_ENDIAN, 16),
        KeyKind::Port => (13, BIG_ENDIAN, 2),
        KeyKind::Icmpv6Type => (29, BIG_ENDIAN, 1),
        KeyKind::LinkAndVlan => ((41 << 6) | 19, HOST_ENDIAN, 20),
    }
}

/// Returns the requests that create a set with its elements. The number identifies the set within the transaction.
fn set_requests(number: u32, set: KeySet) -> Vec<NftablesRequest> {
    let KeySet { name, kind, keys } = set;
    let (key_type, order, length) = key_format(kind);
    let keys: Vec<Vec<u8>> = keys.into_iter().collect();
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
    let add_elements = keys.chunks(MAX_ELEMENTS).map(|keys| {
        let elements = keys.iter().fold(Attributes::default(), |all, key| {
            all.with_nested(NFTA_LIST_ELEM, Attributes::default().with_nested(1, data_value(key)))
        });
        let attributes =
            table_attribute().with_text(2, name).with_nested(3, elements).with_number(4, number);
        NftablesRequest::create(message_types::NEW_ELEMENTS, attributes)
    });
    std::iter::once(create_set).chain(add_elements).collect()
}

/// Returns a value as the netlink attribute `NFTA_DATA_VALUE`.
fn data_value(bytes: &[u8]) -> Attributes {
    Attributes::default().with_bytes(1, bytes)
}

type Expression = (&'static str, Attributes);

/// Number of the register that the expressions use (`NFT_REG_1`).
const REGISTER: u32 = 1;
/// Number of the next register, which holds the rest of a key of more than 16 bytes (`NFT_REG_2`).
const NEXT_REGISTER: u32 = 2;
/// Base of a payload expression that loads bytes of the Ethernet header (`NFT_PAYLOAD_LL_HEADER`).
const LINK_LAYER_HEADER: u32 = 0;
/// Base of a payload expression that loads bytes of the UDP or ICMPv6 header (`NFT_PAYLOAD_TRANSPORT_HEADER`).
const TRANSPORT_HEADER: u32 = 2;
/// Protocol number of UDP.
const UDP: u8 = 17;
/// Protocol number of ICMPv6.
const ICMPV6: u8 = 58;

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
    }
}

/// Returns an expression that loads bytes of a header.
fn payload_expression(base: u32, offset: u32, length: u32) -> Attributes {
    Attributes::default()
        .with_number(1, REGISTER)
        .with_number(2, base)
        .with_number(3, offset)
        .with_number(4, length)
}

fn bitwise_expression(mask: &[u8; 6]) -> Attributes {
    Attributes::default()
        .with_number(1, REGISTER)
        .with_number(2, REGISTER)
        .with_number(3, 6)
        .with_nested(4, data_value(mask))
        .with_nested(5, data_value(&[0; 6]))
}

fn lookup_expression(set: &str) -> Attributes {
    Attributes::default().with_text(1, set).with_number(2, REGISTER)
}

/// Meta key of the output link's name (`NFT_META_OIFNAME`).
const OUTPUT_NAME: u32 = 7;
/// Meta key of the output link's group (`NFT_META_OIFGROUP`).
const OUTPUT_GROUP: u32 = 22;
/// Meta key of the input link's name (`NFT_META_IIFNAME`).
const INPUT_NAME: u32 = 6;
/// Meta key of the transport protocol (`NFT_META_L4PROTO`).
const PROTOCOL: u32 = 16;
/// Meta key of the name of the input link's bridge (`NFT_META_BRI_IIFNAME`).
const INPUT_BRIDGE: u32 = 17;
/// Meta key of the input link's group (`NFT_META_IIFGROUP`).
const INPUT_GROUP: u32 = 21;
/// Meta key of the input port's PVID, the VLAN of its untagged frames (`NFT_META_BRI_IIFPVID`).
const INPUT_PVID: u32 = 28;

fn meta_expression(key: u32) -> Attributes {
    load_meta(key, REGISTER)
}

fn load_meta(key: u32, register: u32) -> Attributes {
    Attributes::default().with_number(1, register).with_number(2, key)
}

fn compare_expression(bytes: &[u8]) -> Attributes {
    Attributes::default()
        .with_number(1, REGISTER)
        .with_number(2, 0)
        .with_nested(3, data_value(bytes))
}

/// Verdict that jumps to another chain (`NFT_JUMP`).
const NFT_JUMP: u32 = (-3_i32).cast_unsigned();

/// Returns a verdict: `NFT_REG_VERDICT`, and `NFTA_DATA_VERDICT` with the chain of a jump.
fn verdict_attributes(code: u32, chain: Option<&str>) -> Attributes {
    let verdict = Attributes::default().with_number(1, code);
    let verdict = match chain {
        Some(chain) => verdict.with_text(2, chain),
        None => verdict,
    };
    Attributes::default()
        .with_number(1, 0)
        .with_nested(2, Attributes::default().with_nested(2, verdict))
}
