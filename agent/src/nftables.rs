//! Changes the nftables table of the bridge family through netlink. Each change is one transaction, which the kernel
//! applies completely or not at all.

use std::io;

use berth_host_facts::netlink::{
    DATAGRAM_SIZE, extended_ack_text, open_socket, receive_datagram, split_messages,
};
use berth_host_facts::nftables::{
    Attributes, HEADERS_LENGTH, NFNL_SUBSYS_NFTABLES, answer_errno, bridge_nfgenmsg,
    encode_message, message_sequence, message_type,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};

use crate::netlink::KernelRefusal;

/// Message types that change objects (`enum nf_tables_msg_types`).
pub(crate) mod message_types {
    pub(crate) const NEW_TABLE: u8 = 0;
    pub(crate) const DELETE_TABLE: u8 = 2;
    pub(crate) const NEW_CHAIN: u8 = 3;
    pub(crate) const NEW_RULE: u8 = 6;
    pub(crate) const NEW_SET: u8 = 9;
    pub(crate) const NEW_ELEMENTS: u8 = 12;
    pub(crate) const DELETE_ELEMENTS: u8 = 14;
}

/// Verdict that drops a frame (`NF_DROP`).
pub(crate) const NF_DROP: u32 = 0;
/// Size of the send buffer. A batch is one datagram, and contains all leases of the VMs on the host.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Type of the message that begins a batch (`NFNL_MSG_BATCH_BEGIN`).
const BATCH_BEGIN: u16 = 0x10;
/// Type of the message that ends a batch (`NFNL_MSG_BATCH_END`).
const BATCH_END: u16 = 0x11;

/// A netlink socket for transactions of nf_tables.
pub(crate) struct NftablesWriter {
    socket: Socket,
    sequence: u32,
    datagram: Vec<u8>,
}

impl NftablesWriter {
    /// Opens a socket. If necessary, the kernel loads its module `nfnetlink`.
    ///
    /// # Errors
    /// If the kernel has no netfilter netlink.
    pub(crate) fn open() -> io::Result<Self> {
        let (socket, datagram) =
            (open_socket(NETLINK_NETFILTER)?, Vec::with_capacity(DATAGRAM_SIZE));
        if setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES).is_err() {
            setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER_BYTES)?;
        }
        Ok(Self { socket, sequence: 0, datagram })
    }

    /// Applies the changes as one transaction.
    ///
    /// # Errors
    /// If the kernel does not answer for a minute; it is then unknown if the changes were applied.
    pub(crate) fn commit_transaction(
        &mut self,
        changes: &[NftablesRequest],
    ) -> io::Result<Result<(), KernelRefusal>> {
        let first_sequence = self.next_sequence();
        let mut batch =
            encode_message(BATCH_BEGIN, NLM_F_REQUEST, first_sequence, batch_header(), &[]);
        for (index, change) in changes.iter().enumerate() {
            let is_last = index + 1 == changes.len();
            let flags = change.flags | NLM_F_REQUEST | if is_last { NLM_F_ACK } else { 0 };
            let (kind, sequence) = (message_type(change.kind), self.next_sequence());
            batch.extend(encode_message(
                kind,
                flags,
                sequence,
                bridge_nfgenmsg(),
                change.attributes.as_bytes(),
            ));
        }
        let last_sequence = self.sequence;
        let end_sequence = self.next_sequence();
        batch.extend(encode_message(BATCH_END, NLM_F_REQUEST, end_sequence, batch_header(), &[]));
        self.socket.send(&batch, 0)?;
        let mut result = Ok(());
        loop {
            receive_datagram(&self.socket, &mut self.datagram, "nf_tables")?;
            for part in split_messages(&self.datagram) {
                let index = message_sequence(part).wrapping_sub(first_sequence);
                let (Some(errno), true) =
                    (answer_errno(part), index <= last_sequence.wrapping_sub(first_sequence))
                else {
                    continue;
                };
                if errno != 0 && result.is_ok() {
                    let errno = Errno::from_raw(errno);
                    result = Err(KernelRefusal {
                        errno,
                        extended_ack: part.get(HEADERS_LENGTH..).and_then(extended_ack_text),
                    });
                }
                // If the kernel refuses the whole batch, it reports the error for the first message of the batch.
                if index == 0 || message_sequence(part) == last_sequence {
                    return Ok(result);
                }
            }
        }
    }

    const fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

/// One change of a transaction.
#[derive(Debug)]
pub struct NftablesRequest {
    kind: u8,
    flags: u16,
    attributes: Attributes,
}

impl NftablesRequest {
    /// Creates an object, which may exist already.
    pub const fn create(kind: u8, attributes: Attributes) -> Self {
        Self { kind, flags: NLM_F_CREATE, attributes }
    }

    /// Creates an object after the existing objects of its kind, such as a rule at the end of a chain.
    pub const fn append(kind: u8, attributes: Attributes) -> Self {
        Self { kind, flags: NLM_F_CREATE | NLM_F_APPEND, attributes }
    }

    /// Deletes an object.
    pub const fn delete(kind: u8, attributes: Attributes) -> Self {
        Self { kind, flags: 0, attributes }
    }
}

/// Returns the header (`nfgenmsg`) of a message that begins or ends a batch, with the number of the subsystem.
const fn batch_header() -> [u8; 4] {
    [0, 0, 0, NFNL_SUBSYS_NFTABLES]
}
