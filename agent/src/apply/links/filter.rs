//! Writes the nftables table that drops guests' control frames before they leave by an uplink. Each change is one
//! transaction, so that the kernel always has either the old rules or the new rules.

use nix::errno::Errno;

use super::error::FilterError;
use crate::netlink::Refused;
use crate::nftables::{NF_DROP, Request, Transactions, message};
use crate::plan::network::filter::{
    FORWARD, FORWARD_HOOK, RESERVED, RESERVED_CHAIN, RESERVED_MASK, Rule, UPLINKS, name_key,
    reserved_addresses, table,
};
use crate::plan::network::{FilterWork, LINK_GROUP};
use berth_host_facts::ledger::FilterRecord;
use berth_host_facts::links::{BridgeFilter, read_filter};
use berth_host_facts::nftables::{Attributes, Nftables, TABLE};

/// Applies the change, and compares the table of the kernel with the desired table.
///
/// # Errors
/// If the kernel refuses the change or does not answer, or if the table differs from the desired table.
pub(super) fn execute(work: &FilterWork) -> Result<(), FilterError> {
    let mut transactions = Transactions::open().map_err(FilterError::Open)?;
    let requests = match work {
        FilterWork::Replace(filter) => replace_requests(filter),
        FilterWork::Delete => vec![delete_request()],
    };
    match transactions.commit(&requests).map_err(FilterError::NoAnswer)? {
        // Another program deleted the table after the plan was made.
        Err(Refused { errno: Errno::ENOENT, .. }) if *work == FilterWork::Delete => {}
        Err(refused) => return Err(FilterError::Refused(refused)),
        Ok(()) => {}
    }
    let should_be = match work {
        FilterWork::Replace(filter) => BridgeFilter::Present(table(filter)),
        FilterWork::Delete => BridgeFilter::Absent,
    };
    let now = Nftables::open().and_then(|mut nftables| read_filter(&mut nftables));
    let now = now.map_err(FilterError::NoAnswer)?;
    if now == should_be { Ok(()) } else { Err(FilterError::Differs) }
}

fn table_attribute() -> Attributes {
    Attributes::default().text(1, TABLE)
}

fn delete_request() -> Request {
    Request::delete(message::DELETE_TABLE, table_attribute())
}

/// Returns the requests that replace the table. The first request creates the table if it does not exist, because the
/// second request, which deletes the table, would fail without it. The other requests create the table from scratch.
fn replace_requests(filter: &FilterRecord) -> Vec<Request> {
    let make = || {
        table_attribute()
            .number(2, 0)
            .comment(6, "created by berth-agent, which corrects any change")
    };
    let mut requests = vec![
        Request::create(message::NEW_TABLE, make()),
        delete_request(),
        Request::create(message::NEW_TABLE, make()),
    ];
    // The key types are the data types that `nft` defines, so that `nft list` can show the keys: a hardware address (9)
    // and the name of a link (41).
    let addresses = reserved_addresses().map(Vec::from);
    requests.extend(set_requests(1, RESERVED, (9, BIG_ENDIAN, 6), addresses.collect()));
    let names = filter.uplinks.iter().map(name_key);
    requests.extend(set_requests(2, UPLINKS, (41, HOST_ENDIAN, 16), names.collect()));
    let hook = Attributes::default()
        .number(1, FORWARD_HOOK.number)
        .number(2, FORWARD_HOOK.priority.cast_unsigned());
    let forward = table_attribute()
        .text(3, FORWARD)
        .nested(4, hook)
        .number(5, FORWARD_HOOK.policy)
        .text(7, "filter");
    requests.push(Request::create(message::NEW_CHAIN, table_attribute().text(3, RESERVED_CHAIN)));
    requests.push(Request::create(message::NEW_CHAIN, forward));
    for rule in Rule::ALL {
        let expressions =
            expressions(rule).into_iter().fold(Attributes::default(), |all, (name, data)| {
                all.nested(LIST_ITEM, Attributes::default().text(1, name).nested(2, data))
            });
        let attributes = table_attribute()
            .text(2, rule.chain())
            .nested(4, expressions)
            .comment(7, &rule.comment());
        requests.push(Request::append(message::NEW_RULE, attributes));
    }
    requests
}

/// Netlink attribute of an element in a list (`NFTA_LIST_ELEM`).
const LIST_ITEM: u16 = 1;
/// Byte order of the host (`enum byteorder` of `nft`).
const HOST_ENDIAN: u32 = 1;
const BIG_ENDIAN: u32 = 2;

/// Returns the requests that create a set with its elements. The number identifies the set within the transaction.
fn set_requests(
    number: u32,
    name: &str,
    (key_type, order, length): (u32, u32, u32),
    keys: Vec<Vec<u8>>,
) -> Vec<Request> {
    // `NFTNL_UDATA_SET_KEYBYTEORDER`, without which `nft` lists numbers in the wrong byte order.
    let order = [&[0, 4], order.to_ne_bytes().as_slice()].concat();
    let attributes = table_attribute()
        .text(2, name)
        .number(3, 0)
        .number(4, key_type)
        .number(5, length)
        .number(10, number)
        .bytes(13, &order);
    let create_set = Request::create(message::NEW_SET, attributes);
    if keys.is_empty() {
        return vec![create_set];
    }
    let elements = keys.iter().fold(Attributes::default(), |all, key| {
        all.nested(LIST_ITEM, Attributes::default().nested(1, value(key)))
    });
    let attributes = table_attribute().text(2, name).nested(3, elements).number(4, number);
    vec![create_set, Request::create(message::NEW_ELEMENTS, attributes)]
}

/// Returns a value as the netlink attribute `NFTA_DATA_VALUE`.
fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().bytes(1, bytes)
}

type Expression = (&'static str, Attributes);

/// Number of the register that the expressions use (`NFT_REG_1`).
const REGISTER: u32 = 1;

fn expressions(rule: Rule) -> Vec<Expression> {
    match rule {
        Rule::Reserved => vec![
            ("payload", payload_expression()),
            ("bitwise", bitwise_expression(&RESERVED_MASK)),
            ("lookup", lookup_expression(RESERVED)),
            ("immediate", verdict_attributes(JUMP, Some(RESERVED_CHAIN))),
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
            ("lookup", lookup_expression(UPLINKS)),
            ("counter", Attributes::default()),
            ("immediate", verdict_attributes(NF_DROP, None)),
        ],
    }
}

/// Returns an expression that loads the destination address: six bytes from the start of the link layer header.
fn payload_expression() -> Attributes {
    Attributes::default().number(1, REGISTER).number(2, 0).number(3, 0).number(4, 6)
}

fn bitwise_expression(mask: &[u8; 6]) -> Attributes {
    Attributes::default()
        .number(1, REGISTER)
        .number(2, REGISTER)
        .number(3, 6)
        .nested(4, value(mask))
        .nested(5, value(&[0; 6]))
}

fn lookup_expression(set: &str) -> Attributes {
    Attributes::default().text(1, set).number(2, REGISTER)
}

/// Meta key of the output link's name (`NFT_META_OIFNAME`).
const OUTPUT_NAME: u32 = 7;
/// Meta key of the output link's group (`NFT_META_OIFGROUP`).
const OUTPUT_GROUP: u32 = 22;

fn meta_expression(key: u32) -> Attributes {
    Attributes::default().number(1, REGISTER).number(2, key)
}

fn compare_expression(bytes: &[u8]) -> Attributes {
    Attributes::default().number(1, REGISTER).number(2, 0).nested(3, value(bytes))
}

/// Verdict that jumps to another chain (`NFT_JUMP`).
const JUMP: u32 = (-3_i32).cast_unsigned();

/// Returns a verdict: `NFT_REG_VERDICT`, and `NFTA_DATA_VERDICT` with the chain of a jump.
fn verdict_attributes(code: u32, chain: Option<&str>) -> Attributes {
    let verdict = Attributes::default().number(1, code);
    let verdict = match chain {
        Some(chain) => verdict.text(2, chain),
        None => verdict,
    };
    Attributes::default().number(1, 0).nested(2, Attributes::default().nested(2, verdict))
}
