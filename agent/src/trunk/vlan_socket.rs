//! A packet socket that reads the VLAN of received frames. The kernel and network cards remove the VLAN tag, and
//! the kernel reports it in a control message (`PACKET_AUXDATA`, `struct tpacket_auxdata`).
//!
//! Each system call sends or receives a batch of frames. Received frames wait in the socket until the task reads
//! them at its next interval: waking the task for each frame would cost more than handling the frame.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, OwnedFd};

use berth_api::{MacAddress, VlanId};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockFlag,
    SockType, recvmmsg, sendmmsg, setsockopt, socket, sockopt,
};
use pnet_datalink::ChannelType;
use socket2::{SockFilter, SockRef};

use crate::packet_socket::bind;

/// Maximum number of frames per system call. It exceeds the number of frames that an idle agent handles per
/// wake-up if there are two agents: about 130 in each direction.
pub(super) const BATCH_SIZE: usize = 160;
/// Status bit of `struct tpacket_auxdata`: the field `tp_vlan_tci` is valid.
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
/// The bits of an 802.1Q tag that contain the VLAN id.
const VLAN_ID_BITS: u16 = 0x0FFF;
/// Size of `struct tpacket_auxdata`.
const AUXDATA_BYTES: usize = 20;
/// Size of an Ethernet header without a VLAN tag.
const ETHERNET_HEADER_BYTES: usize = 14;

/// Socket option that requests a control message with the VLAN of each received frame.
#[derive(Debug, Clone, Copy)]
struct PacketAuxdata;
nix::setsockopt_impl!(
    PacketAuxdata,
    libc::SOL_PACKET,
    libc::PACKET_AUXDATA,
    bool,
    sockopt::SetBool
);

/// Socket option that excludes frames that the host sends, which the kernel otherwise copies for the socket.
#[derive(Debug, Clone, Copy)]
struct PacketIgnoreOutgoing;
nix::setsockopt_impl!(
    PacketIgnoreOutgoing,
    libc::SOL_PACKET,
    libc::PACKET_IGNORE_OUTGOING,
    bool,
    sockopt::SetBool
);

/// Socket option that makes the link receive the frames to a multicast address.
#[derive(Debug, Clone, Copy)]
struct PacketAddMembership;
nix::setsockopt_impl!(
    PacketAddMembership,
    libc::SOL_PACKET,
    libc::PACKET_ADD_MEMBERSHIP,
    libc::packet_mreq,
    sockopt::SetStruct<'_, libc::packet_mreq>
);

/// Frames that a socket receives, and the size of its buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveOptions {
    /// EtherType of the frames, in host byte order.
    pub(super) ethertype: u16,
    /// Multicast address to which the frames are sent.
    pub(super) group: MacAddress,
    /// True if the socket receives frames before the link's bridge handles them (and may drop them).
    pub(super) before_bridge: bool,
    /// Size in bytes of the kernel's receive buffer, and of its send buffer.
    pub(super) buffer_bytes: usize,
    /// Maximum size of a received frame in bytes; a larger frame is truncated.
    pub(super) max_frame_bytes: usize,
}

/// A packet socket on one link, for frames of one EtherType.
#[derive(Debug)]
pub(super) struct VlanSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
    max_frame_bytes: usize,
}

impl VlanSocket {
    /// Opens a socket on the link with this index.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the socket (`CAP_NET_RAW` is required), or if there is no such link.
    pub(super) fn open(index: u32, options: ReceiveOptions) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        SockRef::from(&socket).attach_filter(&filter(options.ethertype, options.group))?;
        setsockopt(&socket, PacketAuxdata, &true)?;
        // Kernels before 4.20 do not support the option, so an error is ignored; the socket's filter also drops
        // these frames.
        setsockopt(&socket, PacketIgnoreOutgoing, &true).unwrap_or_default();
        setsockopt(&socket, PacketAddMembership, &membership(index, options.group)?)?;
        let bytes = options.buffer_bytes;
        if setsockopt(&socket, sockopt::RcvBufForce, &bytes).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &bytes)?;
        }
        if setsockopt(&socket, sockopt::SndBufForce, &bytes).is_err() {
            setsockopt(&socket, sockopt::SndBuf, &bytes)?;
        }
        let channel_type = if options.before_bridge {
            ChannelType::Layer2
        } else {
            ChannelType::Layer3(options.ethertype)
        };
        bind(&socket, index, channel_type)?;
        let max_frame_bytes = options.max_frame_bytes;
        Ok(Self { socket, buffer: vec![0; BATCH_SIZE * max_frame_bytes], max_frame_bytes })
    }

    /// Sends frames, which begin with their Ethernet headers. If the queue of the link is full, a frame is lost, as
    /// it may be in the network.
    ///
    /// # Errors
    /// The error of the kernel: `ENETDOWN` if the link is down, `ENXIO` if it was deleted.
    pub(super) fn send(&self, frames: &[Vec<u8>]) -> io::Result<()> {
        let mut rest = frames;
        while !rest.is_empty() {
            let sent = match self.send_batch(rest) {
                Ok(count) => count.max(1),
                Err(Errno::EAGAIN | Errno::ENOBUFS) => 1,
                Err(Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends a batch of frames, beginning with the first, and returns the number of frames that were sent. An error
    /// concerns the first frame.
    fn send_batch(&self, frames: &[Vec<u8>]) -> nix::Result<usize> {
        let slices: Vec<[IoSlice<'_>; 1]> =
            frames.iter().take(BATCH_SIZE).map(|frame| [IoSlice::new(frame)]).collect();
        let addresses = vec![None::<()>; slices.len()];
        let control: [ControlMessage<'_>; 0] = [];
        let mut headers = MultiHeaders::<()>::preallocate(slices.len(), None);
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        Ok(sendmmsg(socket, &mut headers, &slices, addresses, control, flags)?.count())
    }

    /// Receives at most [`BATCH_SIZE`] frames. Calls `handle` for each frame, with its VLAN and with its payload
    /// after the Ethernet header. Returns the number of frames.
    ///
    /// # Errors
    /// The error of the kernel: `ENETDOWN` if the link is down.
    pub(super) fn receive(
        &mut self,
        mut handle: impl FnMut(Option<VlanId>, &[u8]),
    ) -> io::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> = self
            .buffer
            .chunks_mut(self.max_frame_bytes)
            .map(|one| [IoSliceMut::new(one)])
            .collect();
        // The headers are created for each call, because the kernel overwrites the size of the control messages in
        // them.
        let control = nix::cmsg_space!([u8; AUXDATA_BYTES]);
        let mut headers = MultiHeaders::<()>::preallocate(slices.len(), Some(control));
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let messages = match recvmmsg(socket, &mut headers, slices.iter_mut(), flags, None) {
            Ok(messages) => messages,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let mut count = 0;
        for message in messages {
            count += 1;
            let frame = message.iovs().next().unwrap_or_default();
            let payload = frame.get(ETHERNET_HEADER_BYTES..).unwrap_or_default();
            handle(vlan_of(&message), payload);
        }
        Ok(count)
    }
}

/// Returns the VLAN in which a frame arrived.
fn vlan_of(message: &RecvMsg<'_, '_, ()>) -> Option<VlanId> {
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Unknown(unknown)
            if unknown.cmsg_header.cmsg_level == libc::SOL_PACKET =>
        {
            received_vlan(&unknown.data_bytes)
        }
        _ => None,
    })
}

/// Returns a BPF filter that accepts received frames with this EtherType and this destination address. The kernel
/// has already removed the VLAN tag.
fn filter(ethertype: u16, group: MacAddress) -> [SockFilter; 10] {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_WORD: u16 = 0x28;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// Offset at which BPF loads `skb->pkt_type`: `SKF_AD_OFF + SKF_AD_PKTTYPE`.
    const PACKET_TYPE: u32 = 0xFFFF_F000 + 4;
    /// Value of `skb->pkt_type` for a frame that the host sends.
    const PACKET_OUTGOING: u32 = 4;
    const ETHERTYPE_OFFSET: u32 = 12;
    let MacAddress([a, b, c, d, e, f]) = group;
    [
        SockFilter::new(LOAD_BYTE, 0, 0, PACKET_TYPE),
        SockFilter::new(JUMP_IF_EQUAL, 7, 0, PACKET_OUTGOING),
        SockFilter::new(LOAD_HALF_WORD, 0, 0, ETHERTYPE_OFFSET),
        SockFilter::new(JUMP_IF_EQUAL, 0, 5, u32::from(ethertype)),
        SockFilter::new(LOAD_WORD, 0, 0, 0),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, u32::from_be_bytes([a, b, c, d])),
        SockFilter::new(LOAD_HALF_WORD, 0, 0, 4),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, u32::from(u16::from_be_bytes([e, f]))),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

fn membership(index: u32, group: MacAddress) -> io::Result<libc::packet_mreq> {
    let MacAddress([a, b, c, d, e, f]) = group;
    Ok(libc::packet_mreq {
        mr_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        mr_type: u16::try_from(libc::PACKET_MR_MULTICAST).map_err(io::Error::other)?,
        mr_alen: 6,
        mr_address: [a, b, c, d, e, f, 0, 0],
    })
}

/// Returns the VLAN of the frame from its `struct tpacket_auxdata`; `None` if the frame was untagged.
fn received_vlan(auxdata: &[u8]) -> Option<VlanId> {
    let status = u32::from_ne_bytes(*auxdata.first_chunk()?);
    let tag = u16::from_ne_bytes(*auxdata.get(16..)?.first_chunk()?);
    (status & TP_STATUS_VLAN_VALID != 0).then(|| VlanId::try_from(tag & VLAN_ID_BITS).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auxdata(status: u32, tag: u16) -> Vec<u8> {
        [&status.to_ne_bytes()[..], &[0; 12], &tag.to_ne_bytes(), &0x8100_u16.to_ne_bytes()]
            .concat()
    }

    #[test]
    fn vlan_is_read_from_auxdata() {
        let vlan = |id| VlanId::try_from(id).ok();
        assert_eq!(received_vlan(&auxdata(1 | 16, 120)), vlan(120));
        // The upper four bits of the tag are the priority and the drop eligible indicator.
        assert_eq!(received_vlan(&auxdata(1 | 16, 0xE078)), vlan(120));
        assert_eq!(received_vlan(&auxdata(1, 120)), None);
        assert_eq!(received_vlan(&[]), None);
    }
}
