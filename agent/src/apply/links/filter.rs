//! Writes the nftables table that drops guests' control frames before they leave by an uplink. Each change is one
//! transaction, so that the kernel always has either the old rules or the new rules.

use nix::errno::Errno;

use super::error::FilterError;
use crate::netlink::KernelRefusal;
use crate::nftables::{NF_DROP, NftablesRequest, NftablesWriter, message};
use crate::plan::network::filter::{
    FORWARD_CHAIN, FORWARD_HOOK, RESERVED_ADDRESS_CHAIN, RESERVED_MASK, RESERVED_SET, Rule,
    UPLINK_SET, name_key, reserved_addresses, table,
};
use crate::plan::network::{FilterWork, LINK_GROUP};
use berth_host_facts::ledger::FilterRecord;
use berth_host_facts::links::{BridgeFilter, read_filter};
use berth_host_facts::nftables::{Attributes, NftablesReader, TABLE_NAME};

/// Applies the change, and compares the table of the kernel with the desired table.
///
/// # Errors
/// If the kernel refuses the change or does not answer, or if the table differs from the desired table.
pub(super) fn apply_filter(work: &FilterWork) -> Result<(), FilterError> {
    let mut transactions = NftablesWriter::open().map_err(FilterError::OpenSocket)?;
    let requests = match work {
        FilterWork::Replace(filter) => replace_requests(filter),
        FilterWork::Delete => vec![delete_request()],
    };
    match transactions.commit_transaction(&requests).map_err(FilterError::NoAnswer)? {
        // Another program deleted the table after the plan was made.
        Err(KernelRefusal { errno: Errno::ENOENT, .. }) if *work == FilterWork::Delete => {}
        Err(refused) => return Err(FilterError::Refused(refused)),
        Ok(()) => {}
    }
    let should_be = match work {
        FilterWork::Replace(filter) => BridgeFilter::Present(table(filter)),
        FilterWork::Delete => BridgeFilter::Absent,
    };
    let now = NftablesReader::open().and_then(|mut nftables| read_filter(&mut nftables));
    let now = now.map_err(FilterError::NoAnswer)?;
    if now == should_be { Ok(()) } else { Err(FilterError::TableDiffers) }
}

fn table_attribute() -> Attributes {
    Attributes::default().with_text(1, TABLE_NAME)
}

fn delete_request() -> NftablesRequest {
    NftablesRequest::delete(message::DELETE_TABLE, table_attribute())
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
        NftablesRequest::create(message::NEW_TABLE, make()),
        delete_request(),
        NftablesRequest::create(message::NEW_TABLE, make()),
    ];
    // The key types are the data types that `nft` defines, so that `nft list` can show the keys: a hardware address (9)
    // and the name of a link (41).
    let addresses = reserved_addresses().map(Vec::from);
    requests.extend(set_requests(1, RESERVED_SET, (9, BIG_ENDIAN, 6), addresses.collect()));
    let names = filter.uplinks.iter().map(name_key);
    requests.extend(set_requests(2, UPLINK_SET, (41, HOST_ENDIAN, 16), names.collect()));
    let hook = Attributes::default()
        .with_number(1, FORWARD_HOOK.number)
        .with_number(2, FORWARD_HOOK.priority.cast_unsigned());
    let forward = table_attribute()
        .with_text(3, FORWARD_CHAIN)
        .with_nested(4, hook)
        .with_number(5, FORWARD_HOOK.policy)
        .with_text(7, "filter");
    requests.push(NftablesRequest::create(
        message::NEW_CHAIN,
        table_attribute().with_text(3, RESERVED_ADDRESS_CHAIN),
    ));
    requests.push(NftablesRequest::create(message::NEW_CHAIN, forward));
    for rule in Rule::ALL {
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
        requests.push(NftablesRequest::append(message::NEW_RULE, attributes));
    }
    requests
}

/// Netlink attribute of an element in a list (`NFTA_LIST_ELEM`).
const NFTA_LIST_ELEM: u16 = 1;
/// Byte order of the host (`enum byteorder` of `nft`).
const HOST_ENDIAN: u32 = 1;
const BIG_ENDIAN: u32 = 2;

/// Returns the requests that create a set with its elements. The number identifies the set within the transaction.
fn set_requests(
    number: u32,
    name: &str,
    (key_type, order, length): (u32, u32, u32),
    keys: Vec<Vec<u8>>,
) -> Vec<NftablesRequest> {
    // `NFTNL_UDATA_SET_KEYBYTEORDER`, without which `nft` lists numbers in the wrong byte order.
    let order = [&[0, 4], order.to_ne_bytes().as_slice()].concat();
    let attributes = table_attribute()
        .with_text(2, name)
        .with_number(3, 0)
        .with_number(4, key_type)
        .with_number(5, length)
        .with_number(10, number)
        .with_bytes(13, &order);
    let create_set = NftablesRequest::create(message::NEW_SET, attributes);
    if keys.is_empty() {
        return vec![create_set];
    }
    let elements = keys.iter().fold(Attributes::default(), |all, key| {
        all.with_nested(NFTA_LIST_ELEM, Attributes::default().with_nested(1, data_value(key)))
    });
    let attributes =
        table_attribute().with_text(2, name).with_nested(3, elements).with_number(4, number);
    vec![create_set, NftablesRequest::create(message::NEW_ELEMENTS, attributes)]
}

/// Returns a value as the netlink attribute `NFTA_DATA_VALUE`.
fn data_value(bytes: &[u8]) -> Attributes {
    Attributes::default().with_bytes(1, bytes)
}

type Expression = (&'static str, Attributes);

/// Number of the register that the expressions use (`NFT_REG_1`).
const REGISTER: u32 = 1;

fn expressions(rule: Rule) -> Vec<Expression> {
    match rule {
        Rule::JumpForReserved => vec![
            ("payload", payload_expression()),
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
    }
}

/// Returns an expression that loads the destination address: six bytes from the start of the link layer header.
fn payload_expression() -> Attributes {
    Attributes::default()
        .with_number(1, REGISTER)
        .with_number(2, 0)
        .with_number(3, 0)
        .with_number(4, 6)
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

fn meta_expression(key: u32) -> Attributes {
    Attributes::default().with_number(1, REGISTER).with_number(2, key)
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
