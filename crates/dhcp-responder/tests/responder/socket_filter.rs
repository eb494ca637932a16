//! Runs the socket filter in the kernel: a socket with the filter receives only the accepted frames.

use std::io::Read as _;
use std::net::Ipv6Addr;

use berth_api::MacAddress;
use berth_dhcp_responder::{
    Direction, FilterInstruction, SERVER_IDENTIFIER, SERVER_LINK_LOCAL, SERVER_MAC, probe_filter,
    request_filter, socket_filter,
};
use dhcproto::{v4, v6};
use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{ArpEthIpv4Packet, ArpOperation, IcmpEchoHeader, Icmpv6Type, PacketBuilder};
use socket2::{Domain, SockFilter, Socket, Type};

use crate::guest::{
    ADDRESS, ADDRESS6, LINK_LOCAL, MAC, dhcpv4, dhcpv6, frame_of_dhcpv4, icmpv6, responder,
};

/// `SKF_AD_OFF + SKF_AD_PKTTYPE` of `linux/filter.h`: the direction of the packet.
const PACKET_TYPE: u32 = 0xffff_f004;
/// `BPF_LD | BPF_IMM`: loads a constant.
const LOAD_IMMEDIATE: u16 = 0;
const PACKET_OUTGOING: u32 = 4;

/// Returns true if the kernel accepts the frame. The kernel runs the filters of all sockets with the same code, so a
/// pair of local datagram sockets, which needs no privileges, replaces a packet socket. The kernel marks the packets of
/// such sockets always as received. Therefore, to test frames to the guest, the instruction that loads the packet type
/// is replaced by one that loads a constant. `agent/tests/dhcp.rs` tests the packet types with a bridge.
fn is_accepted_by(program: &[FilterInstruction], direction: Direction, frame: &[u8]) -> bool {
    let (sender, mut receiver) = Socket::pair(Domain::UNIX, Type::DGRAM, None).unwrap();
    assert_eq!(program.iter().filter(|step| step.k == PACKET_TYPE).count(), 1);
    let program: Vec<SockFilter> = program
        .iter()
        .map(|step| {
            if step.k == PACKET_TYPE && direction == Direction::ToGuest {
                SockFilter::new(LOAD_IMMEDIATE, 0, 0, PACKET_OUTGOING)
            } else {
                SockFilter::new(step.code, step.jt, step.jf, step.k)
            }
        })
        .collect();
    receiver.attach_filter(&program).unwrap();
    receiver.set_nonblocking(true).unwrap();
    sender.send(frame).unwrap();
    let mut received = vec![0; frame.len() + 1];
    match receiver.read(&mut received) {
        Ok(length) => {
            assert_eq!(&received[..length], frame, "the frame should not be truncated");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            false
        }
    }
}

/// Returns the directions in which the filter accepts a frame: `<` for frames from the guest, `>` for frames to the
/// guest.
fn accepted_directions(frame: &[u8]) -> String {
    let from_guest = is_accepted_by(socket_filter(), Direction::FromGuest, frame);
    assert_eq!(is_accepted_by(request_filter(), Direction::FromGuest, frame), from_guest);
    assert!(!is_accepted_by(request_filter(), Direction::ToGuest, frame));
    let to_guest = is_accepted_by(socket_filter(), Direction::ToGuest, frame);
    format!("{}{}", if from_guest { "<" } else { "" }, if to_guest { ">" } else { "" })
}

fn arp(operation: ArpOperation, target: [u8; 4]) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: MAC.0,
        sender_ipv4: ADDRESS.octets(),
        target_mac: [0; 6],
        target_ipv4: target,
    };
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MAC.0, [0xff; 6]).arp(packet.to_arp_packet());
    builder.write(&mut frame).unwrap();
    frame
}

/// Returns the neighbor advertisement with which a machine that uses the probed address answers to an Ethernet address.
fn advertisement_to(destination: [u8; 6]) -> Vec<u8> {
    let header = NeighborAdvertisementHeader { router: false, solicited: true, r#override: true };
    let message = Icmpv6Type::NeighborAdvertisement(header);
    let mut frame = icmpv6(LINK_LOCAL, 255, message, &ADDRESS6.octets());
    frame[..6].copy_from_slice(&destination);
    frame
}

fn udp4(source: u16, destination: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC.0, [2; 6])
        .ipv4(ADDRESS.octets(), [10, 0, 0, 1], 64)
        .udp(source, destination)
        .write(&mut frame, &[1, 0, 0])
        .unwrap();
    frame
}

fn udp6(source: u16, destination: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC.0, [2; 6])
        .ipv6(ADDRESS6.octets(), [9; 16], 64)
        .udp(source, destination)
        .write(&mut frame, &[1, 0, 0])
        .unwrap();
    frame
}

fn neighbor_solicitation(target: Ipv6Addr) -> Vec<u8> {
    icmpv6(LINK_LOCAL, 255, Icmpv6Type::NeighborSolicitation, &target.octets())
}

#[test]
fn frames_that_may_be_answered_or_reported_are_accepted_in_their_direction() {
    let mut with_ip_options = udp4(68, 67);
    with_ip_options[14] = 0x46;
    with_ip_options.splice(34..34, [1; 4]);
    let mut answer_with_ip_options = udp4(67, 68);
    answer_with_ip_options[14] = 0x46;
    answer_with_ip_options.splice(34..34, [1; 4]);
    for (name, directions, frame) in [
        ("DHCPv4 request", "<", frame_of_dhcpv4(&dhcpv4(v4::MessageType::Discover))),
        ("DHCPv4 answer", ">", udp4(67, 68)),
        ("DHCPv4 between server ports", "<>", udp4(67, 67)),
        ("DHCPv4 request with IP options", "<", with_ip_options),
        ("DHCPv4 answer with IP options", ">", answer_with_ip_options),
        ("DHCPv6 request", "<", dhcpv6(v6::MessageType::Solicit, vec![])),
        ("DHCPv6 answer", ">", udp6(547, 546)),
        ("router solicitation", "<", icmpv6(LINK_LOCAL, 255, Icmpv6Type::RouterSolicitation, &[])),
        ("router advertisement", ">", responder().advertisement().unwrap()),
        ("neighbor solicitation", "<", neighbor_solicitation(SERVER_LINK_LOCAL)),
        ("ARP request", "<", arp(ArpOperation::REQUEST, SERVER_IDENTIFIER.octets())),
        ("ARP answer to a probe", "<", arp(ArpOperation::REPLY, [0; 4])),
        ("neighbor advertisement", "<", advertisement_to(SERVER_MAC.0)),
    ] {
        assert_eq!(accepted_directions(&frame), directions, "{name}");
    }
}

#[test]
fn other_frames_are_rejected() {
    let mut fragment = udp4(68, 67);
    fragment[20] = 0x20;
    let mut fragment_of_answer = udp4(67, 68);
    fragment_of_answer[20] = 0x20;
    let mut later_fragment = udp4(68, 67);
    later_fragment[21] = 9;
    let mut tcp = udp4(68, 67);
    tcp[23] = 6;
    let mut tcp6 = udp6(546, 547);
    tcp6[20] = 6;
    let mut tagged = udp4(68, 67);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let echo = IcmpEchoHeader { id: 1, seq: 1 };
    for (name, frame) in [
        ("data", udp4(5000, 53)),
        ("data6", udp6(5000, 53)),
        ("fragment", fragment),
        ("fragment of an answer", fragment_of_answer),
        ("later fragment", later_fragment),
        ("TCP", tcp),
        ("TCP6", tcp6),
        ("VLAN tag", tagged),
        ("truncated", udp4(68, 67)[..36].to_vec()),
        ("ARP for another address", arp(ArpOperation::REQUEST, [10, 0, 0, 1])),
        ("ARP reply", arp(ArpOperation::REPLY, SERVER_IDENTIFIER.octets())),
        ("advertisement to another machine", advertisement_to([2; 6])),
        ("solicitation of another neighbor", neighbor_solicitation(ADDRESS6)),
        ("echo", icmpv6(LINK_LOCAL, 255, Icmpv6Type::EchoRequest(echo), &[])),
        ("short", vec![0; 13]),
    ] {
        assert_eq!(accepted_directions(&frame), "", "{name}");
    }
}

#[test]
fn a_link_receives_only_answers_to_probes() {
    let link = MacAddress([0x52, 0x54, 0, 1, 2, 3]);
    let untagged = probe_filter(link, None);
    let accepts = |frame: &[u8]| is_accepted_by(&untagged, Direction::FromGuest, frame);
    for frame in [arp(ArpOperation::REPLY, [0; 4]), advertisement_to(link.0)] {
        assert!(accepts(&frame));
        assert!(
            !is_accepted_by(&untagged, Direction::ToGuest, &frame),
            "a frame that the host sends should be ignored"
        );
        // The kernel stores the VLAN tag in the metadata of a packet. Packets of local sockets have no tag, so the
        // filter for a VLAN rejects them.
        let tagged = probe_filter(link, Some(120.try_into().unwrap()));
        assert!(!is_accepted_by(&tagged, Direction::FromGuest, &frame));
    }
    for frame in [
        arp(ArpOperation::REQUEST, [0; 4]),
        arp(ArpOperation::REPLY, ADDRESS.octets()),
        advertisement_to([2; 6]),
        udp4(67, 68),
        udp6(547, 546),
        neighbor_solicitation(ADDRESS6),
    ] {
        assert!(!accepts(&frame));
    }
}
