//! Writes the frames of answers.

use std::net::{Ipv4Addr, Ipv6Addr};

use berth_api::MacAddress;
use etherparse::{ArpEthIpv4Packet, Icmpv6Type, PacketBuilder};

use crate::identity::{SERVER_IDENTIFIER, SERVER_LINK_LOCAL};

/// Multicast address of all nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Ethernet address of [`ALL_NODES`].
pub(crate) const ALL_NODES_MAC: MacAddress = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
/// Ethernet address of broadcast frames.
pub(crate) const BROADCAST_MAC: MacAddress = MacAddress([0xff; 6]);
/// Hop limit of neighbor discovery, which proves that no router forwarded the packet.
pub(crate) const LINK_HOP_LIMIT: u8 = 255;
/// Bytes of the headers before the payload of a DHCPv4 message: IPv4 without options, and UDP.
pub(crate) const DHCPV4_HEADERS: usize = 20 + 8;
/// Bytes of the headers before the payload of a DHCPv6 message: IPv6 and UDP.
pub(crate) const DHCPV6_HEADERS: usize = 40 + 8;

const HOP_LIMIT: u8 = 64;

/// Ethernet addresses of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameAddresses {
    pub(crate) source: MacAddress,
    pub(crate) destination: MacAddress,
}

impl FrameAddresses {
    /// Returns the DHCPv4 message in a frame; `None` if it is too long.
    pub(crate) fn dhcpv4_frame(self, destination: Ipv4Addr, message: &[u8]) -> Option<Vec<u8>> {
        let builder = PacketBuilder::ethernet2(self.source.0, self.destination.0)
            .ipv4(SERVER_IDENTIFIER.octets(), destination.octets(), HOP_LIMIT)
            .udp(dhcproto::v4::SERVER_PORT, dhcproto::v4::CLIENT_PORT);
        let mut frame = Vec::with_capacity(builder.size(message.len()));
        builder.write(&mut frame, message).ok()?;
        Some(frame)
    }

    /// Returns the DHCPv6 message in a frame; `None` if it is too long.
    pub(crate) fn dhcpv6_frame(self, destination: Ipv6Addr, message: &[u8]) -> Option<Vec<u8>> {
        let builder = PacketBuilder::ethernet2(self.source.0, self.destination.0)
            .ipv6(SERVER_LINK_LOCAL.octets(), destination.octets(), HOP_LIMIT)
            .udp(dhcproto::v6::SERVER_PORT, dhcproto::v6::CLIENT_PORT);
        let mut frame = Vec::with_capacity(builder.size(message.len()));
        builder.write(&mut frame, message).ok()?;
        Some(frame)
    }

    /// Returns the message of neighbor discovery in a frame; `None` if it is too long.
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

    /// Returns the ARP packet in a frame.
    pub(crate) fn arp_frame(self, packet: &ArpEthIpv4Packet) -> Option<Vec<u8>> {
        let builder =
            PacketBuilder::ethernet2(self.source.0, self.destination.0).arp(packet.to_arp_packet());
        let mut frame = Vec::with_capacity(builder.size());
        builder.write(&mut frame).ok()?;
        Some(frame)
    }
}
