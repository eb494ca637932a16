//! Packet sockets (`packet(7)`), each of which receives and sends the frames of one link.
//!
//! A socket for a single protocol receives nothing on a bridge port: the bridge takes the frame before the kernel
//! delivers it by protocol. So the sockets are for all protocols (`ETH_P_ALL`), and a filter in the kernel selects the
//! frames. The filter is attached before the socket is bound to a protocol, so the socket never receives a frame that
//! the filter does not accept.

use std::io;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};

use nix::libc::PACKET_OUTGOING;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, recvfrom, send, setsockopt, socket,
    sockopt,
};
use pnet_datalink::{ChannelType, Config, NetworkInterface};
use socket2::{SockFilter, SockRef};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(crate) struct PacketSocket(AsyncFd<OwnedFd>);

/// A received Ethernet frame; the bytes begin with the destination address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a [u8],
    /// True if the frame is sent through the link, by the host or by another port of the bridge; false if it was
    /// received.
    pub(crate) is_outgoing: bool,
}

/// Maximum length of a frame; the rest of a longer frame is dropped.
const MAX_FRAME_BYTES: usize = 2048;
/// Maximum number of frames for one call of [`PacketSocket::receive`], so that a busy link does not delay other links.
pub(crate) const BATCH_SIZE: usize = 8;

impl PacketSocket {
    /// Opens a socket for the frames of the link with this index that match the filter.
    ///
    /// # Errors
    /// If the link does not exist, or the process may not open the socket.
    pub(crate) fn open(
        index: u32,
        filter: &[SockFilter],
        receive_buffer_bytes: usize,
    ) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        SockRef::from(&descriptor).attach_filter(filter)?;
        setsockopt(&descriptor, sockopt::RcvBuf, &receive_buffer_bytes)?;
        bind(&descriptor, index, ChannelType::Layer2)?;
        #[expect(
            deprecated,
            reason = "the function that replaces it is unsafe; the descriptor of an OwnedFd is valid"
        )]
        let socket = AsyncFd::new(descriptor)?;
        Ok(Self(socket))
    }

    /// Waits for frames, and passes at most [`BATCH_SIZE`] frames to `handle`.
    ///
    /// # Errors
    /// Returns the error of the kernel, for example if the link was set down or deleted.
    pub(crate) async fn receive(&self, handle: impl FnMut(Frame<'_>)) -> io::Result<()> {
        self.readable().await?;
        self.read_frames(handle)
    }

    /// Waits until frames may have arrived, until [`Self::read_frames`] has read all of them.
    ///
    /// # Errors
    /// If the runtime shuts down.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }

    /// Passes at most [`BATCH_SIZE`] frames that have arrived to `handle`, without waiting.
    ///
    /// # Errors
    /// Returns the error of the kernel, for example if the link was set down or deleted.
    pub(crate) fn read_frames(&self, mut handle: impl FnMut(Frame<'_>)) -> io::Result<()> {
        let mut buffer = [0; MAX_FRAME_BYTES];
        for _ in 0..BATCH_SIZE {
            let received = self.0.try_io(Interest::READABLE, |socket| {
                recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer).map_err(io::Error::from)
            });
            let (length, sender) = match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                received => received?,
            };
            let is_outgoing = sender.is_some_and(|sender| sender.pkttype() == PACKET_OUTGOING);
            handle(Frame { bytes: buffer.get(..length).unwrap_or_default(), is_outgoing });
        }
        Ok(())
    }

    /// Replaces the filter. Frames that were received before stay in the socket.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn set_filter(&self, filter: &[SockFilter]) -> io::Result<()> {
        SockRef::from(self.0.get_ref()).attach_filter(filter)
    }

    /// Sends a frame through the link. The kernel does not deliver the sent frame to this socket.
    ///
    /// # Errors
    /// Returns the error of the kernel, also if the link's queue is full.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }
}

/// Binds a socket to a link, for all protocols (`Layer2`) or for one protocol (`Layer3`). `nix` and `socket2` have no
/// safe function that creates the address.
///
/// # Errors
/// If the link does not exist, or the process may not open the socket.
pub(crate) fn bind(socket: &OwnedFd, index: u32, channel_type: ChannelType) -> io::Result<()> {
    let link = NetworkInterface {
        name: String::new(),
        description: String::new(),
        index,
        mac: None,
        ips: Vec::new(),
        flags: 0,
    };
    // The channel closes its descriptor when it is dropped, so it receives a duplicate of the socket's descriptor.
    let config = Config {
        socket_fd: Some(socket.try_clone()?.into_raw_fd()),
        channel_type,
        promiscuous: false,
        read_buffer_size: 0,
        write_buffer_size: 0,
        ..Config::default()
    };
    pnet_datalink::channel(&link, config).map(drop)
}
