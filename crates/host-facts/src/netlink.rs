//! Reads links, addresses, routes and neighbours with route netlink, in complete dumps.
//!
//! The socket is blocking, and separate from the socket that receives the kernel's events, because too many events
//! would overrun the receive buffer and lose answers. This module refuses requests that change something; the agent
//! sends such requests through its own socket.

use std::io;
use std::time::Duration;

use berth_api::LinkName;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// A netlink socket that only sends requests to read objects.
pub struct NetlinkReader {
    socket: Socket,
    sequence: u32,
    /// The datagram that was received last.
    datagram: Vec<u8>,
}

impl std::fmt::Debug for NetlinkReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetlinkReader").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Maximum number of links that are requested in one datagram; the kernel allocates about 4 KiB for each answer.
const MAX_NAMES_PER_REQUEST: usize = 16;
/// Time in seconds after which a missing answer is an error. The kernel usually answers immediately, but may have to
/// wait for its lock: an uplink with thousands of VLAN links takes seconds to go down.
const TIMEOUT_SECONDS: i64 = 60;
/// Delays in milliseconds before the attempts to repeat a dump. A dump is repeated if something changed while the
/// kernel answered (`NLM_F_DUMP_INTR`), because an object may then be missing in the answer.
const RETRY_DELAYS_MS: [u64; 7] = [0, 5, 10, 20, 50, 100, 200];
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// Size of the receive buffer for one datagram, in bytes. It is larger than any datagram of the kernel: the kernel
/// sends dumps in datagrams of 32 KiB, and the virtual functions of a card are in one attribute of at most 64 KiB.
pub const DATAGRAM_SIZE: usize = 256 << 10;

impl NetlinkReader {
    /// Opens a socket for route netlink.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks route netlink. All supported kernels have it.
    pub fn open() -> io::Result<Self> {
        let (socket, datagram) = (open_socket(NETLINK_ROUTE)?, Vec::with_capacity(DATAGRAM_SIZE));
        Ok(Self { socket, sequence: 0, datagram })
    }

    /// Requests a dump and returns the values that `read` extracts from the messages. Storing the complete messages
    /// would need ten times as much memory.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request, if it does not answer for a minute, or if something changed
    /// during each attempt.
    pub fn dump<T>(
        &mut self,
        request: &Message,
        mut read: impl FnMut(&Message) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        refuse_changes(request)?;
        retry_interrupted_dump(|| self.dump_once(request.clone(), &mut read))
    }

    /// Requests one object; returns `None` if the object does not exist.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the request, or does not answer for a minute.
    pub fn get_object(&mut self, request: Message) -> io::Result<Option<Message>> {
        refuse_changes(&request)?;
        let sequence = self.next_sequence();
        self.socket.send(&serialize_request(request, NLM_F_REQUEST, sequence), 0)?;
        loop {
            receive_datagram(&self.socket, &mut self.datagram, "the kernel")?;
            for part in split_messages(&self.datagram) {
                if read_u32(part, SEQUENCE_OFFSET) != Some(sequence) {
                    continue;
                }
                let message = NetlinkMessage::<Message>::deserialize(part);
                let message = message.map_err(|error| {
                    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
                })?;
                return match message.payload {
                    NetlinkPayload::InnerMessage(inner) => Ok(Some(inner)),
                    NetlinkPayload::Error(error) => match error.to_io() {
                        absent if absent.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
                        error => Err(error),
                    },
                    _ => continue,
                };
            }
        }
    }

    fn dump_once<T>(
        &mut self,
        request: Message,
        read: &mut impl FnMut(&Message) -> Option<T>,
    ) -> io::Result<(Vec<T>, bool)> {
        let sequence = self.next_sequence();
        let bytes = serialize_request(request, NLM_F_REQUEST | NLM_F_DUMP, sequence);
        self.socket.send(&bytes, 0)?;
        let (mut answers, mut complete) = (Vec::new(), true);
        loop {
            receive_datagram(&self.socket, &mut self.datagram, "the kernel")?;
            for part in split_messages(&self.datagram) {
                // netlink-packet-route cannot parse messages about some kinds of links. Such links are skipped, because
                // Berth does not use these kinds.
                let Ok(message) = NetlinkMessage::<Message>::deserialize(part) else { continue };
                if message.header.sequence_number != sequence {
                    continue;
                }
                complete &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answers.extend(read(&inner)),
                    NetlinkPayload::Done(done) if done.code != 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Done(_) => return Ok((answers, complete)),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// Reads the interface indexes of links, in the order of their names; `None` for a link that does not exist.
    ///
    /// # Errors
    /// Returns an error if the kernel does not answer for a minute.
    pub fn read_link_indexes(&mut self, names: &[&LinkName]) -> io::Result<Vec<Option<u32>>> {
        let mut indexes = Vec::with_capacity(names.len());
        for names in names.chunks(MAX_NAMES_PER_REQUEST) {
            let first = self.sequence.wrapping_add(1);
            let mut requests = Vec::new();
            for name in names {
                let mut request = LinkMessage::default();
                request.attributes.push(LinkAttribute::IfName(name.to_string()));
                let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
                request.attributes.push(mask);
                requests.extend(serialize_request(
                    Message::GetLink(request),
                    NLM_F_REQUEST,
                    self.next_sequence(),
                ));
            }
            self.socket.send(&requests, 0)?;
            let mut answers: Vec<Option<Option<u32>>> = vec![None; names.len()];
            while answers.iter().any(Option::is_none) {
                receive_datagram(&self.socket, &mut self.datagram, "the kernel")?;
                for part in split_messages(&self.datagram) {
                    let index = read_u32(part, SEQUENCE_OFFSET)
                        .map(|sequence| sequence.wrapping_sub(first) as usize);
                    if let Some(answer) = index.and_then(|index| answers.get_mut(index)) {
                        let is_link = read_message_type(part) == Some(RTM_NEWLINK);
                        *answer = Some(read_link_index(part).filter(|_| is_link));
                    }
                }
            }
            indexes.extend(answers.into_iter().flatten());
        }
        Ok(indexes)
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

/// Returns an error unless the request only reads objects.
fn refuse_changes(request: &Message) -> io::Result<()> {
    match request {
        Message::GetLink(_)
        | Message::GetAddress(_)
        | Message::GetRoute(_)
        | Message::GetNeighbour(_)
        | Message::GetNsId(_) => Ok(()),
        _ => Err(io::Error::other("this netlink socket refuses requests other than RTM_GET*")),
    }
}

/// Opens a socket for requests in a netlink protocol.
///
/// # Errors
/// Returns an error if the kernel does not support the protocol.
pub fn open_socket(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(TIMEOUT_SECONDS))?;
    Ok(socket)
}

/// Receives one datagram into `datagram`, whose previous content is removed. `sender` names the sender in error
/// messages.
///
/// # Errors
/// Returns an error if no datagram arrives for a minute, or if the datagram is larger than the buffer.
pub fn receive_datagram(socket: &Socket, datagram: &mut Vec<u8>, sender: &str) -> io::Result<()> {
    loop {
        datagram.clear();
        match socket.recv(datagram, MsgFlags::MSG_TRUNC.bits()) {
            Ok(length) if length > datagram.len() => {
                let message = format!(
                    "{sender} sent a message of {length} bytes, which is longer than the buffer"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let message = format!("{sender} did not answer within {TIMEOUT_SECONDS} s");
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Repeats a dump until it was not interrupted by a change, or until the attempts in [`RETRY_DELAYS_MS`] are exhausted.
fn retry_interrupted_dump<T>(
    mut dump: impl FnMut() -> io::Result<(Vec<T>, bool)>,
) -> io::Result<Vec<T>> {
    let mut delays = RETRY_DELAYS_MS.iter();
    loop {
        let (answers, complete) = dump()?;
        if complete {
            return Ok(answers);
        }
        let Some(delay) = delays.next() else {
            return Err(io::Error::other(format!(
                "the kernel's tables changed during each of {} dumps; incomplete dumps are discarded",
                RETRY_DELAYS_MS.len() + 1
            )));
        };
        std::thread::sleep(Duration::from_millis(*delay));
    }
}

/// Converts a request to the bytes that are sent.
#[must_use]
pub fn serialize_request(message: Message, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}

/// Offset of the message type in a netlink message (`nlmsghdr.nlmsg_type`), in bytes.
const TYPE_OFFSET: usize = 4;
/// Offset of the sequence number in a netlink message (`nlmsghdr.nlmsg_seq`), in bytes.
const SEQUENCE_OFFSET: usize = 8;
/// Offset of the interface index in a message about a link or an address (`ifinfomsg`, `ifaddrmsg`), in bytes from the
/// beginning of the message.
const INDEX_OFFSET: usize = 20;
/// Type of a message that describes a link.
pub const RTM_NEWLINK: u16 = 16;

/// Returns the type of a message.
#[must_use]
pub fn read_message_type(message: &[u8]) -> Option<u16> {
    let bytes = message.get(TYPE_OFFSET..TYPE_OFFSET + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the interface index in a message about a link or an address.
#[must_use]
pub fn read_link_index(message: &[u8]) -> Option<u32> {
    read_u32(message, INDEX_OFFSET)
}

fn read_u32(message: &[u8], offset: usize) -> Option<u32> {
    let bytes = message.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the messages in a datagram. Each message begins with its length and is padded to a multiple of four bytes.
pub fn split_messages(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let part = rest.get(..length).filter(|part| part.len() >= 16)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(part)
    })
}

/// Returns the message string of an extended acknowledgement. `unparsed` contains the bytes that netlink-packet-core
/// has not parsed: the header of the refused request, and then the attributes, one of which is the message string. A
/// capped acknowledgement (`NETLINK_CAP_ACK`) contains only the header and not the rest of the request.
#[must_use]
pub fn extended_ack_text(unparsed: &[u8]) -> Option<String> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    const HEADER_LENGTH: usize = 16;
    let attributes = NlasIterator::new(unparsed.get(HEADER_LENGTH..)?);
    let text = attributes.flatten().find(|nla| nla.kind() == NLMSGERR_ATTR_MSG)?;
    let text = text.value().split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn interrupted_dump_is_repeated_and_discarded() {
        let mut answers = vec![(vec![1, 2, 3], true), (vec![1], false), (vec![2], false)];
        assert_eq!(retry_interrupted_dump(|| Ok(answers.pop().unwrap())).unwrap(), [1, 2, 3]);
        let mut attempts = 0;
        let result = retry_interrupted_dump(|| {
            attempts += 1;
            Ok((vec![attempts], false))
        });
        assert!(result.unwrap_err().to_string().contains("during each of 8 dumps"));
        assert_eq!(attempts, 8);
    }

    #[test]
    fn changing_request_is_refused() {
        assert!(refuse_changes(&Message::GetLink(LinkMessage::default())).is_ok());
        for request in [Message::NewLink, Message::SetLink, Message::DelLink] {
            assert!(refuse_changes(&request(LinkMessage::default())).is_err());
        }
    }

    proptest! {
        #[test]
        fn split_messages_never_panics_or_loops(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(split_messages(&datagram).count() <= datagram.len() / 16);
            drop(extended_ack_text(&datagram));
        }
    }
}
