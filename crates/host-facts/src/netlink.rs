//! One conversation with the kernel about links: dumps that are whole, and changes sent many at a time.
//!
//! A plain blocking socket of our own. A request's answers and the kernel's events never share a socket, as an
//! overrun by events would eat the answers. Changes sent in one datagram cost one system call for all of them,
//! and one acknowledgement, the last one's: the kernel takes them in order, and answers each that it refuses
//! whether it was asked to or not.

use std::io;
use std::time::Duration;

use berth_api::LinkName;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};

/// A socket for requests.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    /// What was received last.
    datagram: Vec<u8>,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// A change the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", .errno.desc(), .words.as_ref().map(|words| format!(" ({words})")).unwrap_or_default())]
pub struct Refused {
    /// Its number for why.
    pub errno: Errno,
    /// Its words for why, where it has any (extended acknowledgement).
    pub words: Option<String>,
}

/// What a change does to what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Makes something that must not be there yet.
    Create,
    /// Adds to what is there, or makes it.
    Append,
    /// Changes what is there, or removes it.
    Change,
}

/// Changes in one datagram. With the kernel's smallest receive buffer (212,992 bytes) 256 refusals still fit,
/// 512 do not.
const BATCH: usize = 64;
/// Links asked for in one datagram: the kernel sets aside some 4 KiB for each answer.
const ASKED: usize = 16;
/// Bytes of requests in one datagram.
const BATCH_BYTES: usize = 64 << 10;
/// The kernel answers at once, but may wait long for its lock: an uplink with thousands of VLAN links takes
/// seconds to go down.
const PATIENCE_SECONDS: i64 = 60;
/// A dump during which something changed is requested again after each of these pauses, in milliseconds. A link may be
/// missing in such an answer (`NLM_F_DUMP_INTR`), so an interrupted dump is never used.
const RETRIES: [u64; 7] = [0, 5, 10, 20, 50, 100, 200];
const BUFFER: usize = 1 << 20;
/// The longest datagram of the kernel: dumps come in 32 KiB, and a card's virtual functions in one attribute of
/// at most 64 KiB.
const DATAGRAM: usize = 256 << 10;

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// If the kernel has no route netlink, which none of ours lacks.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
        Ok(Self { socket, sequence: 0, datagram: Vec::with_capacity(DATAGRAM) })
    }

    /// Everything the kernel answers to a dump, each answer as `read` has it. The messages themselves would be
    /// ten times as large as what is kept of them.
    ///
    /// # Errors
    /// If it refuses, does not answer for a minute, or if something changed during each of the attempts.
    pub fn dump<T>(
        &mut self,
        request: &Message,
        mut read: impl FnMut(&Message) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        whole(|| self.dump_once(request.clone(), &mut read))
    }

    /// Requests one object; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel refuses for another reason, or does not answer for a minute.
    pub fn get(&mut self, request: Message) -> io::Result<Option<Message>> {
        let sequence = self.next();
        self.socket.send(&serialized(request, NLM_F_REQUEST, sequence), 0)?;
        loop {
            self.receive()?;
            for part in parts(&self.datagram) {
                if number(part, SEQUENCE_AT) != Some(sequence) {
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
        let sequence = self.next();
        let bytes = serialized(request, NLM_F_REQUEST | NLM_F_DUMP, sequence);
        self.socket.send(&bytes, 0)?;
        let (mut answers, mut whole) = (Vec::new(), true);
        loop {
            self.receive()?;
            for part in parts(&self.datagram) {
                // What the crate cannot read is of a kind of link that none of ours is.
                let Ok(message) = NetlinkMessage::<Message>::deserialize(part) else { continue };
                if message.header.sequence_number != sequence {
                    continue;
                }
                whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answers.extend(read(&inner)),
                    NetlinkPayload::Done(done) if done.code != 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Done(_) => return Ok((answers, whole)),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// The kernel's numbers of links, one answer for each name.
    ///
    /// # Errors
    /// If the kernel does not answer for a minute.
    pub fn numbers(&mut self, names: &[&LinkName]) -> io::Result<Vec<Option<u32>>> {
        let mut numbers = Vec::with_capacity(names.len());
        for names in names.chunks(ASKED) {
            let first = self.sequence.wrapping_add(1);
            let mut requests = Vec::new();
            for name in names {
                let mut request = LinkMessage::default();
                request.attributes.push(LinkAttribute::IfName(name.to_string()));
                let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
                request.attributes.push(mask);
                requests.extend(serialized(Message::GetLink(request), NLM_F_REQUEST, self.next()));
            }
            self.socket.send(&requests, 0)?;
            let mut answers: Vec<Option<Option<u32>>> = vec![None; names.len()];
            while answers.iter().any(Option::is_none) {
                self.receive()?;
                for part in parts(&self.datagram) {
                    let place = number(part, SEQUENCE_AT).map(|it| it.wrapping_sub(first) as usize);
                    if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
                        let is_link = kind(part) == Some(RTM_NEWLINK);
                        *answer = Some(link_number(part).filter(|_| is_link));
                    }
                }
            }
            numbers.extend(answers.into_iter().flatten());
        }
        Ok(numbers)
    }

    /// Sends changes; the kernel makes them in this order, and one that it refuses does not stop the others.
    ///
    /// # Errors
    /// If it does not answer for a minute; what was done then is not known, and must be looked at.
    pub fn change(&mut self, changes: Vec<(How, Message)>) -> io::Result<Vec<Result<(), Refused>>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        let mut batch = Batch::default();
        for (how, message) in changes {
            let sequence = self.next();
            let bytes = serialized(message, how.flags(), sequence);
            if batch.count == BATCH || batch.bytes.len() + bytes.len() > BATCH_BYTES {
                outcomes.extend(self.exchange(std::mem::take(&mut batch))?);
            }
            batch.add(&bytes, sequence);
        }
        if batch.count > 0 {
            outcomes.extend(self.exchange(batch)?);
        }
        Ok(outcomes)
    }

    /// Sends one change.
    ///
    /// # Errors
    /// As [`Netlink::change`], or what the kernel said.
    pub fn change_one(&mut self, how: How, message: Message) -> io::Result<Result<(), Refused>> {
        let outcome = self.change(vec![(how, message)])?.pop();
        Ok(outcome.unwrap_or(Ok(())))
    }

    fn exchange(&mut self, mut batch: Batch) -> io::Result<Vec<Result<(), Refused>>> {
        batch.acknowledge_last();
        self.socket.send(&batch.bytes, 0)?;
        let mut outcomes: Vec<Result<(), Refused>> = vec![Ok(()); batch.count];
        let mut last_answered = false;
        while !last_answered {
            self.receive()?;
            for part in parts(&self.datagram) {
                let Ok(message) = NetlinkMessage::<Message>::deserialize(part) else { continue };
                let place = message.header.sequence_number.wrapping_sub(batch.first) as usize;
                let NetlinkPayload::Error(error) = message.payload else { continue };
                last_answered |= place + 1 == batch.count;
                if let (Some(outcome), Some(code)) = (outcomes.get_mut(place), error.code) {
                    let (errno, words) = (Errno::from_raw(-code.get()), words(&error.header));
                    *outcome = Err(Refused { errno, words });
                }
            }
        }
        Ok(outcomes)
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            self.datagram.clear();
            match self.socket.recv(&mut self.datagram, MsgFlags::MSG_TRUNC.bits()) {
                Ok(length) if length > self.datagram.len() => {
                    let message = format!("the kernel answered with {length} bytes at once");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let message = format!("the kernel did not answer for {PATIENCE_SECONDS} s");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

impl How {
    const fn flags(self) -> u16 {
        match self {
            Self::Create => NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL,
            Self::Append => NLM_F_REQUEST | NLM_F_CREATE | NLM_F_APPEND,
            Self::Change => NLM_F_REQUEST,
        }
    }
}

/// Repeats a dump until nothing changed while it was read.
fn whole<T>(mut once: impl FnMut() -> io::Result<(Vec<T>, bool)>) -> io::Result<Vec<T>> {
    let mut pauses = RETRIES.iter();
    loop {
        let (answers, whole) = once()?;
        if whole {
            return Ok(answers);
        }
        let Some(pause) = pauses.next() else {
            return Err(io::Error::other(format!(
                "the kernel's tables changed during each of {} dumps; no incomplete answer is used",
                RETRIES.len() + 1
            )));
        };
        std::thread::sleep(Duration::from_millis(*pause));
    }
}

/// Requests for one datagram.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// The first one's sequence number; the others' follow.
    first: u32,
    count: usize,
    /// Where the last one begins.
    last: usize,
}

impl Batch {
    fn add(&mut self, bytes: &[u8], sequence: u32) {
        if self.count == 0 {
            self.first = sequence;
        }
        self.last = self.bytes.len();
        self.count += 1;
        self.bytes.extend(bytes);
    }

    /// Asks for an acknowledgement of the last request.
    fn acknowledge_last(&mut self) {
        const FLAGS: usize = 6;
        if let Some(flags) = self.bytes.get_mut(self.last + FLAGS..self.last + FLAGS + 2) {
            let asked = u16::from_ne_bytes([flags[0], flags[1]]) | NLM_F_ACK;
            flags.copy_from_slice(&asked.to_ne_bytes());
        }
    }
}

fn serialized(message: Message, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}

/// Places of fields in a message: its type and number, and the link's number in `ifinfomsg` and `ifaddrmsg`.
const KIND_AT: usize = 4;
const SEQUENCE_AT: usize = 8;
const INDEX_AT: usize = 20;
/// Message types.
pub(crate) const RTM_NEWLINK: u16 = 16;

/// What kind of message it is.
pub(crate) fn kind(message: &[u8]) -> Option<u16> {
    let bytes = message.get(KIND_AT..KIND_AT + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

/// The number of the link that a message about a link or an address is about.
pub(crate) fn link_number(message: &[u8]) -> Option<u32> {
    number(message, INDEX_AT)
}

fn number(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The messages of a datagram: each begins with its length, and is padded to four bytes.
pub(crate) fn parts(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let part = rest.get(..length).filter(|part| part.len() >= 16)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(part)
    })
}

/// The text of an extended acknowledgement. The crate leaves it behind the header of the refused request,
/// which a capped acknowledgement has alone.
pub(crate) fn words(after: &[u8]) -> Option<String> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    const HEADER: usize = 16;
    let attributes = NlasIterator::new(after.get(HEADER..)?);
    let text = attributes.flatten().find(|nla| nla.kind() == NLMSGERR_ATTR_MSG)?;
    let text = text.value().split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_interrupted_dump_is_requested_again_and_never_used() {
        let mut answers = vec![(vec![1, 2, 3], true), (vec![1], false), (vec![2], false)];
        assert_eq!(whole(|| Ok(answers.pop().unwrap())).unwrap(), [1, 2, 3]);
        let mut asked = 0;
        let never = whole(|| {
            asked += 1;
            Ok((vec![asked], false))
        });
        assert!(never.unwrap_err().to_string().contains("during each of 8 dumps"));
        assert_eq!(asked, 8);
    }

    proptest! {
        #[test]
        fn garbage_ends(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parts(&datagram).count() <= datagram.len() / 16);
            drop(words(&datagram));
        }
    }
}
