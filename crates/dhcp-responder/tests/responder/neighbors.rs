//! ARP, neighbor solicitations and router solicitations.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::MacAddress;
use berth_dhcp_responder::{
    ANSWER_CAPACITY, AnswerKind, Direction, IgnoredReason, NetworkSettings, Outcome, PortResponder,
    SERVER_IDENTIFIER, SERVER_LINK_LOCAL, SERVER_MAC,
};
use etherparse::{ArpEthIpv4Packet, ArpOperation, Icmpv6Type, PacketBuilder};
use smoltcp::wire::{
    ArpOperation as SmoltcpOperation, ArpRepr, Icmpv6Packet, NdiscNeighborFlags,
    NdiscPrefixInfoFlags, NdiscRepr, NdiscRouterFlags,
};

use crate::answer::{Answer, Content, expect_answer, parse};
use crate::guest::{
    ADDRESS, ADDRESS6, DNS6, LINK_LOCAL, MAC, icmpv6, lease, network, responder, send,
};

fn arp_request(source: MacAddress, target: [u8; 4]) -> Vec<u8> {
    let request = ArpEthIpv4Packet {
        operation: ArpOperation::REQUEST,
        sender_mac: source.0,
        sender_ipv4: ADDRESS.octets(),
        target_mac: [0; 6],
        target_ipv4: target,
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC.0, [0xff; 6])
        .arp(request.to_arp_packet())
        .write(&mut frame)
        .unwrap();
    frame
}

fn router_advertisement(answer: &Content) -> (Ipv6Addr, Ipv6Addr, &[u8]) {
    let Content::Icmpv6 { source, destination, message } = answer else { panic!("{answer:?}") };
    (*source, *destination, message)
}

/// Returns the data of the option with the type `code` in a router advertisement.
fn option(message: &[u8], code: u8) -> Option<&[u8]> {
    let mut rest = &message[16..];
    while let [kind, words, ..] = *rest {
        let (option, next) = rest.split_at(usize::from(words) * 8);
        if kind == code {
            return Some(&option[2..]);
        }
        rest = next;
    }
    None
}

#[test]
fn arp_for_the_server_identifier_is_answered() {
    let answer =
        expect_answer(send(&mut responder(), &arp_request(MAC, SERVER_IDENTIFIER.octets())));
    assert_eq!((answer.kind, answer.destination), (AnswerKind::ArpReply, MAC));
    let Content::Arp(ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_hardware_addr,
        target_protocol_addr,
    }) = answer.content
    else {
        panic!()
    };
    assert_eq!(operation, SmoltcpOperation::Reply);
    assert_eq!((source_hardware_addr.0, target_hardware_addr.0), (SERVER_MAC.0, MAC.0));
    assert_eq!((source_protocol_addr, target_protocol_addr), (SERVER_IDENTIFIER, ADDRESS));
}

#[test]
fn other_arp_requests_are_ignored() {
    let mut responder = responder();
    let outcome = send(&mut responder, &arp_request(MAC, [10, 0, 0, 1]));
    assert_eq!(outcome, Outcome::Ignored(IgnoredReason::Unrelated));
    let other = arp_request(MacAddress([2; 6]), SERVER_IDENTIFIER.octets());
    assert_eq!(send(&mut responder, &other), Outcome::Ignored(IgnoredReason::OtherMac));
}

#[test]
fn router_solicitation_gets_an_advertisement_without_default_router() {
    let solicitation = icmpv6(LINK_LOCAL, 255, Icmpv6Type::RouterSolicitation, &[]);
    let Answer { kind, destination, content } =
        expect_answer(send(&mut responder(), &solicitation));
    assert_eq!((kind, destination), (AnswerKind::RouterAdvertisement, MAC));
    let (source, destination, message) = router_advertisement(&content);
    assert_eq!((source, destination), (SERVER_LINK_LOCAL, LINK_LOCAL));
    let packet = Icmpv6Packet::new_checked(message).unwrap();
    let NdiscRepr::RouterAdvert { flags, router_lifetime, lladdr, mtu, prefix_info, .. } =
        NdiscRepr::parse(&packet).unwrap()
    else {
        panic!()
    };
    assert_eq!(flags, NdiscRouterFlags::MANAGED | NdiscRouterFlags::OTHER);
    assert_eq!(router_lifetime.secs(), 0);
    assert_eq!(lladdr.unwrap().as_bytes(), SERVER_MAC.0);
    assert_eq!(mtu, Some(1450));
    let prefix = prefix_info.unwrap();
    assert_eq!((prefix.prefix_len, prefix.prefix), (64, "fd00:120::".parse().unwrap()));
    assert_eq!(prefix.flags, NdiscPrefixInfoFlags::ON_LINK);
    let servers = option(message, 25).unwrap();
    assert_eq!(servers[2..6], 604_800_u32.to_be_bytes());
    assert_eq!(servers[6..], DNS6.octets());
    let domains = option(message, 31).unwrap();
    assert_eq!(domains[6..], *b"\x06tenant\x07example\0\x07example\0\0\0\0\0\0\0\0");
}

#[test]
fn solicitation_without_address_is_answered_to_all_nodes() {
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let solicitation = icmpv6(unspecified, 255, Icmpv6Type::RouterSolicitation, &[]);
    let mut responder = responder();
    let answer = expect_answer(send(&mut responder, &solicitation));
    assert_eq!(answer.destination, MacAddress([0x33, 0x33, 0, 0, 0, 1]));
    let (_, destination, message) = router_advertisement(&answer.content);
    assert_eq!(destination, "ff02::1".parse::<Ipv6Addr>().unwrap());
    let (_, unsolicited) = parse(&responder.advertisement().unwrap());
    assert_eq!(router_advertisement(&unsolicited).2, message);
}

#[test]
fn link_local_gateway_is_announced_as_default_router() {
    let gateway: Ipv6Addr = "fe80::1".parse().unwrap();
    let mut network = network();
    network.ipv6.as_mut().unwrap().gateway = Some(gateway.into());
    network.mtu = Some(576);
    let responder = PortResponder::new(&network, &lease(), SERVER_MAC);
    let (_, content) = parse(&responder.advertisement().unwrap());
    let (source, _, message) = router_advertisement(&content);
    assert_eq!(source, gateway);
    assert_eq!(message[6..8], u16::MAX.to_be_bytes());
    assert_eq!(
        option(message, 1),
        None,
        "there should be no link-layer address: the guest resolves that of the gateway"
    );
    assert_eq!(
        option(message, 5),
        None,
        "an MTU below 1280, the minimum of IPv6, should not be advertised"
    );
}

#[test]
fn neighbor_solicitation_for_the_server_is_answered() {
    for (source, expected) in
        [(LINK_LOCAL, LINK_LOCAL), (Ipv6Addr::UNSPECIFIED, "ff02::1".parse().unwrap())]
    {
        let target = SERVER_LINK_LOCAL.octets();
        let frame = icmpv6(source, 255, Icmpv6Type::NeighborSolicitation, &target);
        let answer = expect_answer(send(&mut responder(), &frame));
        assert_eq!(answer.kind, AnswerKind::NeighborAdvertisement);
        let Content::Icmpv6 { destination, message, .. } = answer.content else { panic!() };
        assert_eq!(destination, expected);
        let packet = Icmpv6Packet::new_checked(&message[..]).unwrap();
        let NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } =
            NdiscRepr::parse(&packet).unwrap()
        else {
            panic!()
        };
        assert_eq!(flags.contains(NdiscNeighborFlags::SOLICITED), source == LINK_LOCAL);
        assert_eq!(target_addr, SERVER_LINK_LOCAL);
        assert_eq!(lladdr.unwrap().as_bytes(), SERVER_MAC.0);
    }
}

#[test]
fn other_messages_of_neighbor_discovery_are_ignored() {
    let mut without_ipv6 = network();
    without_ipv6.ipv6 = None;
    let mut unconfigured = PortResponder::new(&without_ipv6, &lease(), SERVER_MAC);
    assert_eq!(unconfigured.advertisement(), None);
    let solicitation = icmpv6(LINK_LOCAL, 255, Icmpv6Type::RouterSolicitation, &[]);
    let outcome = send(&mut unconfigured, &solicitation);
    assert_eq!(outcome, Outcome::Ignored(IgnoredReason::NotConfigured));
    for (message, hop_limit, payload, reason) in [
        (Icmpv6Type::RouterSolicitation, 64, &[][..], IgnoredReason::Malformed),
        (Icmpv6Type::NeighborSolicitation, 255, &[1; 8], IgnoredReason::Malformed),
        (Icmpv6Type::NeighborSolicitation, 255, &ADDRESS6.octets(), IgnoredReason::Unrelated),
        (
            Icmpv6Type::EchoRequest(etherparse::IcmpEchoHeader { id: 1, seq: 1 }),
            255,
            &[],
            IgnoredReason::Unrelated,
        ),
    ] {
        let frame = icmpv6(LINK_LOCAL, hop_limit, message, payload);
        assert_eq!(send(&mut responder(), &frame), Outcome::Ignored(reason), "{message:?}");
    }
}

#[test]
fn answers_are_rate_limited() {
    let mut responder = responder();
    let frame = arp_request(MAC, SERVER_IDENTIFIER.octets());
    let mut handle =
        |seconds| responder.handle(Direction::FromGuest, &frame, Duration::from_secs(seconds));
    for _ in 0..ANSWER_CAPACITY {
        expect_answer(handle(1));
    }
    assert_eq!(handle(1), Outcome::Ignored(IgnoredReason::RateLimited));
    expect_answer(handle(2));
    responder.set_lease(&Arc::new(NetworkSettings::new(&network(), SERVER_MAC)), &lease());
    let statistics = responder.statistics();
    assert_eq!(statistics.answers[&AnswerKind::ArpReply], u64::from(ANSWER_CAPACITY) + 1);
    assert_eq!(statistics.ignored[&IgnoredReason::RateLimited], 1);
}
