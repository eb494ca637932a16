//! Builds the frames that contain answers.

use std::net::{Ipv4Addr, Ipv6Addr};

use berth_api::MacAddress;
use etherparse::{ArpEthIpv4Packet, Icmpv6Type, PacketBuilder};

use crate::identity::{SERVER_IDENTIFIER, SERVER_LINK_LOCAL};

/// IPv6 multicast address of all nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Ethernet address of [`ALL_NODES`].
pub(crate) const ALL_NODES_MAC: MacAddress = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
/// Ethernet address of broadcast frames.
pub(crate) const BROADCAST_MAC: MacAddress = MacAddress([0xff; 6]);
/// Hop limit of neighbor discovery messages. A packet with this value was not forwarded by a router.
pub(crate) const LINK_HOP_LIMIT: u8 = 255;
/// Number of header bytes before a DHCPv4 message: IPv4 header without options, and UDP header.
pub(crate) const DHCPV4_HEADERS: usize = 20 + 8;
/// Number of header bytes before a DHCPv6 message: IPv6 header and UDP header.
pub(crate) const DHCPV6_HEADERS: usize = 40 + 8;

const HOP_LIMIT: u8 = 64;

/// Ethernet source and destination of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameAddresses {
    pub(crate) source: MacAddress,
    pub(crate) destination: MacAddress,
}

impl FrameAddresses {
    /// Returns a frame that contains a DHCPv4 message; `None` if the message is too long.
    pub(crate) fn dhcpv4_frame(self, destination: Ipv4Addr, message: &[u8]) -> Option<Vec<u8>> {
        let builder = PacketBuilder::ethernet2(self.source.0, self.destination.0)
            .ipv4(SERVER_IDENTIFIER.octets(), destination.octets(), HOP_LIMIT)
            .udp(dhcproto::v4::SERVER_PORT, dhcproto::v4::CLIENT_PORT);
        let mut frame = Vec::with_capacity(builder.size(message.len()));
        builder.write(&mut frame, message).ok()?;
        Some(frame)
    }

    /// Returns a frame that contains a DHCPv6 message; `None` if the message is too long.
    pub(crate) fn dhcpv6_frame(self, destination: Ipv6Addr, message: &[u8]) -> Option<Vec<u8>> {
        let builder = PacketBuilder::ethernet2(self.source.0, self.destination.0)
            .ipv6(SERVER_LINK_LOCAL.octets(), destination.octets(), HOP_LIMIT)
            .udp(dhcproto::v6::SERVER_PORT, dhcproto::v6::CLIENT_PORT);
        let mut frame = Vec::with_capacity(builder.size(message.len()));
        builder.write(&mut frame, message).ok()?;
        Some(frame)
    }

    /// Returns a frame that contains a neighbor discovery message; `None` if the message is too long.
    pub(crate) fn icmpv6_frame(
        self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        message: Icmpv6Type,
        payload: &[u8],
    ) -> Option<Vec<u8>> {
        let builder = PacketBuilder::ethernet2(self.source.0, self.destination.0)
            .ipv6(source.octets(), destination.octets(), LINK_HOP_LIMIT)
            .icmpv6(message);
        let mut frame = Vec::with_capacity(builder.size(payload.len()));
        builder.write(&mut frame, payload).ok()?;
        Some(frame)
    }

    /// Returns a frame that contains an ARP packet.
    pub(crate) fn arp_frame(self, packet: &ArpEthIpv4Packet) -> Option<Vec<u8>> {
        let builder =
            PacketBuilder::ethernet2(self.source.0, self.destination.0).arp(packet.to_arp_packet());
        let mut frame = Vec::with_capacity(builder.size());
        builder.write(&mut frame).ok()?;
        Some(frame)
    }
}
