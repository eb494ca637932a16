//! Reports of DHCP servers and routers that are not Berth's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use berth_api::MacAddress;
use berth_dhcp_responder::{
    Direction, ForeignKind, ForeignServer, IgnoredReason, Outcome, PortResponder, SERVER_MAC,
};
use dhcproto::{Encodable as _, v4};
use etherparse::icmpv6::{PrefixInformation, RouterAdvertisementHeader};
use etherparse::{Icmpv6Type, PacketBuilder};

use crate::guest::{MAC, dhcpv4, frame_of_dhcpv4, lease, network, responder};

const FOREIGN_MAC: MacAddress = MacAddress([2, 0xbb, 0, 0, 0, 1]);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const FOREIGN6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x66);

fn receive(responder: &mut PortResponder, frame: &[u8]) -> Outcome {
    let observed = responder.observe(Direction::ToGuest, frame);
    let outcome = responder.handle(Direction::ToGuest, frame, Duration::from_secs(9));
    assert_eq!(observed, outcome, "an observer reports the same foreign servers");
    outcome
}

fn offer(mac: MacAddress, opcode: v4::Opcode) -> Vec<u8> {
    let mut message = dhcpv4(v4::MessageType::Offer);
    message.set_opcode(opcode);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac.0, MAC.0)
        .ipv4(FOREIGN.octets(), [255; 4], 64)
        .udp(67, 68)
        .write(&mut frame, &message.to_vec().unwrap())
        .unwrap();
    frame
}

fn dhcpv6(message_type: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(FOREIGN_MAC.0, MAC.0)
        .ipv6(FOREIGN6.octets(), FOREIGN6.octets(), 64)
        .udp(547, 546)
        .write(&mut frame, &[message_type, 1, 2, 3])
        .unwrap();
    frame
}

fn router_advertisement(source: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    router_advertisement_from(FOREIGN_MAC, source, hop_limit, &[])
}

/// Returns a router advertisement with /64 prefixes.
fn router_advertisement_from(
    mac: MacAddress,
    source: Ipv6Addr,
    hop_limit: u8,
    prefixes: &[Ipv6Addr],
) -> Vec<u8> {
    let header = RouterAdvertisementHeader {
        cur_hop_limit: 64,
        managed_address_config: false,
        other_config: false,
        router_lifetime: 1800,
    };
    let mut payload = vec![0; 8];
    for prefix in prefixes {
        let information = PrefixInformation {
            prefix_length: 64,
            on_link: true,
            autonomous_address_configuration: true,
            valid_lifetime: 1800,
            preferred_lifetime: 1800,
            prefix: prefix.octets(),
        };
        payload.extend(information.to_bytes());
    }
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac.0, [0x33, 0x33, 0, 0, 0, 1])
        .ipv6(source.octets(), FOREIGN6.octets(), hop_limit)
        .icmpv6(Icmpv6Type::RouterAdvertisement(header))
        .write(&mut frame, &payload)
        .unwrap();
    frame
}

fn foreign_server(kind: ForeignKind, address: impl Into<IpAddr>) -> Outcome {
    Outcome::ForeignServer(ForeignServer { kind, mac: FOREIGN_MAC, address: address.into() })
}

#[test]
fn servers_and_routers_are_reported() {
    let mut responder = responder();
    let outcome = receive(&mut responder, &offer(FOREIGN_MAC, v4::Opcode::BootReply));
    assert_eq!(outcome, foreign_server(ForeignKind::Dhcpv4, FOREIGN));
    for message_type in [2, 7, 10] {
        let outcome = receive(&mut responder, &dhcpv6(message_type));
        assert_eq!(outcome, foreign_server(ForeignKind::Dhcpv6, FOREIGN6));
    }
    let outcome = receive(&mut responder, &router_advertisement(FOREIGN6, 255));
    assert_eq!(outcome, foreign_server(ForeignKind::RouterAdvertisement, FOREIGN6));
    assert_eq!(responder.statistics().foreign_servers[&ForeignKind::Dhcpv6], 3);
}

#[test]
fn other_frames_to_the_guest_are_ignored() {
    let global = "2001:db8::1".parse().unwrap();
    for (frame, reason) in [
        (offer(FOREIGN_MAC, v4::Opcode::BootRequest), IgnoredReason::Unrelated),
        (dhcpv6(1), IgnoredReason::Unrelated),
        (router_advertisement(FOREIGN6, 64), IgnoredReason::Malformed),
        (router_advertisement(global, 255), IgnoredReason::Malformed),
        (frame_of_dhcpv4(&dhcpv4(v4::MessageType::Discover)), IgnoredReason::Unrelated),
    ] {
        assert_eq!(receive(&mut responder(), &frame), Outcome::Ignored(reason));
    }
}

#[test]
fn advertisement_of_the_link_local_gateway_is_expected() {
    let mut network = network();
    network.ipv6.as_mut().unwrap().gateway = Some(FOREIGN6.into());
    let mut responder = PortResponder::new(&network, &lease(), SERVER_MAC);
    let outcome = receive(&mut responder, &router_advertisement(FOREIGN6, 255));
    assert_eq!(outcome, Outcome::Ignored(IgnoredReason::Gateway));
    let other: Ipv6Addr = "fe80::77".parse().unwrap();
    let outcome = receive(&mut responder, &router_advertisement(other, 255));
    assert_eq!(outcome, foreign_server(ForeignKind::RouterAdvertisement, other));
}

#[test]
fn another_machine_with_the_address_of_the_server_is_reported() {
    let mut network = network();
    network.ipv6.as_mut().unwrap().gateway = Some(FOREIGN6.into());
    let mut responder = PortResponder::new(&network, &lease(), SERVER_MAC);
    for frame in [
        offer(SERVER_MAC, v4::Opcode::BootReply),
        router_advertisement_from(SERVER_MAC, FOREIGN6, 255, &[]),
    ] {
        let outcome = receive(&mut responder, &frame);
        let Outcome::ForeignServer(server) = outcome else { panic!("{outcome:?}") };
        assert_eq!(server.mac, SERVER_MAC);
    }
}

#[test]
fn advertisements_of_a_global_gateway_are_recognized_by_their_prefixes() {
    let mut network = network();
    network.ipv6.as_mut().unwrap().gateway = Some("fd00:120::1".parse().unwrap());
    let own: Ipv6Addr = "fd00:120::".parse().unwrap();
    let other: Ipv6Addr = "fd00:121::".parse().unwrap();
    let expected = Outcome::Ignored(IgnoredReason::Gateway);
    let reported = foreign_server(ForeignKind::RouterAdvertisement, FOREIGN6);
    let without_address = berth_api::Lease { ipv6: None, ..lease() };
    for (lease, prefixes, outcome) in [
        (lease(), &[][..], &expected),
        (lease(), &[own], &expected),
        (lease(), &[other], &reported),
        (lease(), &[own, other], &reported),
        (without_address, &[own], &expected),
    ] {
        let mut responder = PortResponder::new(&network, &lease, SERVER_MAC);
        let frame = router_advertisement_from(FOREIGN_MAC, FOREIGN6, 255, prefixes);
        assert_eq!(&receive(&mut responder, &frame), outcome, "{prefixes:?}");
    }
    // If the network has no gateway, every router is foreign.
    let frame = router_advertisement_from(FOREIGN_MAC, FOREIGN6, 255, &[own]);
    assert_eq!(receive(&mut responder(), &frame), reported);
}

/// Checks that the responder does not answer messages that only servers send, and does not answer frames to the guest.
#[test]
fn messages_of_servers_get_no_answers() {
    let frame = offer(MAC, v4::Opcode::BootReply);
    let outcome = responder().handle(Direction::FromGuest, &frame, Duration::ZERO);
    assert_eq!(outcome, Outcome::Ignored(IgnoredReason::Unrelated));
    let outcome = responder()
        .observe(Direction::FromGuest, &frame_of_dhcpv4(&dhcpv4(v4::MessageType::Discover)));
    assert_eq!(outcome, Outcome::Ignored(IgnoredReason::OtherMac), "an observer answers nothing");
}
