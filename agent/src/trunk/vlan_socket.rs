//! A packet socket that reads the VLAN of received frames. The kernel and network cards remove the VLAN tag, and the
//! kernel reports it in a control message (`PACKET_AUXDATA`, `struct tpacket_auxdata`).

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use berth_api::{MacAddress, VlanId};
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockType, recvmsg, send,
    setsockopt, socket, sockopt,
};
use pnet_datalink::ChannelType;
use socket2::{SockFilter, SockRef};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::packet_socket::bind;

/// Largest frame that is received completely. Probes and LLDP frames are smaller.
const MAX_FRAME_BYTES: usize = 2048;
/// Size of the receive buffer. All agents may start at the same time.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Status bit of `struct tpacket_auxdata`: the field `tp_vlan_tci` is valid.
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
/// The bits of an 802.1Q tag that contain the VLAN id.
const VLAN_ID_BITS: u16 = 0x0FFF;

/// Requests the control message with the VLAN.
#[derive(Debug, Clone, Copy)]
struct PacketAuxdata;
nix::setsockopt_impl!(
    PacketAuxdata,
    libc::SOL_PACKET,
    libc::PACKET_AUXDATA,
    bool,
    sockopt::SetBool
);

/// Excludes frames that the host sends, which the kernel otherwise copies for the socket.
#[derive(Debug, Clone, Copy)]
struct PacketIgnoreOutgoing;
nix::setsockopt_impl!(
    PacketIgnoreOutgoing,
    libc::SOL_PACKET,
    libc::PACKET_IGNORE_OUTGOING,
    bool,
    sockopt::SetBool
);

/// Receives the frames of a multicast address.
#[derive(Debug, Clone, Copy)]
struct PacketAddMembership;
nix::setsockopt_impl!(
    PacketAddMembership,
    libc::SOL_PACKET,
    libc::PACKET_ADD_MEMBERSHIP,
    libc::packet_mreq,
    sockopt::SetStruct<'_, libc::packet_mreq>
);

/// Frames that a socket receives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reception {
    /// EtherType of the frames.
    pub(super) ethertype: u16,
    /// Multicast address to which they are sent.
    pub(super) group: MacAddress,
    /// True if the frames are received before a bridge takes them.
    pub(super) before_bridge: bool,
}

/// A packet socket on one link, for frames of one EtherType.
#[derive(Debug)]
pub(super) struct VlanSocket {
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

impl VlanSocket {
    /// Opens a socket on the link with this index.
    ///
    /// # Errors
    /// If the kernel refuses it (`CAP_NET_RAW` is required), or if there is no such link.
    pub(super) fn open(index: u32, reception: Reception) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        SockRef::from(&descriptor).attach_filter(&filter(reception.ethertype))?;
        setsockopt(&descriptor, PacketAuxdata, &true)?;
        // Kernels before 4.20 do not know the option; the filter also drops these frames.
        setsockopt(&descriptor, PacketIgnoreOutgoing, &true).unwrap_or_default();
        setsockopt(&descriptor, PacketAddMembership, &membership(index, reception.group)?)?;
        if setsockopt(&descriptor, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
            setsockopt(&descriptor, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)?;
        }
        let channel_type = if reception.before_bridge {
            ChannelType::Layer2
        } else {
            ChannelType::Layer3(reception.ethertype)
        };
        bind(&descriptor, index, channel_type)?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, because types may return any descriptor; an OwnedFd is valid"
        )]
        let socket = AsyncFd::new(descriptor)?;
        Ok(Self { socket, buffer: vec![0; MAX_FRAME_BYTES], control: nix::cmsg_space!([u8; 20]) })
    }

    /// Sends a frame with its Ethernet header.
    ///
    /// # Errors
    /// The error of the kernel. If the link's queue is full, the frame is lost.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Waits until frames can be received.
    ///
    /// # Errors
    /// If the runtime shuts down.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await?.retain_ready();
        Ok(())
    }

    /// Receives a frame: the VLAN in which it arrived, and its payload after the Ethernet header. `None` if there is no
    /// frame.
    ///
    /// # Errors
    /// The error of the kernel: `ENETDOWN` if the link is down.
    pub(super) fn receive(&mut self) -> io::Result<Option<(Option<VlanId>, &[u8])>> {
        let (buffer, control) = (&mut self.buffer, &mut self.control);
        let received = self.socket.try_io(Interest::READABLE, |socket| {
            receive_frame(socket.as_raw_fd(), buffer, control)
        });
        match received {
            Ok((vlan, length)) => {
                let payload = self.buffer.get(ETHERNET_HEADER_BYTES..length);
                Ok(Some((vlan, payload.unwrap_or_default())))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Receives a frame: its VLAN and its length.
fn receive_frame(
    socket: RawFd,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<(Option<VlanId>, usize)> {
    let mut slices = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<LinkAddr>(socket, &mut slices, Some(control), flags)?;
    let vlan = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Unknown(unknown)
            if unknown.cmsg_header.cmsg_level == libc::SOL_PACKET =>
        {
            received_vlan(&unknown.data_bytes)
        }
        _ => None,
    });
    Ok((vlan, message.bytes))
}

const ETHERNET_HEADER_BYTES: usize = 14;

/// Returns the filter: accepts received frames with this EtherType. The kernel has already removed the VLAN tag.
fn filter(ethertype: u16) -> [SockFilter; 6] {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_WORD: u16 = 0x28;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// Offset of `skb->pkt_type`: `SKF_AD_OFF + SKF_AD_PKTTYPE`.
    const PACKET_TYPE: u32 = 0xFFFF_F000 + 4;
    const PACKET_OUTGOING: u32 = 4;
    const ETHERTYPE_OFFSET: u32 = 12;
    [
        SockFilter::new(LOAD_BYTE, 0, 0, PACKET_TYPE),
        SockFilter::new(JUMP_IF_EQUAL, 3, 0, PACKET_OUTGOING),
        SockFilter::new(LOAD_HALF_WORD, 0, 0, ETHERTYPE_OFFSET),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, u32::from(ethertype)),
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

/// Returns the VLAN of `struct tpacket_auxdata`; `None` if the frame was untagged.
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
        // The upper bits are the priority.
        assert_eq!(received_vlan(&auxdata(1 | 16, 0xE078)), vlan(120));
        assert_eq!(received_vlan(&auxdata(1, 120)), None);
        assert_eq!(received_vlan(&[]), None);
    }
}
