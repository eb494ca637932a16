//! Parses received frames.

use std::net::{IpAddr, Ipv6Addr};

use berth_api::MacAddress;
use etherparse::{
    ArpEthIpv4Packet, Icmpv6Slice, LinkSlice, NetSlice, SlicedPacket, TransportSlice, UdpSlice,
};

use crate::outcome::IgnoredReason;

/// A frame without VLAN tag.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    pub(crate) source_mac: MacAddress,
    pub(crate) content: Content<'a>,
}

/// Content of a frame.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Arp(ArpEthIpv4Packet),
    Udp { source: IpAddr, destination: IpAddr, datagram: UdpSlice<'a> },
    Icmpv6 { source: Ipv6Addr, hop_limit: u8, message: Icmpv6Slice<'a> },
}

impl<'a> Received<'a> {
    /// Parses a frame. Returns `Unrelated` for fragments and other protocols.
    pub(crate) fn parse(frame: &'a [u8]) -> Result<Self, IgnoredReason> {
        let packet = SlicedPacket::from_ethernet(frame).map_err(|_| IgnoredReason::Malformed)?;
        if !packet.link_exts.is_empty() {
            return Err(IgnoredReason::VlanTag);
        }
        let Some(LinkSlice::Ethernet2(ethernet)) = packet.link else {
            return Err(IgnoredReason::Unrelated);
        };
        let content = match (packet.net, packet.transport) {
            (Some(NetSlice::Arp(arp)), _) => {
                let arp = arp.to_packet().try_eth_ipv4();
                Content::Arp(arp.map_err(|_| IgnoredReason::Unrelated)?)
            }
            (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(datagram))) => {
                let header = ip.header();
                let (source, destination) = (header.source_addr(), header.destination_addr());
                Content::Udp { source: source.into(), destination: destination.into(), datagram }
            }
            (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Udp(datagram))) => {
                let header = ip.header();
                let (source, destination) = (header.source_addr(), header.destination_addr());
                Content::Udp { source: source.into(), destination: destination.into(), datagram }
            }
            (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(message))) => Content::Icmpv6 {
                source: ip.header().source_addr(),
                hop_limit: ip.header().hop_limit(),
                message,
            },
            _ => return Err(IgnoredReason::Unrelated),
        };
        Ok(Self { source_mac: MacAddress(ethernet.source()), content })
    }
}
