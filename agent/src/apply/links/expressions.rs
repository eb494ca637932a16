//! Expressions of nf_tables rules, as netlink attributes (`linux/netfilter/nf_tables.h`).

use berth_host_facts::nftables::Attributes;

/// Name and attributes of an expression.
pub(super) type Expression = (&'static str, Attributes);

/// Number of the register that the expressions use (`NFT_REG_1`).
pub(super) const REGISTER: u32 = 1;
/// Number of the next register, which holds the rest of a key of more than 16 bytes (`NFT_REG_2`).
pub(super) const NEXT_REGISTER: u32 = 2;
/// Base of a payload expression that loads bytes of the Ethernet header (`NFT_PAYLOAD_LL_HEADER`).
pub(super) const LINK_LAYER_HEADER: u32 = 0;
/// Base of a payload expression that loads bytes of the UDP or ICMPv6 header (`NFT_PAYLOAD_TRANSPORT_HEADER`).
pub(super) const TRANSPORT_HEADER: u32 = 2;
/// Protocol number of UDP.
pub(super) const UDP: u8 = 17;
/// Protocol number of ICMPv6.
pub(super) const ICMPV6: u8 = 58;

/// Returns an expression that loads bytes of a header.
pub(super) fn payload_expression(base: u32, offset: u32, length: u32) -> Attributes {
    load_payload(REGISTER, base, offset, length)
}

pub(super) fn load_payload(register: u32, base: u32, offset: u32, length: u32) -> Attributes {
    Attributes::default()
        .with_number(1, register)
        .with_number(2, base)
        .with_number(3, offset)
        .with_number(4, length)
}

/// Returns an expression that applies a mask to the register.
pub(super) fn bitwise_expression<const LENGTH: usize>(mask: &[u8; LENGTH]) -> Attributes {
    let length = u32::try_from(LENGTH).unwrap_or(u32::MAX);
    Attributes::default()
        .with_number(1, REGISTER)
        .with_number(2, REGISTER)
        .with_number(3, length)
        .with_nested(4, data_value(mask))
        .with_nested(5, data_value(&[0; LENGTH]))
}

/// Returns an expression that matches if the set contains the key in the register.
pub(super) fn lookup_expression(set: &str) -> Attributes {
    Attributes::default().with_text(1, set).with_number(2, REGISTER)
}

/// Flag of a lookup that matches if the set does not contain the key (`NFT_LOOKUP_F_INV`).
const INVERTED: u32 = 1;

/// Returns an expression that matches if the set does not contain the key in the register.
pub(super) fn inverted_lookup_expression(set: &str) -> Attributes {
    lookup_expression(set).with_number(5, INVERTED)
}

/// Meta key of the output link's name (`NFT_META_OIFNAME`).
pub(super) const OUTPUT_NAME: u32 = 7;
/// Meta key of the output link's group (`NFT_META_OIFGROUP`).
pub(super) const OUTPUT_GROUP: u32 = 22;
/// Meta key of the input link's name (`NFT_META_IIFNAME`).
pub(super) const INPUT_NAME: u32 = 6;
/// Meta key of the transport protocol (`NFT_META_L4PROTO`).
pub(super) const PROTOCOL: u32 = 16;
/// Meta key of the name of the input link's bridge (`NFT_META_BRI_IIFNAME`).
pub(super) const INPUT_BRIDGE: u32 = 17;
/// Meta key of the input link's group (`NFT_META_IIFGROUP`).
pub(super) const INPUT_GROUP: u32 = 21;
/// Meta key of the input port's PVID, the VLAN of its untagged frames (`NFT_META_BRI_IIFPVID`).
pub(super) const INPUT_PVID: u32 = 28;

pub(super) fn meta_expression(key: u32) -> Attributes {
    load_meta(key, REGISTER)
}

pub(super) fn load_meta(key: u32, register: u32) -> Attributes {
    Attributes::default().with_number(1, register).with_number(2, key)
}

/// Returns an expression that matches if the register has this value (`NFT_CMP_EQ`).
pub(super) fn compare_expression(bytes: &[u8]) -> Attributes {
    compare(0, bytes)
}

/// Returns an expression that matches if the register has another value (`NFT_CMP_NEQ`).
pub(super) fn unequal_expression(bytes: &[u8]) -> Attributes {
    compare(1, bytes)
}

fn compare(operation: u32, bytes: &[u8]) -> Attributes {
    Attributes::default()
        .with_number(1, REGISTER)
        .with_number(2, operation)
        .with_nested(3, data_value(bytes))
}

/// Returns a value as the netlink attribute `NFTA_DATA_VALUE`.
pub(super) fn data_value(bytes: &[u8]) -> Attributes {
    Attributes::default().with_bytes(1, bytes)
}

/// Verdict that jumps to another chain (`NFT_JUMP`).
pub(super) const NFT_JUMP: u32 = (-3_i32).cast_unsigned();

/// Returns a verdict: `NFT_REG_VERDICT`, and `NFTA_DATA_VERDICT` with the chain of a jump.
pub(super) fn verdict_attributes(code: u32, chain: Option<&str>) -> Attributes {
    let verdict = Attributes::default().with_number(1, code);
    let verdict = match chain {
        Some(chain) => verdict.with_text(2, chain),
        None => verdict,
    };
    Attributes::default()
        .with_number(1, 0)
        .with_nested(2, Attributes::default().with_nested(2, verdict))
}
