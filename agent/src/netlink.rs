//! Sends changes of links to the kernel, many at a time.
//!
//! Many changes are sent in one datagram, which costs one system call and one acknowledgement, that of the last change.
//! The kernel processes the changes in order, and reports each change that it refuses, even if that change did not
//! request an acknowledgement.

use std::io;

use berth_host_facts::netlink::{
    DATAGRAM_SIZE, NetlinkReader, extended_ack_text, open_socket, receive_datagram,
    serialize_request, split_messages,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;

/// A socket for changes, and another socket that reads links between the changes.
pub struct Netlink {
    /// Socket that reads the current state of links.
    pub reader: NetlinkReader,
    socket: Socket,
    sequence: u32,
    /// The last received datagram.
    datagram: Vec<u8>,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Error of the kernel for a change that it refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", .errno.desc(), .extended_ack.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
pub struct KernelRefusal {
    /// Error number of the kernel.
    pub errno: Errno,
    /// Text of the extended acknowledgement; `None` if the kernel sent no text.
    pub extended_ack: Option<String>,
}

/// Mode of a change: creation of an object, or change of an existing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeMode {
    /// Creates an object that must not exist.
    Create,
    /// Adds an entry to an existing object, or creates the object.
    Append,
    /// Changes or removes an object.
    Change,
}

/// Maximum number of changes in one datagram. In the kernel's smallest receive buffer (212,992 bytes) there is room for
/// 256 refusals, but not for 512.
const MAX_BATCH_SIZE: usize = 64;
/// Maximum size of the requests in one datagram, in bytes.
const MAX_BATCH_BYTES: usize = 64 << 10;

impl Netlink {
    /// Opens the sockets.
    ///
    /// # Errors
    /// If the kernel has no route netlink, which all supported kernels have.
    pub fn open() -> io::Result<Self> {
        let (reader, socket) = (NetlinkReader::open()?, open_socket(NETLINK_ROUTE)?);
        Ok(Self { reader, socket, sequence: 0, datagram: Vec::with_capacity(DATAGRAM_SIZE) })
    }

    /// Sends changes, and returns one result for each. The kernel applies the changes in this order, and continues
    /// after a change that it refuses.
    ///
    /// # Errors
    /// If the kernel does not answer for a minute; it is then unknown which changes were applied.
    pub fn send_changes(
        &mut self,
        changes: Vec<(ChangeMode, Message)>,
    ) -> io::Result<Vec<Result<(), KernelRefusal>>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        let mut batch = Batch::default();
        for (mode, message) in changes {
            let sequence = self.next_sequence();
            let bytes = serialize_request(message, mode.flags(), sequence);
            if batch.count == MAX_BATCH_SIZE || batch.bytes.len() + bytes.len() > MAX_BATCH_BYTES {
                outcomes.extend(self.send_batch(std::mem::take(&mut batch))?);
            }
            batch.add(&bytes, sequence);
        }
        if batch.count > 0 {
            outcomes.extend(self.send_batch(batch)?);
        }
        Ok(outcomes)
    }

    /// Sends one change, and returns its result.
    ///
    /// # Errors
    /// If the kernel does not answer; see [`Netlink::send_changes`].
    pub fn send_change(
        &mut self,
        mode: ChangeMode,
        message: Message,
    ) -> io::Result<Result<(), KernelRefusal>> {
        let outcome = self.send_changes(vec![(mode, message)])?.pop();
        Ok(outcome.unwrap_or(Ok(())))
    }

    fn send_batch(&mut self, mut batch: Batch) -> io::Result<Vec<Result<(), KernelRefusal>>> {
        batch.request_ack_of_last();
        self.socket.send(&batch.bytes, 0)?;
        let mut outcomes: Vec<Result<(), KernelRefusal>> = vec![Ok(()); batch.count];
        let mut last_answered = false;
        while !last_answered {
            receive_datagram(&self.socket, &mut self.datagram, "the kernel")?;
            for part in split_messages(&self.datagram) {
                let Ok(message) = NetlinkMessage::<Message>::deserialize(part) else { continue };
                let index =
                    message.header.sequence_number.wrapping_sub(batch.first_sequence) as usize;
                let NetlinkPayload::Error(error) = message.payload else { continue };
                last_answered |= index + 1 == batch.count;
                if let (Some(outcome), Some(code)) = (outcomes.get_mut(index), error.code) {
                    let (errno, extended_ack) =
                        (Errno::from_raw(-code.get()), extended_ack_text(&error.header));
                    *outcome = Err(KernelRefusal { errno, extended_ack });
                }
            }
        }
        Ok(outcomes)
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

impl ChangeMode {
    const fn flags(self) -> u16 {
        match self {
            Self::Create => NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL,
            Self::Append => NLM_F_REQUEST | NLM_F_CREATE | NLM_F_APPEND,
            Self::Change => NLM_F_REQUEST,
        }
    }
}

/// Requests for one datagram.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Sequence number of the first request; the other requests have the next numbers.
    first_sequence: u32,
    count: usize,
    /// Offset of the last request in `bytes`.
    last_offset: usize,
}

impl Batch {
    fn add(&mut self, bytes: &[u8], sequence: u32) {
        if self.count == 0 {
            self.first_sequence = sequence;
        }
        self.last_offset = self.bytes.len();
        self.count += 1;
        self.bytes.extend(bytes);
    }

    /// Requests an acknowledgement of the last request.
    fn request_ack_of_last(&mut self) {
        const FLAGS: usize = 6;
        if let Some(flags) =
            self.bytes.get_mut(self.last_offset + FLAGS..self.last_offset + FLAGS + 2)
        {
            let with_ack = u16::from_ne_bytes([flags[0], flags[1]]) | NLM_F_ACK;
            flags.copy_from_slice(&with_ack.to_ne_bytes());
        }
    }
}
