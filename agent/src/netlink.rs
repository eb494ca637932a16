//! One conversation with the kernel about links: dumps that are whole, and changes sent many at a time.
//!
//! A plain blocking socket of our own. A request's answers and the kernel's events never share a socket, as an
//! overrun by events would eat the answers; and a change sent in one datagram with others costs one system
//! call for all of them, while each still has its own acknowledgement with the kernel's words.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;

/// A socket for requests.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
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

/// Changes in one datagram. With the kernel's smallest receive buffer (212,992 bytes) all acknowledgements of
/// 256 still fit, those of 512 do not.
const BATCH: usize = 64;
/// Bytes of requests in one datagram.
const BATCH_BYTES: usize = 64 << 10;
/// The kernel answers at once, but may wait long for its lock: an uplink with thousands of VLAN links takes
/// seconds to go down.
const PATIENCE_SECONDS: i64 = 60;
/// A dump during which something changed is begun anew this often; then it is taken as it is, for the event
/// of that change begins another look.
const DUMPS: usize = 4;
const BUFFER: usize = 1 << 20;

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
        Ok(Self { socket, sequence: 0 })
    }

    /// Everything the kernel answers to a dump.
    ///
    /// # Errors
    /// If it refuses, or does not answer for a minute.
    pub fn dump(&mut self, request: &Message) -> io::Result<Vec<Message>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (answers, whole) = self.dump_once(request.clone())?;
            if whole || tries == DUMPS {
                return Ok(answers);
            }
        }
    }

    fn dump_once(&mut self, request: Message) -> io::Result<(Vec<Message>, bool)> {
        let sequence = self.next();
        let bytes = serialized(request, NLM_F_REQUEST | NLM_F_DUMP, sequence);
        self.socket.send(&bytes, 0)?;
        let (mut answers, mut whole) = (Vec::new(), true);
        loop {
            let datagram = self.receive()?;
            for part in parts(&datagram) {
                // What the crate cannot read is of a kind of link that none of ours is.
                let Ok(message) = NetlinkMessage::<Message>::deserialize(part) else { continue };
                if message.header.sequence_number != sequence {
                    continue;
                }
                whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answers.push(inner),
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

    /// Sends changes; the kernel makes them in this order, and one that it refuses does not stop the others.
    ///
    /// # Errors
    /// If it does not answer for a minute; what was done then is not known, and must be looked at.
    pub fn change(&mut self, changes: Vec<(How, Message)>) -> io::Result<Vec<Result<(), Refused>>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        let mut batch = Vec::new();
        let mut first = self.sequence.wrapping_add(1);
        let mut count = 0;
        for (how, message) in changes {
            let bytes = serialized(message, how.flags(), self.next());
            if count == BATCH || batch.len() + bytes.len() > BATCH_BYTES {
                outcomes.extend(self.exchange(&batch, first, count)?);
                (batch, count) = (Vec::new(), 0);
                first = self.sequence;
            }
            batch.extend(bytes);
            count += 1;
        }
        if count > 0 {
            outcomes.extend(self.exchange(&batch, first, count)?);
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

    fn exchange(
        &mut self,
        batch: &[u8],
        first: u32,
        count: usize,
    ) -> io::Result<Vec<Result<(), Refused>>> {
        self.socket.send(batch, 0)?;
        let mut outcomes: Vec<Option<Result<(), Refused>>> = vec![None; count];
        while outcomes.iter().any(Option::is_none) {
            let datagram = self.receive()?;
            for part in parts(&datagram) {
                let Ok(message) = NetlinkMessage::<Message>::deserialize(part) else { continue };
                let place = message.header.sequence_number.wrapping_sub(first) as usize;
                if let (NetlinkPayload::Error(error), Some(slot)) =
                    (message.payload, outcomes.get_mut(place))
                {
                    *slot = Some(match error.code {
                        None => Ok(()),
                        Some(code) => Err(Refused {
                            errno: Errno::from_raw(-code.get()),
                            words: words(&error.header),
                        }),
                    });
                }
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => return Ok(datagram),
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
        let common = NLM_F_REQUEST | NLM_F_ACK;
        match self {
            Self::Create => common | NLM_F_CREATE | NLM_F_EXCL,
            Self::Append => common | NLM_F_CREATE | NLM_F_APPEND,
            Self::Change => common,
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

    proptest! {
        #[test]
        fn garbage_ends(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parts(&datagram).count() <= datagram.len() / 16);
            drop(words(&datagram));
        }
    }
}
