//! One packet socket that sends and receives on the links of all guests.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt,
    socket, sockopt,
};
use socket2::{SockFilter, SockRef};

use super::message::{Answer, parse_answer};

/// Time limit of one wait for a frame.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(50);
/// Size of the receive buffer, in which the answers to all guests fit.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
const MAX_FRAME_BYTES: usize = 2048;

/// BPF filter that accepts only UDP datagrams over IPv4 to port 68, so the guests' own broadcasts do not wake this
/// program.
const FILTER: [SockFilter; 9] = [
    SockFilter::new(0x28, 0, 0, 12),     // EtherType
    SockFilter::new(0x15, 0, 6, 0x0800), // IPv4
    SockFilter::new(0x30, 0, 0, 23),     // protocol
    SockFilter::new(0x15, 0, 4, 17),     // UDP
    SockFilter::new(0xb1, 0, 0, 14),     // length of the IPv4 header
    SockFilter::new(0x48, 0, 0, 16),     // destination port
    SockFilter::new(0x15, 0, 1, 68),
    SockFilter::new(0x06, 0, 0, 0x0004_0000),
    SockFilter::new(0x06, 0, 0, 0),
];

/// A packet socket that receives the frames of all links.
#[derive(Debug)]
pub(super) struct GuestSocket(OwnedFd);

impl GuestSocket {
    /// Opens the socket for all links of this network namespace.
    pub(super) fn open() -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
            .context("open a packet socket")?;
        let reference = SockRef::from(&descriptor);
        reference.attach_filter(&FILTER).context("attach the filter")?;
        reference.set_read_timeout(Some(RECEIVE_TIMEOUT)).context("set the timeout")?;
        setsockopt(&descriptor, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)
            .context("set the receive buffer")?;
        Ok(Self(descriptor))
    }

    /// Sends a frame on a link. If the queue of the link is full, the kernel drops the frame, as a frame may be
    /// lost in a real network.
    pub(super) fn send(&self, frame: &[u8], link: &LinkAddr) -> Result<()> {
        match sendto(self.0.as_raw_fd(), frame, link, MsgFlags::empty()) {
            Ok(_) | Err(Errno::ENOBUFS) => Ok(()),
            Err(errno) => Err(errno).context("send a frame"),
        }
    }

    /// Waits for an answer, and returns it with the time of its arrival; `None` after a timeout, or if the received
    /// frame is no DHCP answer.
    pub(super) fn receive(&self) -> Result<Option<(Instant, Answer)>> {
        self.receive_with(MsgFlags::empty())
    }

    /// Returns an answer that has already arrived; `None` if there is none.
    pub(super) fn try_receive(&self) -> Result<Option<(Instant, Answer)>> {
        self.receive_with(MsgFlags::MSG_DONTWAIT)
    }

    fn receive_with(&self, flags: MsgFlags) -> Result<Option<(Instant, Answer)>> {
        let mut buffer = [0; MAX_FRAME_BYTES];
        let received = recv(self.0.as_raw_fd(), &mut buffer, flags);
        let now = Instant::now();
        match received {
            Ok(length) => Ok(buffer.get(..length).and_then(parse_answer).map(|one| (now, one))),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(errno) => Err(errno).context("receive a frame"),
        }
    }
}

/// Returns the socket addresses of all links in this network namespace by name, for [`GuestSocket::send`].
pub(super) fn link_addresses() -> Result<BTreeMap<String, LinkAddr>> {
    let all = getifaddrs().context("list the links")?;
    let link = |one: InterfaceAddress| {
        let address = *one.address.as_ref()?.as_link_addr()?;
        Some((one.interface_name, address))
    };
    Ok(all.filter_map(link).collect())
}
