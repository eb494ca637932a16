//! Reads an nf_tables table of the bridge family with netlink (`linux/netfilter/nf_tables.h`).
//!
//! Existing crates for nf_tables need libnftnl or the program `nft`, or have a licence that Berth cannot use. This
//! module implements only the few messages that Berth needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use crate::netlink::{
    DATAGRAM_SIZE, open_socket, read_message_type, receive_datagram, split_messages,
};

/// A table of the bridge family, with the properties by which Berth detects drift. Rules are compared by their
/// comments: each rule that Berth creates has a comment that describes the rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Flags of the table (`NFT_TABLE_F_*`). The kernel does not evaluate a table with the flag `NFT_TABLE_F_DORMANT`.
    pub flags: u32,
    /// Chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// Keys of the elements of each set, by the name of the set.
    pub sets: BTreeMap<String, BTreeSet<Vec<u8>>>,
}

/// A chain of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Hook at which the kernel evaluates the chain; `None` if only rules of other chains jump to this chain.
    pub hook: Option<Hook>,
    /// Comments of the chain's rules, in the order of evaluation. A rule without a comment has an empty string.
    pub rules: Vec<String>,
}

/// Hook at which the kernel evaluates a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// Number of the netfilter hook (`NF_BR_*`).
    pub number: u32,
    /// Priority of the chain. The kernel evaluates the chains of a hook in ascending order of priority.
    pub priority: i32,
    /// Verdict for frames that match no rule: `NF_DROP` or `NF_ACCEPT`.
    pub policy: u32,
}

/// Name of Berth's table. Berth never changes a table with another name.
pub const TABLE_NAME: &str = "berth";
/// Netfilter verdict that accepts a frame.
pub const NF_ACCEPT: u32 = 1;
/// Netlink multicast group that reports changes of nf_tables tables (`enum nfnetlink_groups`).
pub const NFNLGRP_NFTABLES: u32 = 7;

/// A netlink socket for requests to nf_tables.
pub struct NftablesReader {
    socket: Socket,
    sequence: u32,
    datagram: Vec<u8>,
}

impl std::fmt::Debug for NftablesReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nftables").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Types of the messages that request objects (`enum nf_tables_msg_types`).
mod message_types {
    pub(super) const GET_TABLE: u8 = 1;
    pub(super) const GET_CHAIN: u8 = 4;
    pub(super) const GET_RULE: u8 = 7;
    pub(super) const GET_SET: u8 = 10;
    pub(super) const GET_ELEMENTS: u8 = 13;
}

/// Subsystem of nf_tables in netlink messages (`NFNL_SUBSYS_NFTABLES`).
pub const NFNL_SUBSYS_NFTABLES: u8 = 10;
/// Address family of nf_tables tables for bridges (`NFPROTO_BRIDGE`).
const FAMILY_BRIDGE: u8 = 7;
/// Length of the header `nlmsghdr` in bytes.
const NLMSGHDR_LENGTH: usize = 16;
/// Length of the headers `nlmsghdr` and `nfgenmsg` together, in bytes.
pub const HEADERS_LENGTH: usize = 20;
/// Message type of an acknowledgement or error, which ends an answer (`nlmsghdr.nlmsg_type`).
const NLMSG_ERROR: u16 = 2;
/// Message type that ends a dump (`nlmsghdr.nlmsg_type`).
const NLMSG_DONE: u16 = 3;

/// Type of the netlink attribute with the table's name, which is the same in all messages about tables, chains, rules
/// and sets.
const ATTRIBUTE_TABLE_NAME: u16 = 1;
/// Maximum number of attempts to dump objects. A concurrent change interrupts a dump, so that it must be repeated.
const MAX_DUMP_ATTEMPTS: usize = 8;
impl NftablesReader {
    /// Opens a socket, for which the kernel loads its module `nfnetlink`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not support the netfilter netlink protocol.
    pub fn open() -> io::Result<Self> {
        let (socket, datagram) =
            (open_socket(NETLINK_NETFILTER)?, Vec::with_capacity(DATAGRAM_SIZE));
        Ok(Self { socket, sequence: 0, datagram })
    }

    /// Reads a table of the bridge family; returns `None` if the table does not exist.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request (`CAP_NET_ADMIN` is required), if it does not answer for a
    /// minute, or if concurrent changes interrupt each attempt.
    pub fn read(&mut self, name: &str) -> io::Result<Option<Table>> {
        let table_attributes = Attributes::default().with_text(ATTRIBUTE_TABLE_NAME, name);
        let mut table = Table::default();
        let answer = self.request(message_types::GET_TABLE, 0, &table_attributes, &mut |payload| {
            table.flags = payload.number(2).unwrap_or_default();
        });
        match answer {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => return Ok(None),
            answer => drop(answer?),
        }
        let chains = self.dump(message_types::GET_CHAIN, &table_attributes, |chain| {
            let hook = chain.nested(4).map(|hook| Hook {
                number: hook.number(1).unwrap_or_default(),
                priority: hook.number(2).unwrap_or_default().cast_signed(),
                policy: chain.number(5).unwrap_or(NF_ACCEPT),
            });
            (chain.text(ATTRIBUTE_TABLE_NAME)? == name).then_some((chain.text(3)?, hook))
        })?;
        for (name, hook) in chains {
            table.chains.insert(name, Chain { hook, rules: Vec::new() });
        }
        let rules = self.dump(message_types::GET_RULE, &table_attributes, |rule| {
            let comment = rule.get(7).and_then(parse_comment).unwrap_or_default();
            (rule.text(ATTRIBUTE_TABLE_NAME)? == name).then_some((rule.text(2)?, comment))
        })?;
        for (chain, comment) in rules {
            table.chains.entry(chain).or_default().rules.push(comment);
        }
        let sets = self.dump(message_types::GET_SET, &table_attributes, |set| {
            (set.text(ATTRIBUTE_TABLE_NAME)? == name).then(|| set.text(2)).flatten()
        })?;
        for set in sets {
            let set_attributes =
                Attributes::default().with_text(ATTRIBUTE_TABLE_NAME, name).with_text(2, &set);
            let keys = self.dump(message_types::GET_ELEMENTS, &set_attributes, |list| {
                Some(list.element_keys())
            })?;
            table.sets.insert(set, keys.into_iter().flatten().collect());
        }
        Ok(Some(table))
    }

    fn dump<T>(
        &mut self,
        kind: u8,
        attributes: &Attributes,
        read: impl Fn(&ReceivedAttributes) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..MAX_DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let complete = self.request(kind, NLM_F_DUMP, attributes, &mut |payload| {
                found.extend(read(payload))
            })?;
            if complete {
                return Ok(found);
            }
        }
        let message = "the nf_tables rules changed during each dump";
        Err(io::Error::new(io::ErrorKind::Interrupted, message))
    }

    /// Sends a request and calls `read` with each message of the answer. Returns false if a concurrent change
    /// interrupted the answer, so that it may be incomplete.
    fn request(
        &mut self,
        kind: u8,
        flags: u16,
        attributes: &Attributes,
        read: &mut dyn FnMut(&ReceivedAttributes),
    ) -> io::Result<bool> {
        let sequence_number = self.next_sequence();
        // A dump ends with NLMSG_DONE. The end of any other answer can be detected only if an acknowledgement is
        // requested.
        let ack = if flags == 0 { NLM_F_ACK } else { 0 };
        let flags = NLM_F_REQUEST | flags | ack;
        let request = encode_message(
            message_type(kind),
            flags,
            sequence_number,
            bridge_nfgenmsg(),
            &attributes.0,
        );
        self.socket.send(&request, 0)?;
        let mut complete = true;
        loop {
            receive_datagram(&self.socket, &mut self.datagram, "nf_tables")?;
            for part in split_messages(&self.datagram)
                .filter(|part| message_sequence(part) == sequence_number)
            {
                complete &= message_flags(part) & NLM_F_DUMP_INTR == 0;
                match answer_errno(part) {
                    Some(0) => return Ok(complete),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None => {
                        read(&ReceivedAttributes(part.get(HEADERS_LENGTH..).unwrap_or_default()))
                    }
                }
            }
        }
    }

    const fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

/// Netlink attributes of a message to send, in the kernel's format.
#[derive(Debug, Clone, Default)]
pub struct Attributes(Vec<u8>);

const NLA_F_NESTED: u16 = 0x8000;

impl Attributes {
    /// Returns the bytes of the attributes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds an attribute with these bytes as its value.
    #[must_use]
    pub fn with_bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a string attribute, which is terminated by NUL.
    #[must_use]
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with_bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds a 32-bit integer attribute. All integers of nf_tables are big-endian.
    #[must_use]
    pub fn with_number(self, kind: u16, number: u32) -> Self {
        self.with_bytes(kind, &number.to_be_bytes())
    }

    /// Adds an attribute that contains other attributes.
    #[must_use]
    pub fn with_nested(self, kind: u16, inner: Self) -> Self {
        self.with_bytes(kind | NLA_F_NESTED, &inner.0)
    }

    /// Adds an attribute with a comment, in the format of user data that `nft` writes: a type, a length, and the bytes.
    #[must_use]
    pub fn with_comment(self, kind: u16, comment: &str) -> Self {
        let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
        let item = [&[UDATA_COMMENT, length], comment.as_bytes(), &[0]].concat();
        self.with_bytes(kind, &item)
    }
}

/// Type of a comment in the user data of a table (`NFTNL_UDATA_TABLE_COMMENT`). Comments of chains and rules have the
/// same type.
const UDATA_COMMENT: u8 = 0;

fn parse_comment(data: &[u8]) -> Option<String> {
    let mut rest = data;
    while let [kind, length, tail @ ..] = rest {
        let value = tail.get(..usize::from(*length))?;
        if *kind == UDATA_COMMENT {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        rest = tail.get(usize::from(*length)..)?;
    }
    None
}

/// Netlink attributes of a received message.
struct ReceivedAttributes<'a>(&'a [u8]);

impl<'a> ReceivedAttributes<'a> {
    /// Returns the type and the value of each attribute. An attribute begins with its length and its type, and is
    /// padded to a multiple of four bytes.
    fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
            let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
            let value = rest.get(4..length)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind & !NLA_F_NESTED, value))
        })
    }

    fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.attributes().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    fn nested(&self, kind: u16) -> Option<Self> {
        self.get(kind).map(ReceivedAttributes)
    }

    fn text(&self, kind: u16) -> Option<String> {
        let text = self.get(kind)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn number(&self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// Returns the keys of the elements in a `NFT_MSG_NEWSETELEM` message.
    fn element_keys(&self) -> Vec<Vec<u8>> {
        let elements = self.nested(3).map(|list| list.attributes());
        let key = |(_, element)| Some(ReceivedAttributes(element).nested(1)?.get(1)?.to_vec());
        elements.into_iter().flatten().filter_map(key).collect()
    }
}

/// Returns true if an event is about the table `table` of the bridge family.
#[must_use]
pub fn is_about_table(event: &[u8], table: &str) -> bool {
    let is_nf_tables =
        read_message_type(event).is_some_and(|kind| kind.to_be_bytes()[0] == NFNL_SUBSYS_NFTABLES);
    let is_bridge_family = event.get(NLMSGHDR_LENGTH) == Some(&FAMILY_BRIDGE);
    let payload = ReceivedAttributes(event.get(HEADERS_LENGTH..).unwrap_or_default());
    is_nf_tables
        && is_bridge_family
        && payload.text(ATTRIBUTE_TABLE_NAME).is_some_and(|name| name == table)
}

/// Returns the netlink message type of an nf_tables message of this kind (`enum nf_tables_msg_types`).
#[must_use]
pub const fn message_type(kind: u8) -> u16 {
    u16::from_be_bytes([NFNL_SUBSYS_NFTABLES, kind])
}

/// Returns the header `nfgenmsg` of messages about the bridge family. It contains the family and the version.
#[must_use]
pub const fn bridge_nfgenmsg() -> [u8; 4] {
    [FAMILY_BRIDGE, 0, 0, 0]
}

/// Returns the bytes of a message with these headers and attributes.
#[must_use]
pub fn encode_message(
    kind: u16,
    flags: u16,
    sequence: u32,
    nfgenmsg: [u8; 4],
    attributes: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(HEADERS_LENGTH + attributes.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADERS_LENGTH + attributes.len());
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(nfgenmsg);
    message.extend(attributes);
    message
}

fn message_flags(message: &[u8]) -> u16 {
    let bytes = message.get(6..8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u16::from_ne_bytes).unwrap_or_default()
}

/// Returns the sequence number of a message.
#[must_use]
pub fn message_sequence(message: &[u8]) -> u32 {
    let bytes = message.get(8..12).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).unwrap_or_default()
}

/// Returns the error number of a message that ends an answer, where 0 means success; `None` for other messages.
#[must_use]
pub fn answer_errno(message: &[u8]) -> Option<i32> {
    if !matches!(read_message_type(message)?, NLMSG_ERROR | NLMSG_DONE) {
        return None;
    }
    let code = message.get(NLMSGHDR_LENGTH..HEADERS_LENGTH).and_then(|bytes| bytes.try_into().ok());
    Some(code.map_or(0, |code| -i32::from_ne_bytes(code)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_round_trip() {
        let written = Attributes::default()
            .with_text(1, "berth")
            .with_number(2, 7)
            .with_nested(
                4,
                Attributes::default().with_number(1, 2).with_number(2, (-200_i32).cast_unsigned()),
            )
            .with_comment(7, "drop");
        let read = ReceivedAttributes(&written.0);
        assert_eq!(read.text(1).as_deref(), Some("berth"));
        assert_eq!(read.number(2), Some(7));
        let hook = read.nested(4).unwrap();
        assert_eq!(hook.number(2).unwrap().cast_signed(), -200);
        assert_eq!(read.get(7).and_then(parse_comment).as_deref(), Some("drop"));
        assert_eq!(read.get(9), None);
    }

    #[test]
    fn events_of_other_tables_are_ignored() {
        const DELETE_TABLE: u8 = 2;
        let named = |name| Attributes::default().with_text(ATTRIBUTE_TABLE_NAME, name);
        let event = |kind, general, name| encode_message(kind, 0, 0, general, &named(name).0);
        let deleted = message_type(DELETE_TABLE);
        assert!(is_about_table(&event(deleted, bridge_nfgenmsg(), "berth"), "berth"));
        assert!(!is_about_table(&event(deleted, bridge_nfgenmsg(), "nat"), "berth"));
        assert!(
            !is_about_table(&event(deleted, [2, 0, 0, 0], "berth"), "berth"),
            "the table is of the IPv4 family"
        );
        assert!(
            !is_about_table(&event(2, bridge_nfgenmsg(), "berth"), "berth"),
            "the event is from another subsystem"
        );
    }

    proptest! {
        #[test]
        fn payload_parsing_never_panics_or_loops(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let payload = ReceivedAttributes(&bytes);
            prop_assert!(payload.attributes().count() <= bytes.len() / 4 && payload.element_keys().len() <= bytes.len());
            prop_assert!(parse_comment(&bytes).is_none_or(|text| text.len() <= 3 * bytes.len()));
            prop_assert!(!is_about_table(&bytes, "berth") || bytes.len() > HEADERS_LENGTH);
        }
    }
}
