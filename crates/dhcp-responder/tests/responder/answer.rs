//! Parses answers with smoltcp, which verifies lengths and checksums.

use std::net::{Ipv4Addr, Ipv6Addr};

use berth_api::MacAddress;
use berth_dhcp_responder::{AnswerKind, Outcome, SERVER_MAC};
use dhcproto::{Decodable as _, v4, v6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetFrame, EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpProtocol,
    Ipv4Packet, Ipv4Repr, Ipv6Packet, UdpPacket, UdpRepr,
};

use crate::guest::{LINK_LOCAL, MAC};

/// Content of an answer.
#[derive(Debug)]
pub(crate) enum Content {
    Arp(ArpRepr),
    Dhcpv4 { destination: Ipv4Addr, message: v4::Message, length: usize },
    Dhcpv6 { destination: Ipv6Addr, message: v6::Message },
    Icmpv6 { source: Ipv6Addr, destination: Ipv6Addr, message: Vec<u8> },
}

/// An answer whose lengths and checksums are valid.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) kind: AnswerKind,
    pub(crate) destination: MacAddress,
    pub(crate) content: Content,
}

/// Returns the answer, and panics if the outcome is no answer or an invalid one.
pub(crate) fn expect_answer(outcome: Outcome) -> Answer {
    let Outcome::Answer { kind, frame } = outcome else { panic!("no answer: {outcome:?}") };
    let (destination, content) = parse(&frame);
    Answer { kind, destination, content }
}

/// Returns the DHCPv4 message in an answer.
pub(crate) fn expect_dhcpv4(outcome: Outcome) -> (AnswerKind, v4::Message) {
    let answer = expect_answer(outcome);
    let Content::Dhcpv4 { message, .. } = answer.content else { panic!("{answer:?}") };
    (answer.kind, message)
}

/// Returns the DHCPv6 message in an answer.
pub(crate) fn expect_dhcpv6(outcome: Outcome) -> (AnswerKind, v6::Message) {
    let answer = expect_answer(outcome);
    let Content::Dhcpv6 { destination, message } = answer.content else { panic!("{answer:?}") };
    assert_eq!((answer.destination, destination), (MAC, LINK_LOCAL));
    (answer.kind, message)
}

/// Parses a frame of the responder: returns its Ethernet destination and its content.
pub(crate) fn parse(frame: &[u8]) -> (MacAddress, Content) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(ethernet.src_addr().0, SERVER_MAC.0);
    let checksums = ChecksumCapabilities::default();
    let content = match ethernet.ethertype() {
        EthernetProtocol::Arp => {
            let packet = ArpPacket::new_checked(ethernet.payload()).unwrap();
            Content::Arp(ArpRepr::parse(&packet).unwrap())
        }
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert_eq!(usize::from(packet.total_len()), ethernet.payload().len());
            let ip = Ipv4Repr::parse(&packet, &checksums).unwrap();
            let udp = UdpPacket::new_checked(packet.payload()).unwrap();
            let (source, destination) = (ip.src_addr.into(), ip.dst_addr.into());
            let ports = UdpRepr::parse(&udp, &source, &destination, &checksums).unwrap();
            assert_eq!((ports.src_port, ports.dst_port), (67, 68));
            assert_ne!(udp.checksum(), 0);
            let message = v4::Message::from_bytes(udp.payload()).unwrap();
            let length = udp.payload().len();
            assert!(length >= 300, "{length}");
            Content::Dhcpv4 { destination: ip.dst_addr, message, length }
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            assert_eq!(packet.total_len(), ethernet.payload().len());
            let (source, destination) = (packet.src_addr(), packet.dst_addr());
            if packet.next_header() == IpProtocol::Icmpv6 {
                assert_eq!(packet.hop_limit(), 255);
                let message = Icmpv6Packet::new_checked(packet.payload()).unwrap();
                assert!(message.verify_checksum(&source, &destination));
                assert_ne!(message.msg_type(), Icmpv6Message::EchoReply);
                let message = packet.payload().to_vec();
                Content::Icmpv6 { source, destination, message }
            } else {
                let udp = UdpPacket::new_checked(packet.payload()).unwrap();
                let addresses = (source.into(), destination.into());
                let ports = UdpRepr::parse(&udp, &addresses.0, &addresses.1, &checksums).unwrap();
                assert_eq!((ports.src_port, ports.dst_port), (547, 546));
                let message = v6::Message::from_bytes(udp.payload()).unwrap();
                Content::Dhcpv6 { destination, message }
            }
        }
        EthernetProtocol::Unknown(other) => panic!("unexpected EtherType {other:x}"),
    };
    (MacAddress(ethernet.dst_addr().0), content)
}
